"""From a job and the profiles that exist to a snapshot and a plan, or to a refusal."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from finetune_contract import PREFERENCE_TYPES, MemoryOutcome
from finetune_contract.engine import override_faults
from finetune_operator.api import (
    DEFAULT_PROFILE_ANNOTATION,
    InvalidObject,
    Reason,
    parse_job,
    parse_profile,
)
from finetune_operator.planning.chat_template import with_chat_template
from finetune_operator.planning.defaults import BUILT_IN
from finetune_operator.planning.errors import Refused, naming_contact, with_contact
from finetune_operator.planning.limits import bounds_of, found_problems, limit_problems, written_problems
from finetune_operator.planning.locations import ProfileFolders, run_folder_problem
from finetune_operator.planning.merge import merge
from finetune_operator.planning.plan import IDENTITY, Findings, Plan
from finetune_operator.planning.plan_builder import make_plan
from finetune_operator.planning.policy import check_profile, policy_problems, refused_by, with_mode
from finetune_operator.planning.resumption import refuse_folder_in_use, resumed_folder
from finetune_operator.planning.source_job import source_name, with_source_model
from finetune_operator.planning.stored_plan import StoredPlan
from finetune_operator.planning.support import refuse_later_fields

type Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A job that may run."""

    snapshot: StoredPlan
    plan: Plan


def admit(
    job: Object,
    profiles: Sequence[Object],
    template: Object | None = None,
    source: Object | None = None,
    neighbours: Sequence[Object] = (),
) -> Admission:
    """Choose the profile, judge the job by it and fix what is to stay. Raises Refused.

    Args:
        job: the FineTuneJob.
        profiles: all that there are.
        template: the ConfigMap that the job's chat template is in, if it names one that exists.
        source: the FineTuneJob whose model it starts from, if it names one that exists.
        neighbours: FineTuneJobs, of any namespace, that have used the run folder in which it is to go on.
    """
    _check_schema(job)
    profile = choose_profile(job, profiles)
    check_profile_object(profile)
    name, spec = profile["metadata"]["name"], with_mode(profile["spec"], "Strict")
    with naming_contact(spec):
        _check_overrides(job)
    base = merge(BUILT_IN, spec.get("defaults", {}))
    merged = merge(base, job["spec"])
    if source_name(merged) == job["metadata"]["name"]:
        raise Refused(
            Reason.INVALID_SPEC, "spec.model.fromJob.name is the job's own name. Name the job to start from."
        )
    with naming_contact(spec):
        _refuse_unsuitable_overrides(merged)
    whole = with_source_model(with_chat_template(merged, template), source)
    with naming_contact(spec):
        broken = policy_problems(job, name, spec, whole, base)
        provisional = _judged(
            lambda: make_plan(job, _snapshot(job, profile, whole)), name, spec, whole, broken
        )
    refuse_folder_in_use(job, neighbours)
    # Whatever resources are edited to later, a step takes as many rows as the first plan says.
    fixed = merge(
        whole, {"hyperparameters": {"globalBatchSize": provisional.hyperparameters.global_batch_size}}
    )
    snapshot = _snapshot(job, profile, fixed)
    return Admission(snapshot=snapshot, plan=make_plan(job, snapshot))


def _snapshot(job: Object, profile: Object, spec: Object) -> StoredPlan:
    """With the mode in words: what a later version takes for the default does not change what was admitted."""
    snapshot = StoredPlan.make(job, profile, spec)
    return replace(snapshot, profile=with_mode(snapshot.profile, "Strict"))


def _judged(
    plan: Callable[[], Plan], name: str, profile: Object, merged: Object, broken: Sequence[str]
) -> Plan:
    """What ``plan`` makes of the job. Raises Refused with all at once that the profile ``name`` does not allow: rules
    that are ``broken`` already, limits, and why there is no plan."""
    try:
        made = plan()
    except Refused as error:
        problems = [*broken, *written_problems(bounds_of(profile), merged)]
        if not problems:
            raise
        raise Refused(
            Reason.POLICY_VIOLATION, f"{refused_by(name, problems).message} {error.message}"
        ) from error
    if problems := [*broken, *limit_problems(made, merged)]:
        raise refused_by(name, problems)
    return made


def judge_findings(plan: Plan, findings: Findings) -> Refused | None:
    """Why the profile does not allow what preflight found the job to come to; None: it does, or preflight has not
    passed. To be asked before anything is made that holds a slice."""
    problems = list(found_problems(plan, findings))
    return with_contact(refused_by(plan.profile_name, problems), plan.owner_of_profile) if problems else None


def may_resume(job: Object, profiles: Sequence[Object]) -> bool:
    """Whether the job names a run folder that its profile lets it go on in, so that it matters who else uses it."""
    folder = resumed_folder(job["spec"])
    if folder is None:
        return False
    try:
        check_job(job)
        profile = choose_profile(job, profiles)
        check_profile_object(profile)
    except Refused:
        return False
    spec = profile["spec"]
    storage = ProfileFolders.of(spec, job["metadata"].get("namespace", "default"))
    opened = spec.get("constraints", {}).get("uris", {}).get("write", ())
    return run_folder_problem("", folder, storage, opened) is None


