"""Everything that can be said against manifests without a cluster: schema and rules first, then the operator's, and for
jobs those of their profile where it is among the manifests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.cli.context import context_of, profile_for
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests import Object, kind_of, parse, read, shown_name
from finetune_operator.cli.validate import validate_text
from finetune_operator.planning import Plan, Refused, check_profile_object, profile_remarks
from finetune_operator.planning.admission import check_job
from finetune_operator.rendering import CpuPoolTooSmall, plan_offline
from finetune_operator.rendering.offline import offline_plan
from finetune_operator.rendering.scratch import pool_remarks

_NO_PROFILE = "a profile judges them where it is given with -f, too, or by `finetune plan --profile FILE`"
#: What a cluster would have told, by the reason why it is missing.
_OFFLINE: Mapping[str, str] = {
    Reason.CHAT_TEMPLATE_NOT_FOUND: "Without a cluster, put the ConfigMap into the same file.",
}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What there is to say of manifests, a line for each thing."""

    problems: list[str] = field(default_factory=list)
    """With file, place and what to do."""
    remarks: list[str] = field(default_factory=list)
    """What is in order, and may not be meant or was not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job that its profile allows."""

    plan: Plan
    jobsets: Sequence[dict[str, Any]]
    remark: str
    """What of it no manifest tells, so that it is not judged; empty: nothing."""


class NotPlanned(CliError):
    """``offline``: for want of something that a cluster has."""

    def __init__(self, message: str, *, fix: str, offline: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.offline = offline


def check_files(paths: Iterable[Path], namespace: str | None = None) -> CheckReport:
    """``namespace``: of jobs whose manifest names none."""
    checked = CheckReport()
    objects: list[tuple[str, Object]] = []
    for path in paths:
        name = shown_name(path)
        try:
            text = read(path)
        except CliError as error:
            checked.problems.append(error.message)
            continue
        problems = schema_problems(text, name)
        checked.problems.extend(problems)
        if not problems:  # The operator's own judgement presupposes the schema.
            objects += ((name, each) for each in placed(parse(text, name), namespace))
    profiles = [each for _, each in objects if kind_of(each) == "FineTuneProfile"]
    invalid = {
        profile["metadata"]["name"]
        for name, profile in objects
        if kind_of(profile) == "FineTuneProfile" and not _is_valid(name, profile, checked)
    }
    unjudged: dict[str, list[str]] = {}
    for name, job in objects:
        if kind_of(job) != "FineTuneJob":
            continue
        profile = profile_for(job, profiles)
        if profile is not None and profile["metadata"]["name"] in invalid:
            profile = None
        if why := _unjudged(name, job, profile, [each for _, each in objects], checked):
            unjudged.setdefault(why, []).append(job["metadata"]["name"])
    checked.remarks.extend(
        f"Of {', '.join(jobs)} only schema and rules were checked: {why}." for why, jobs in unjudged.items()
    )
    return checked


def _is_valid(file: str, profile: Object, checked: CheckReport) -> bool:
    try:
        check_profile_object(profile)
    except Refused as refused:
        checked.problems.append(_refusal(file, profile, refused))
        return False
    name = profile["metadata"]["name"]
    remarks = [*profile_remarks(profile["spec"]), *pool_remarks(profile["spec"])]
    checked.remarks.extend(f"{file}: {name}: {remark}" for remark in remarks)
    return True


def _unjudged(
    file: str, job: Object, profile: Object | None, objects: Sequence[Object], checked: CheckReport
) -> str:
    """Why no profile has judged the job; empty: one has."""
    if profile is None:
        try:
            check_job(job)
        except Refused as refused:
            checked.problems.append(_refusal(file, job, refused))
        return _NO_PROFILE
    try:
        found = planned(file, job, profile, objects)
        if found.remark:
            checked.remarks.append(f"{file}: {job['metadata']['name']}: {found.remark}")
    except NotPlanned as error:
        if error.offline:
            return error.message.rstrip(".")
        checked.problems.append(" ".join(filter(None, (error.message, error.fix))))
    return ""


def planned(file: str, job: Object, profile: Object, objects: Sequence[Object]) -> PlannedJob:
    """The job under the profile. Raises NotPlanned with the operator's own words where it would refuse.

    ``objects``: among which the ConfigMap of the job's chat template and the job that it starts from may be.
    """
    context = context_of(job, profile, objects)
    try:
        plan = offline_plan(job, profile, context.template, context.source)
        jobsets = [jobset for _, jobset in plan_offline(job, profile, context.template, context.source)]
    except Refused as error:
        fix = _OFFLINE.get(error.reason, "")
        raise NotPlanned(_refusal(file, job, error), fix=fix, offline=bool(fix)) from error
    except CpuPoolTooSmall as error:
        name = job["metadata"]["name"]
        raise NotPlanned(f"{file}: {name}: CpuPoolTooSmall: {error}", fix=error.fix) from error
    return PlannedJob(plan=plan, jobsets=jobsets, remark=context.remark)


def schema_problems(text: str, name: str) -> list[str]:
    """What the API server would refuse in the text of one file."""
    return [str(each) for each in validate_text(text, file=name)]


def in_namespace(job: Object, namespace: str | None) -> Object:
    """The job as ``kubectl -n`` would create it."""
    return {**job, "metadata": {"namespace": namespace, **job["metadata"]}} if namespace else job


def placed(objects: Sequence[Object], namespace: str | None) -> list[Object]:
    """``objects``, the jobs among them :func:`in_namespace`."""
    return [in_namespace(each, namespace) if kind_of(each) == "FineTuneJob" else each for each in objects]


def _refusal(file: str, item: Object, refused: Refused) -> str:
    return f"{file}: {item['metadata']['name']}: {refused.reason}: {refused.message}"
