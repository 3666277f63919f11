"""``finetune cancel``: jobs save, free their slices and end, which cannot be taken back."""

from collections.abc import Iterator, Sequence

from finetune_contract import Stage
from finetune_operator.cli import job_status
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.edit import Write, name_of
from finetune_operator.cli.printing import resource_name
from finetune_operator.objects import Object


async def jobs_to_cancel(connection: Connection, names: Sequence[str], *, write: Write) -> list[Object]:
    """Returns the jobs that can be cancelled, and reports those that have ended or are cancelled already.

    Raises CliError if one does not exist; nothing is reported then.
    """
    jobs = [await connection.job(name) for name in dict.fromkeys(names)]
    found = []
    for job in jobs:
        if job_status.ended(job) and not _ended_as_cancelled(job):
            phase = job_status.phase_of(job)
            write(f"{resource_name(job)} has ended ({phase}), so there is nothing to cancel")
        elif job["spec"].get("cancel"):
            write(f"{resource_name(job)} is cancelled already")
        else:
            found.append(job)
    return found


def consequences(jobs: Sequence[Object]) -> Iterator[str]:
    """Yields what cancelling does to each of the jobs, and what to do instead."""
    for job in jobs:
        yield f"{name_of(job)} ({job_status.phase_of(job)}): {_consequence(job)}."
    yield (
        "This cannot be taken back. `finetune suspend` also frees the slices, and `finetune resume` continues the jobs."
    )


async def cancel_jobs(connection: Connection, jobs: Sequence[Object], *, write: Write) -> None:
    """Sets spec.cancel. Raises CliError if the cluster does not know the field."""
    for job in jobs:
        edited = await connection.edit(name_of(job), {"spec": {"cancel": True}})
        if not edited["spec"].get("cancel"):
            raise CliError(
                f"The cluster's FineTuneJobs have no spec.cancel, so {name_of(job)} was not cancelled.",
                fix="Its operator is older than this command: ask for an upgrade. `finetune suspend` frees the slice.",
            )
        if job_status.phase_of(edited) in job_status.ENDED:
            phase = job_status.phase_of(edited)
            write(f"{resource_name(job)} had ended meanwhile ({phase}), so cancelling it has no effect")
            continue
        write(f"{resource_name(job)} cancelled: {_consequence(job)}")
        if folder := job_status.run_folder(job):
            write(f"  continue it in another job with spec.resumeFrom.runFolder: {folder}")


def running_stage(job: Object) -> Stage | None:
    """Returns the stage of which an attempt runs; None if nothing of the job runs."""
    status = job_status.status_of(job)
    running = {each.get("name") for each in status.get("stages") or () if each.get("phase") == "Running"}
    if status.get("phase") not in ("Validating", "Running"):
        return None
    return next((stage for stage in Stage if stage == status.get("stage") and stage in running), None)


def _consequence(job: Object) -> str:
    stage = running_stage(job)
    if stage is None:
        return "nothing of it runs, and the job ends"
    does = "saves a checkpoint and stops" if stage is Stage.TRAIN else "stops"
    freed = ", its slice is freed" if stage.on_tpu else ""
    return f"{stage} {does}{freed}, and the job ends"


def _ended_as_cancelled(job: Object) -> bool:
    failure = job_status.status_of(job).get("failure") or {}
    return bool(job["spec"].get("cancel")) and failure.get("reason") == "Cancelled"
