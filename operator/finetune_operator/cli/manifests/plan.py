"""``finetune plan``: shows what jobs would do, under the profiles of manifests or of a cluster."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from finetune_operator.cli.errors import WRONG_ARGUMENT, CliError
from finetune_operator.cli.manifests.checks import no_objects, planned, profile_of, templates_of
from finetune_operator.cli.manifests.files import in_namespace, read_manifests, skipped
from finetune_operator.cli.manifests.plan_facts import FACTS_VERSION, facts
from finetune_operator.cli.manifests.plan_page import page
from finetune_operator.cli.manifests.plan_report import KnownInputs, PlanReport, report_of
from finetune_operator.cli.text import plain
from finetune_operator.cli.yaml_text import yaml_documents
from finetune_operator.objects import Object

if TYPE_CHECKING:
    from finetune_operator.cli.connect.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedProfiles:
    """The profiles among which those of jobs are chosen."""

    profiles: Sequence[Object]
    cluster: str = ""
    """Context and address of the cluster that has them; empty if they are in manifests."""
    namespace: str | None = None
    """That of jobs whose manifest names none."""


async def cluster_profiles(connection: "Connection") -> OfferedProfiles:
    """Returns the profiles of a cluster. Raises ClusterError and CliError."""
    context = f"context {connection.context}, " if connection.context else ""
    return OfferedProfiles(
        profiles=await connection.profiles(),
        cluster=f"{context}cluster {connection.server}",
        namespace=connection.namespace,
    )


@dataclass(frozen=True, slots=True)
class PlannedJobs:
    """The jobs of several manifests: the plans of those that could be planned, and why others could not."""

    jobs: list[PlanReport] = field(default_factory=list)
    errors: list[CliError] = field(default_factory=list)
    profiles: list[str] = field(default_factory=list)
    """The name of each job's profile."""
    cluster: str = ""
    """The cluster that has the profiles; empty if they are among the manifests."""
    skipped: str = ""
    """A line that names objects of other kinds; empty if there are none."""


def planned_jobs(
    paths: Sequence[Path],
    profile_file: Path | None,
    namespace: str | None = None,
    *,
    recursive: bool = False,
    known: KnownInputs,
    ask: Callable[[], OfferedProfiles | None] = lambda: None,
) -> PlannedJobs:
    """Plans all jobs in the files and folders ``paths``, each under its profile.

    Args:
        paths: manifests of jobs and of what they refer to.
        profile_file: manifests of profiles, instead of those among ``paths``.
        namespace: the namespace of jobs whose manifest names none.
        recursive: whether the folders below a folder are read, too.
        known: what is known of each of the jobs beside its manifest.
        ask: asks a cluster for its profiles if the manifests contain none; None: it does not answer.

    Raises:
        CliError: the jobs have several models, and the config.json of one is given; or what ``ask`` raises.
    """
    found = read_manifests(paths, namespace, recursive=recursive)
    if known.model and len({str(job.content["spec"]["model"]) for job in found.jobs}) > 1:
        raise CliError(
            "--model-config is for jobs of one model, and these have several.",
            fix="Plan the jobs of each model alone.",
            code=WRONG_ARGUMENT,
        )
    beside = read_manifests([profile_file]) if profile_file is not None else found
    offered = OfferedProfiles(profiles=[profile.content for profile in beside.profiles])
    if found.jobs and beside is found and not (offered.profiles or found.problems):
        offered = ask() or offered
    profiles = offered.profiles
    jobs = [replace(job, content=in_namespace(job.content, offered.namespace)) for job in found.jobs]
    made = PlannedJobs(skipped=skipped(found.others, templates_of(found)), cluster=offered.cluster)
    problems = {**found.problems, **beside.problems}
    made.errors.extend(CliError("\n".join(map(plain, lines))) for lines in problems.values())
    if not jobs and not found.problems:
        fix = "Name the jobs' manifests with -f, and the profile's with -f or --profile."
        made.errors.append(CliError(no_objects(paths, "no FineTuneJob"), fix=fix))
    if not profiles:
        if jobs:
            where = paths if profile_file is None else [profile_file]
            made.errors.append(_no_profile(where, valid=not beside.problems))
        return made
    objects = [*(job.content for job in jobs), *found.others, *profiles]
    if beside is not found:
        objects += beside.others
    for job in jobs:
        try:
            profile = profile_of(job, profiles)
            made.profiles.append(profile["metadata"]["name"])
            report = report_of(planned(job, profile, objects), known, job.where)
        except CliError as error:
            made.errors.append(error)
        else:
            made.jobs.append(report)
            made.errors.extend(report.refusals)
    return made


def _no_profile(paths: Sequence[Path], *, valid: bool) -> CliError:
    """Returns the error for manifests without a profile. ``valid``: whether they have no errors."""
    what = f"no FineTuneProfile{'' if valid else ' without errors'}, which defines where jobs may run"
    fix = "Give --profile FILE; `kubectl get finetuneprofile NAME -o yaml` prints that of a cluster."
    return CliError(no_objects(paths, what), fix=fix)


def shown_plans(jobs: Sequence[PlanReport], output: Literal["text", "json", "yaml"]) -> str:
    """Returns the plans as pages, as one JSON object, or as the YAML documents of all JobSets."""
    match output:
        case "yaml":
            return yaml_documents([jobset for each in jobs for jobset in each.job.jobsets]).rstrip("\n")
        case "json":
            plans = [facts(each) | {"jobSets": each.job.jobsets} for each in jobs]
            return json.dumps({"version": FACTS_VERSION, "plans": plans}, indent=2)
        case "text":
            return "\n\n\n".join("\n".join(page(each)) for each in jobs)
