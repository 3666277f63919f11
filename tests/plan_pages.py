"""What ``finetune plan`` prints about one job."""

from pathlib import Path

from finetune_operator.cli.manifests.plan import planned_jobs, shown_plans
from finetune_operator.cli.manifests.plan_report import KnownInputs


def plan_page(job: Path, profile: Path) -> str:
    """Returns the page. Raises CliError if the job is refused."""
    found = planned_jobs([job], profile, known=KnownInputs())
    for error in found.errors:
        raise error
    return shown_plans(found.jobs, "text")
