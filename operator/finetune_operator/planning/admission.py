"""Admission: turns a job and the existing profiles into a stored plan and a plan, or into a refusal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from finetune_contract import PREFERENCE_TYPES, MemoryOutcome
from finetune_contract.engine import override_faults
from finetune_operator.api import (
    FineTuneJob,
    InvalidObject,
    Reason,
    parse_job,
    parse_profile,
)
from finetune_operator.api.method import Optimizer
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import (
    DefaultedJobSpec,
    DefaultedProfileSpec,
    job_spec,
    profile_spec,
)
from finetune_operator.planning.defaults import BUILT_IN, CONSTRAINT_MODE
from finetune_operator.planning.errors import Refused, invalid_spec, naming_contact, with_contact
from finetune_operator.planning.merge import merge
from finetune_operator.planning.plan import IDENTITY, Findings, Plan
from finetune_operator.planning.plan_builder import Draft
from finetune_operator.planning.policy.job_checks import policy_problems, refused_by
from finetune_operator.planning.policy.limits import (
    bounds_of,
    found_problems,
    limit_problems,
    written_problems,
)
from finetune_operator.planning.policy.locations import ProfileFolders, run_folder_problem
from finetune_operator.planning.policy.profile_checks import check_profile, refuse_later_fields
from finetune_operator.planning.profile_choice import choose_profile
from finetune_operator.planning.resumption import refuse_folder_in_use, resumed_folder
from finetune_operator.planning.sections.chat_template import template_ref, with_chat_template
from finetune_operator.planning.slices.topology import NONE_TRIED
from finetune_operator.planning.source_job import source_name, with_source_model
from finetune_operator.planning.stored_plan import LIFECYCLE, StoredPlan, digest, identity


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedProfile:
    """A valid profile, and what it implies for every job that is admitted under it."""

    name: str
    hash: str
    document: Object
    """Its spec with an explicit mode, so that the default of a later version does not apply to its jobs."""
    spec: DefaultedProfileSpec
    """Model of ``document``."""
    defaults: Object
    """The built-in defaults under its own."""

    @classmethod
    def of(cls, profile: Object) -> Self:
        """Checks the profile. Raises Refused."""
        check_profile_object(profile)
        name = profile["metadata"]["name"]
        document = merge({"constraints": {"mode": CONSTRAINT_MODE}}, profile["spec"])
        return cls(
            name=name,
            hash=digest(profile["spec"]),
            document=document,
            spec=profile_spec(name, document),
            defaults=merge(BUILT_IN, document.get("defaults", {})),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A job that may run."""

    job: Object
    stored: StoredPlan
    plan: Plan
    """What :func:`replan` returns for job and stored plan until one of them changes."""


def admit(
    job: Object,
    profiles: Sequence[Object],
    template: Object | None = None,
    source: Object | None = None,
    neighbours: Sequence[Object] = (),
    *,
    checked: Callable[[Object], CheckedProfile] = CheckedProfile.of,
) -> Admission:
    """Chooses the profile, checks the job against it and fixes what must not change later. Raises Refused.

    Args:
        job: the FineTuneJob.
        profiles: all existing FineTuneProfiles.
        template: the ConfigMap with the job's chat template, if the job names one that exists.
        source: the FineTuneJob whose model the job starts from, if the job names one that exists.
        neighbours: FineTuneJobs of any namespace that have used the run folder from which the job resumes.
        checked: returns what :meth:`CheckedProfile.of` does, and may remember it.
    """
    parsed = _parsed(job)
    profile = checked(choose_profile(job, profiles))
    merged = merge(profile.defaults, job["spec"])
    with naming_contact(profile.document):
        _check_overrides(parsed)
        _refuse_unsuitable_overrides(job_spec(merged))
    if source_name(merged) == parsed.metadata.name:
        raise invalid_spec("spec.model.fromJob.name is the job's own name. Name the job to start from.")
    whole = with_source_model(with_chat_template(merged, template), source)
    with naming_contact(profile.document):
        broken = policy_problems(
            parsed, profile.name, profile.spec, job_spec(whole), merged=whole, base=profile.defaults
        )
        admission = _within_limits(
            lambda: _admission(job, profile, whole), profile.name, profile.spec, whole, broken
        )
    refuse_folder_in_use(job, neighbours)
    return admission


