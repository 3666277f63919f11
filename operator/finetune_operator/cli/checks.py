"""Checks manifests without a cluster: schema and CEL rules first, then the operator's own checks.

A job is also checked against its profile if that is among the manifests.
"""

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

_NO_PROFILE = "pass their profile with -f as well, or use `finetune plan --profile FILE`"
#: How to supply what only a cluster has, by the reason of the refusal.
_OFFLINE: Mapping[str, str] = {
    Reason.CHAT_TEMPLATE_NOT_FOUND: "Without a cluster, put the ConfigMap into the same file.",
}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Results of checking manifests, one line each."""

    problems: list[str] = field(default_factory=list)
    """Errors with file, location and remedy."""
    remarks: list[str] = field(default_factory=list)
    """Notes on valid parts that may be unintended, and on parts that were not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """The plan of a job that its profile allows."""

    plan: Plan
    jobsets: Sequence[dict[str, Any]]
    remark: str
    """The part of the job that the manifests do not determine, so that it was not checked. Empty if there is none."""


class NotPlanned(CliError):
    """A job cannot be planned. ``offline`` is whether only because something is missing that a cluster has."""

    def __init__(self, message: str, *, fix: str, offline: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.offline = offline


def check_files(paths: Iterable[Path], namespace: str | None = None) -> CheckReport:
    """Checks the manifests in all files. ``namespace`` applies to jobs whose manifest names none."""
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
        if not problems:  # The operator's own checks require a valid schema.
            objects += ((name, each) for each in placed(parse(text, name), namespace))
    profiles = [each for _, each in objects if kind_of(each) == "FineTuneProfile"]
    invalid = {
        profile["metadata"]["name"]
        for name, profile in objects
        if kind_of(profile) == "FineTuneProfile" and not _is_valid(name, profile, checked)
    }
    unchecked: dict[str, list[str]] = {}
    for name, job in objects:
        if kind_of(job) != "FineTuneJob":
            continue
        profile = profile_for(job, profiles)
        if profile is not None and profile["metadata"]["name"] in invalid:
            profile = None
        if why := _why_unchecked(name, job, profile, [each for _, each in objects], checked):
            unchecked.setdefault(why, []).append(job["metadata"]["name"])
    checked.remarks.extend(
        f"Of {', '.join(jobs)} only schema and rules were checked: {why}." for why, jobs in unchecked.items()
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


def _why_unchecked(
    file: str, job: Object, profile: Object | None, objects: Sequence[Object], checked: CheckReport
) -> str:
    """Checks one job. Returns why it was not checked against a profile; empty if it was."""
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
    """Plans the job under the profile. Raises NotPlanned with the operator's message if the operator would refuse it.

    ``objects`` may include the ConfigMap of the job's chat template and the job that it starts from.
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
    """Returns what the API server would reject in the text of one file."""
    return [str(each) for each in validate_text(text, file=name)]


def in_namespace(job: Object, namespace: str | None) -> Object:
    """Returns the job as ``kubectl -n`` would create it."""
    return {**job, "metadata": {"namespace": namespace, **job["metadata"]}} if namespace else job


def placed(objects: Sequence[Object], namespace: str | None) -> list[Object]:
    """Returns ``objects`` with :func:`in_namespace` applied to the jobs among them."""
    return [in_namespace(each, namespace) if kind_of(each) == "FineTuneJob" else each for each in objects]


def _refusal(file: str, item: Object, refused: Refused) -> str:
    return f"{file}: {item['metadata']['name']}: {refused.reason}: {refused.message}"
