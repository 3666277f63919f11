"""What a job's object shows of its state. Pure."""

from finetune_operator.cli import text
from finetune_operator.objects import Object

#: Final phases.
ENDED = frozenset({"Succeeded", "Planned", "Failed"})


def status_of(job: Object) -> Object:
    """Returns the job's status; empty if the operator has not observed any generation of the job."""
    status: Object = job.get("status") or {}
    return status if int(status.get("observedGeneration", -1)) >= 0 else {}


def phase_of(job: Object) -> str:
    return str(status_of(job).get("phase") or "Pending")


def is_current(job: Object) -> bool:
    """Whether the status is that of the job's current generation."""
    generation = int(job.get("metadata", {}).get("generation", 0))
    return int(status_of(job).get("observedGeneration", -1)) >= generation


def ended(job: Object) -> bool:
    """Whether the job has ended, and has not been edited since."""
    return is_current(job) and phase_of(job) in ENDED


def run_folder(job: Object) -> str:
    """Returns the run folder of a job that has had an attempt; empty if it has had none."""
    status = status_of(job)
    folder = (status.get("resolved") or {}).get("runFolder") or ""
    return text.one_line(folder) if (status.get("attempts") or {}).get("total") else ""
