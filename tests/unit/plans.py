"""The page of ``finetune plan`` for tests of manifests and profiles."""

from pathlib import Path

from finetune_operator.cli.plan import planned_jobs, shown_plans
from finetune_operator.cli.plan_report import KnownInputs


def page_of(manifest: Path, profile: Path) -> str:
    """The pages of the jobs in a file. Raises CliError with the first reason why one is refused."""
    found = planned_jobs([manifest], profile, known=KnownInputs())
    if found.errors:
        raise found.errors[0]
    return shown_plans(found.jobs, "text")
