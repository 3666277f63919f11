"""Checks manifests without a cluster: schema and CEL rules first, then the operator's own checks.

A job is also checked against its profile if that is among the manifests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests.files import ManifestSet, is_stdin, of_kind, read_manifests, skipped
from finetune_operator.cli.manifests.validate import NONE_OF_OURS, USE_API_VERSION, Manifest
from finetune_operator.objects import Object
from finetune_operator.planning import (
    Admission,
    Plan,
    Refused,
    check_profile_object,
    choose_profile,
    profile_remarks,
)
from finetune_operator.planning.admission import check_job
from finetune_operator.planning.sections.chat_template import template_ref
from finetune_operator.planning.source_job import source_name
from finetune_operator.rendering import CpuPoolTooSmall
from finetune_operator.rendering.offline import (
    first_jobsets,
    foreseen_source,
    offline_admission,
    unknown_source,
)
from finetune_operator.rendering.scratch import pool_remarks

_NO_PROFILE = "pass their profile with -f as well, or use `finetune plan --profile FILE`"
#: How to supply what only a cluster has, by the reason of the refusal.
_OFFLINE: Mapping[str, str] = {
    Reason.CHAT_TEMPLATE_NOT_FOUND: "Without a cluster, pass the ConfigMap with -f as well.",
}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Results of checking manifests, one line each."""

    problems: dict[str, list[str]]
    """Errors with file, location and remedy, by file, of each file that contains a job or a profile or cannot be read.
    """
    remarks: list[str] = field(default_factory=list)
    """Notes on valid parts that may be unintended, and on parts that were not checked."""

    @property
    def faulty(self) -> int:
        """Number of files with a problem."""
        return sum(bool(each) for each in self.problems.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """The plan of a job that its profile allows."""

    admission: Admission
    plan: Plan
    jobsets: Sequence[dict[str, Any]]
    remark: str
    """The part of the job that the manifests do not determine, so that it was not checked. Empty if there is none."""


class NotPlanned(CliError):
    """A job cannot be planned. ``offline`` is whether only because something is missing that a cluster has."""

    def __init__(self, message: str, *, fix: str, offline: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.offline = offline


def check_files(
    paths: Sequence[Path], namespace: str | None = None, *, recursive: bool = False
) -> CheckReport:
    """Checks the manifests in all files and folders. The arguments are those of :func:`read_manifests`.

    Raises CliError if there is no job and no profile.
    """
    found = read_manifests(paths, namespace, recursive=recursive)
    checked = CheckReport(problems={file: list(found.problems.get(file, ())) for file in found.files})
    if not found.files:
        raise CliError(no_objects(paths, NONE_OF_OURS), fix=USE_API_VERSION)
    checked.remarks.extend(found.repeated)
    invalid = {each.name for each in found.profiles if not _is_valid(each, checked)}
    profiles = [each.content for each in found.profiles]
    unchecked: dict[str, list[str]] = {}
    for job in found.jobs:
        try:
            profile = profile_of(job, profiles) if profiles else None
        except NotPlanned as error:
            if not error.offline:
                checked.problems[job.file].append(error.message)
                continue
            profile = None
        if profile is not None and profile["metadata"]["name"] in invalid:
            profile = None
        if why := _why_unchecked(job, profile, found.objects, checked):
            unchecked.setdefault(why, []).append(job.name)
    checked.remarks.extend(
        f"Of {', '.join(jobs)} only schema and rules were checked: {why}." for why, jobs in unchecked.items()
    )
    if line := skipped(found.others, templates_of(found)):
        checked.remarks.append(line)
    return checked


def no_objects(paths: Sequence[Path], kinds: str) -> str:
    """Returns the message for files that contain none of the wanted objects."""
    names = ", ".join("stdin" if is_stdin(path) else str(path) for path in paths)
    return f"{names}: contain{'s' if len(paths) == 1 else ''} {kinds}."


def templates_of(found: ManifestSet) -> list[Object]:
    """Returns the ConfigMaps with the jobs' chat templates."""
    templates = (template_of(job.content, found.others) for job in found.jobs)
    return [each for each in templates if each is not None]


def _is_valid(profile: Manifest, checked: CheckReport) -> bool:
    try:
        check_profile_object(profile.content)
    except Refused as refused:
        checked.problems[profile.file].append(_refusal(profile, refused))
        return False
    spec = profile.content["spec"]
    remarks = [*profile_remarks(spec), *pool_remarks(spec)]
    checked.remarks.extend(f"{profile.where}: {profile.name}: {remark}" for remark in remarks)
    return True


def _why_unchecked(
    job: Manifest, profile: Object | None, objects: Sequence[Object], checked: CheckReport
) -> str:
    """Checks one job. Returns why it was not checked against a profile; empty if it was."""
    if profile is None:
        try:
            check_job(job.content)
        except Refused as refused:
            checked.problems[job.file].append(_refusal(job, refused))
        return _NO_PROFILE
    try:
        found = planned(job, profile, objects)
        if found.remark:
            checked.remarks.append(f"{job.where}: {job.name}: {found.remark}")
    except NotPlanned as error:
        if error.offline:
            return error.message.rstrip(".")
        checked.problems[job.file].append(" ".join(filter(None, (error.message, error.fix))))
    return ""


def profile_of(job: Manifest, profiles: Sequence[Object]) -> Object:
    """Returns the one of all profiles that the operator would choose. Raises NotPlanned if it would choose none."""
    try:
        return choose_profile(job.content, profiles)
    except Refused as error:
        offline = error.reason is Reason.PROFILE_NOT_FOUND
        raise NotPlanned(_refusal(job, error), fix="", offline=offline) from error


def planned(job: Manifest, profile: Object, objects: Sequence[Object]) -> PlannedJob:
    """Plans the job under the profile. Raises NotPlanned with the operator's message if the operator would refuse it.

    ``objects`` may include the ConfigMap of the job's chat template and the job that it starts from.
    """
    context = context_of(job.content, profile, objects)
    try:
        admission = offline_admission(job.content, profile, context.template, context.source)
        plan = admission.plan
        jobsets = [jobset for _, jobset in first_jobsets(plan)]
    except Refused as error:
        fix = _OFFLINE.get(error.reason, "")
        raise NotPlanned(_refusal(job, error), fix=fix, offline=bool(fix)) from error
    except CpuPoolTooSmall as error:
        message = f"{job.where}: {job.name}: CpuPoolTooSmall: {error}"
        raise NotPlanned(message, fix=error.fix) from error
    return PlannedJob(admission=admission, plan=plan, jobsets=jobsets, remark=context.remark)


def _refusal(item: Manifest, refused: Refused) -> str:
    return f"{item.where}: {item.name}: {refused.reason}: {refused.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestContext:
    """The objects that checking a job requires besides its profile."""

    template: Object | None
    """The ConfigMap of the job's chat template. None if there is none."""
    source: Object | None
    """The job that this job starts from. None if it starts from none."""
    remark: str = ""
    """Why the parts that depend on that job's model are not checked. Empty if they are."""


def context_of(
    job: Object, profile: Object, objects: Sequence[Object], below: Sequence[str] = ()
) -> ManifestContext:
    """Finds a job's context among ``objects``. ``below`` names the jobs that start from this one."""
    template, name = template_of(job, objects), source_name(job["spec"])
    if name is None:
        return ManifestContext(template=template, source=None)
    source = next(
        (each for each in of_kind(objects, "FineTuneJob") if _id(each) == (_id(job)[0], name)), None
    )
    above = [*below, job["metadata"]["name"]]
    if source is None:
        why = "is not among the manifests"
    elif name in above:
        why = "starts from this job"
    else:
        try:
            its_profile = choose_profile(source, of_kind(objects, "FineTuneProfile"))
            given = context_of(source, its_profile, objects, above)
            plan = offline_admission(source, its_profile, given.template, given.source).plan
        except Refused as refused:
            why = f"is itself refused ({refused.reason})"
        else:
            if not given.remark:
                return ManifestContext(template=template, source=foreseen_source(plan))
            why = "starts from a job that is only partly known"
    return ManifestContext(
        template=template,
        source=unknown_source(job, profile),
        remark=f'spec.model.fromJob: FineTuneJob "{name}" {why}. Everything but its model was checked.',
    )


def _id(job: Object) -> tuple[str, str]:
    return job["metadata"].get("namespace") or "default", job["metadata"]["name"]


def template_of(job: Object, objects: Sequence[Object]) -> Object | None:
    """Returns the ConfigMap with the job's chat template; None if the job names none or it is not among the objects."""
    name = (template_ref(job["spec"]) or {}).get("name")
    maps = (item for item in objects if item.get("kind") == "ConfigMap")
    return next((item for item in maps if (item.get("metadata") or {}).get("name") == name), None)