def replan(
    job: Object, snapshot: StoredPlan, passed: Collection[str] = (), found: MemoryOutcome | None = None
) -> Plan:
    """The plan for the next attempt of an admitted job: its identity from the snapshot, the rest as it reads now, on
    capacity that was not ``passed`` over and, where the job names no slice, on the one that preflight has ``found``.

    Raises Refused where an edit asks for what is not allowed or does not fit.
    """
    _check_schema(job)
    base = merge(BUILT_IN, snapshot.profile.get("defaults", {}))
    merged = {**merge(base, job["spec"]), **_admitted_identity(job, base, snapshot)}
    # A plan without a mode is of an operator that knew none, and allowed what its profile did not forbid.
    name, profile = snapshot.profile_name, with_mode(snapshot.profile, "Open")
    with naming_contact(profile):
        _check_overrides(job)
        broken = policy_problems(job, name, profile, merged, base)
        return _judged(
            lambda: make_plan(job, snapshot, passed, found), name, snapshot.profile, merged, broken
        )


def _admitted_identity(job: Object, base: Object, snapshot: StoredPlan) -> Object:
    """What decides the result, as it was admitted and is planned: where the model lies was found out then, too. The
    global batch only where job or profile names it, since rules do not judge what follows from the slice."""
    admitted = {name: snapshot.spec[name] for name in IDENTITY}
    named = merge(base, {"hyperparameters": job["spec"].get("hyperparameters", {})}).get(
        "hyperparameters", {}
    )
    if "globalBatchSize" in named:
        return admitted
    numbers = {key: each for key, each in admitted["hyperparameters"].items() if key != "globalBatchSize"}
    batch = {key: named[key] for key in ("perDeviceBatchSize",) if key in named}
    return {**admitted, "hyperparameters": {**numbers, **batch}}


def check_job(job: Object) -> None:
    """The schema, and the engine's settings that the job overrides. Raises Refused."""
    _check_schema(job)
    _check_overrides(job)


def _check_schema(job: Object) -> None:
    try:
        parse_job(job)
    except InvalidObject as error:
        raise Refused(Reason.INVALID_SPEC, str(error)) from error


def _check_overrides(job: Object) -> None:
    if faults := [str(fault) for fault in override_faults(job["spec"].get("engineOverrides", {}))]:
        raise Refused(Reason.INVALID_SPEC, " ".join(faults))


def _refuse_unsuitable_overrides(merged: Object) -> None:
    """At admission alone: a job that runs with one goes on."""
    given = merged.get("engineOverrides", {})
    if (
        str(given.get("num_vocab_tiling", 1)).lstrip("+") != "1"
        and merged["method"]["type"] in PREFERENCE_TYPES
    ):
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.engineOverrides.num_vocab_tiling: {merged['method']['type']} needs whole logits, which a model with "
            "tiles does not return. Remove it.",
        )
    idle = sorted(name for name in given if name.startswith("adam_"))
    if idle and merged["hyperparameters"]["optimizer"] == "SGD":
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.engineOverrides.{idle[0]}: SGD does not read it. Remove it, or use AdamW.",
        )


def check_profile_object(profile: Object) -> None:
    """The same for a profile, its constraints and what this version supports: what its ``Valid`` condition says.
    Raises Refused."""
    name, spec = profile["metadata"]["name"], profile.get("spec")
    with naming_contact(spec if isinstance(spec, Mapping) else {}):
        try:
            parse_profile(profile)
        except InvalidObject as error:
            raise Refused(Reason.PROFILE_INVALID, f'profile "{name}": {error}') from error
        refuse_later_fields(name, profile["spec"])
        check_profile(name, profile["spec"])


def choose_profile(job: Object, profiles: Sequence[Object]) -> Object:
    """The profile that the job names, or the one default. Raises Refused."""
    by_name = {profile["metadata"]["name"]: profile for profile in profiles}
    wanted = job["spec"].get("profileRef", {}).get("name")
    existing = ", ".join(sorted(by_name)) or "none"
    if wanted is not None:
        if wanted not in by_name:
            raise Refused(
                Reason.PROFILE_NOT_FOUND,
                f'spec.profileRef: there is no FineTuneProfile "{wanted}". Existing: {existing}. '
                "The job goes on by itself when it appears.",
            )
        return by_name[wanted]
    defaults = [
        name
        for name, profile in by_name.items()
        if profile["metadata"].get("annotations", {}).get(DEFAULT_PROFILE_ANNOTATION) == "true"
    ]
    if not defaults:
        raise Refused(
            Reason.NO_DEFAULT_PROFILE,
            f"spec.profileRef is left out and no FineTuneProfile carries {DEFAULT_PROFILE_ANNOTATION}. "
            f"Existing: {existing}. Name one in spec.profileRef.",
        )
    if len(defaults) > 1:
        raise Refused(
            Reason.AMBIGUOUS_DEFAULT_PROFILE,
            f"spec.profileRef is left out and {len(defaults)} FineTuneProfiles carry "
            f"{DEFAULT_PROFILE_ANNOTATION}: {', '.join(sorted(defaults))}. Name one in spec.profileRef.",
        )
    return by_name[defaults[0]]