def _admission(job: Object, profile: CheckedProfile, spec: Object) -> Admission:
    """Returns the admission with a fixed global batch: it stays that of the first slice, whatever resources are edited
    to later."""
    first = StoredPlan.make(job, profile.name, profile.hash, profile.document, spec)
    draft = Draft.of(job, first)
    site, candidates = draft.sites(NONE_TRIED, None)
    stored = replace(
        first, spec=merge(first.spec, {"hyperparameters": {"globalBatchSize": site.global_batch}})
    )
    if not (draft.spec.resources.names_a_slice or draft.spec.hyperparameters.global_batch_size):
        # Other slices may suit the fixed batch than a batch that follows from each of them.
        return Admission(job=job, stored=stored, plan=Draft.of(job, stored).plan())
    return Admission(job=job, stored=stored, plan=Draft.of(job, stored).plan_on(site, candidates))


def _within_limits(
    admission: Callable[[], Admission],
    name: str,
    profile: DefaultedProfileSpec,
    merged: Object,
    broken: Sequence[str],
) -> Admission:
    """Returns the result of ``admission``.

    Raises Refused with everything that the profile ``name`` does not allow at once: the rules in ``broken``, limits,
    and the reason why there is no plan.
    """
    try:
        made = admission()
    except Refused as error:
        problems = [*broken, *written_problems(bounds_of(profile.constraints), merged)]
        if not problems:
            raise
        raise Refused(
            Reason.POLICY_VIOLATION, f"{refused_by(name, problems).message} {error.message}"
        ) from error
    if problems := [*broken, *limit_problems(made.plan, merged)]:
        raise refused_by(name, problems)
    return made


def judge_findings(plan: Plan, findings: Findings) -> Refused | None:
    """Returns why the profile does not allow what preflight found, or None if it does or preflight has not passed.

    Call it before anything is created that holds a slice.
    """
    problems = list(found_problems(plan, findings))
    return with_contact(refused_by(plan.profile_name, problems), plan.owner_of_profile) if problems else None


def may_resume(job: Object, profiles: Sequence[Object]) -> bool:
    """Returns whether the profile allows the job to resume from its run folder, so that its other users matter."""
    folder = resumed_folder(job["spec"])
    if folder is None:
        return False
    try:
        check_job(job)
        spec = check_profile_object(choose_profile(job, profiles))
    except Refused:
        return False
    storage = ProfileFolders.of(spec.storage, identity(job).namespace)
    return run_folder_problem("", folder, storage, spec.constraints.uris.write or ()) is None


def replan(
    job: Object,
    stored: StoredPlan,
    tried: Mapping[str, int] = NONE_TRIED,
    found: MemoryOutcome | None = None,
) -> Plan:
    """Returns the plan for the next attempt of an admitted job: identity as admitted, the rest from today's spec.

    Flavors that were ``tried`` without success come last; if the job names no slice, preflight's ``found`` decides it.
    Raises Refused if an edit requests what is not allowed or does not fit.
    """
    parsed = _parsed(job)
    name, base = stored.profile_name, merge(BUILT_IN, stored.profile.get("defaults", {}))
    with naming_contact(stored.profile):
        _check_overrides(parsed)
        draft = Draft.of(job, stored, found)
        merged = {**merge(base, job["spec"]), **_admitted_identity(job, base, stored)}
        broken = policy_problems(parsed, name, draft.profile, draft.spec, merged=merged, base=base)
        admission = _within_limits(
            lambda: Admission(job=job, stored=stored, plan=draft.plan(tried, found)),
            name,
            draft.profile,
            merged,
            broken,
        )
    return admission.plan


