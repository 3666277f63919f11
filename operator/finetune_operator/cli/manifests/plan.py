"""``finetune plan``: shows what jobs would do, without a cluster."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from finetune_operator.cli.errors import WRONG_ARGUMENT, CliError
from finetune_operator.cli.manifests.checks import no_objects, planned, profile_of, templates_of
from finetune_operator.cli.manifests.files import read_manifests, skipped
from finetune_operator.cli.manifests.plan_facts import FACTS_VERSION, facts
from finetune_operator.cli.manifests.plan_page import page
from finetune_operator.cli.manifests.plan_report import KnownInputs, PlanReport, report_of
from finetune_operator.cli.text import plain
from finetune_operator.cli.yaml_text import yaml_documents


@dataclass(frozen=True, slots=True)
class PlannedJobs:
    """The jobs of several manifests: the plans of those that could be planned, and why others could not."""

    jobs: list[PlanReport] = field(default_factory=list)
    errors: list[CliError] = field(default_factory=list)
    skipped: str = ""
    """A line that names objects of other kinds; empty if there are none."""


def planned_jobs(
    paths: Sequence[Path],
    profile_file: Path | None,
    namespace: str | None = None,
    *,
    recursive: bool = False,
    known: KnownInputs,
) -> PlannedJobs:
    """Plans all jobs in the files and folders ``paths``, each under its profile.

    Args:
        paths: manifests of jobs and of what they refer to.
        profile_file: manifests of profiles, instead of those among ``paths``.
        namespace: the namespace of jobs whose manifest names none.
        recursive: whether the folders below a folder are read, too.
        known: what is known of each of the jobs beside its manifest.

    Raises:
        CliError: the jobs have several models, and the config.json of one is given.
    """
    found = read_manifests(paths, namespace, recursive=recursive)
    if known.model and len({str(job.content["spec"]["model"]) for job in found.jobs}) > 1:
        raise CliError(
            "--model-config is for jobs of one model, and these have several.",
            fix="Plan the jobs of each model alone.",
            code=WRONG_ARGUMENT,
        )
    beside = read_manifests([profile_file]) if profile_file is not None else found
    made = PlannedJobs(skipped=skipped(found.others, templates_of(found)))
    problems = {**found.problems, **beside.problems}
    made.errors.extend(CliError("\n".join(map(plain, each))) for each in problems.values())
    profiles = [each.content for each in beside.profiles]
    if not found.jobs and not found.problems:
        fix = "Name the jobs' manifests with -f, and the profile's with -f or --profile."
        made.errors.append(CliError(no_objects(paths, "no FineTuneJob"), fix=fix))
    elif found.jobs and not profiles:
        where = paths if profile_file is None else [profile_file]
        valid = " without errors" if beside.problems else ""
        said = no_objects(where, f"no FineTuneProfile{valid}, which defines where jobs may run")
        fix = "Give --profile FILE; `kubectl get finetuneprofile NAME -o yaml` prints that of a cluster."
        made.errors.append(CliError(said, fix=fix))
    if not profiles:
        return made
    objects = [*(each.content for each in found.jobs), *found.others, *profiles]
    if beside is not found:
        objects += beside.others
    for job in found.jobs:
        try:
            found_plan = planned(job, profile_of(job, profiles), objects)
            report = report_of(found_plan, known, job.where)
        except CliError as error:
            made.errors.append(error)
        else:
            made.jobs.append(report)
            made.errors.extend(report.refusals)
    return made


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