class Planner:
    """Makes each plan when it is asked for. The operator's own one remembers them (:mod:`reconcile.made_plans`)."""

    def checked(self, profile: Object) -> CheckedProfile:
        """Returns what a profile implies. Raises Refused."""
        return CheckedProfile.of(profile)

    def admitted(self, admission: Admission) -> None:
        """Takes note of an admission, whose plan need not be made again."""

    def plan(
        self, job: Object, stored: StoredPlan, tried: Mapping[str, int], found: MemoryOutcome | None
    ) -> tuple[Plan, Refused | None]:
        """Returns the plan of :func:`replan`; if it is refused, that of before the edit, and why. Raises Refused."""
        try:
            return replan(job, stored, tried, found), None
        except Refused as refused:
            steering = {name: job["spec"][name] for name in LIFECYCLE if name in job["spec"]}
            as_admitted = {**job, "spec": {**stored.spec, **steering}}
            # Another one, because the traceback holds what was planned, and this may be kept.
            why = Refused(refused.reason, refused.message)
            return Draft.of(as_admitted, stored, found).plan(tried, found), why


def _admitted_identity(job: Object, base: Object, stored: StoredPlan) -> Object:
    """Returns the sections that decide the result, as they were admitted, including the resolved place of the model.

    The global batch is included only if the job or the profile names it: rules do not apply to what follows from the
    slice.
    """
    admitted = {name: stored.spec[name] for name in IDENTITY}
    named = merge(base, {"hyperparameters": job["spec"].get("hyperparameters", {})}).get(
        "hyperparameters", {}
    )
    if "globalBatchSize" in named:
        return admitted
    numbers = {key: each for key, each in admitted["hyperparameters"].items() if key != "globalBatchSize"}
    batch = {key: named[key] for key in ("perDeviceBatchSize",) if key in named}
    return {**admitted, "hyperparameters": {**numbers, **batch}}


def check_job(job: Object) -> None:
    """Checks the schema, the engine settings that the job overrides and its own chat template. Raises Refused."""
    _check_overrides(_parsed(job))
    if template_ref(job["spec"]) is None:
        with_chat_template(job["spec"], None)


def _parsed(job: Object) -> FineTuneJob:
    """Returns the job's model. Raises Refused if it violates the schema."""
    try:
        return parse_job(job)
    except InvalidObject as error:
        raise invalid_spec(str(error)) from error


def _check_overrides(job: FineTuneJob) -> None:
    if faults := [str(fault) for fault in override_faults(job.spec.engine_overrides or {})]:
        raise invalid_spec(" ".join(faults))


def _refuse_unsuitable_overrides(spec: DefaultedJobSpec) -> None:
    """Raises Refused for overrides that do not suit the method. Only at admission: a running job continues."""
    given, method = spec.engine_overrides or {}, spec.method.type
    if given.get("num_vocab_tiling", "1").lstrip("+") != "1" and method in PREFERENCE_TYPES:
        raise invalid_spec(
            f"spec.engineOverrides.num_vocab_tiling: {method} needs whole logits, which a model with "
            "tiles does not return. Remove it.",
        )
    idle = sorted(name for name in given if name.startswith("adam_"))
    if idle and spec.hyperparameters.optimizer is Optimizer.SGD:
        raise invalid_spec(
            f"spec.engineOverrides.{idle[0]}: SGD does not read it. Remove it, or use AdamW.",
        )


def check_profile_object(profile: Object) -> DefaultedProfileSpec:
    """Checks a profile's schema, its constraints and what this version supports, as in its ``Valid`` condition.

    Returns its spec. Raises Refused.
    """
    name, plain = profile["metadata"]["name"], profile.get("spec")
    with naming_contact(plain if isinstance(plain, Mapping) else {}):
        try:
            parse_profile(profile)
        except InvalidObject as error:
            raise Refused(Reason.PROFILE_INVALID, f'profile "{name}": {error}') from error
        spec = profile_spec(name, profile["spec"])
        refuse_later_fields(name, spec)
        check_profile(name, spec)
    return spec
