"""Changes of jobs' lifecycle fields, each an edit of the spec that anyone could make with kubectl."""

from collections.abc import Callable, Iterator, Sequence

from finetune_contract import Stage
from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.printing import resource_name
from finetune_operator.cluster.port import ClusterError, Conflict
from finetune_operator.objects import Object

type Write = Callable[[str], None]

#: How a cancelled job continues.
_CONTINUE = (
    "Another job continues it: spec.resumeFrom.runFolder is the run folder that `finetune status` shows."
)


async def suspend_jobs(connection: Connection, names: Sequence[str], *, write: Write) -> None:
    """Sets spec.suspend. Raises CliError if a job has ended, is cancelled or does not exist; none is changed then."""
    jobs = [await connection.job(name) for name in names]
    for job in jobs:
        if job_status.ended(job):
            phase = job_status.phase_of(job)
            raise CliError(f"{name_of(job)} has ended ({phase}), so there is nothing to suspend.")
        if job["spec"].get("cancel"):
            raise CliError(f"{name_of(job)} is cancelled and ends, so there is nothing to suspend.")
    for job in jobs:
        if job["spec"].get("suspend"):
            write(f"{resource_name(job)} is suspended already")
        else:
            await connection.edit(name_of(job), {"spec": {"suspend": True}})
            write(f"{resource_name(job)} suspended: a stage that runs saves and ends first")


async def resume_jobs(connection: Connection, names: Sequence[str], *, write: Write) -> None:
    """Clears spec.suspend of every job that can be resumed.

    Raises CliError at the end if a job waits for something else, is cancelled, does not exist or fails to be edited;
    the error of the only such job is raised as it is.
    """
    failed = dict[str, CliError | ClusterError]()
    for name in names:
        try:
            write(await _resumed(connection, name))
        except (CliError, ClusterError) as error:
            failed[name] = error
    if len(failed) == 1:
        raise failed.popitem()[1]
    if failed:
        reasons = "".join(f"\n  {name}: {_reason(error)}" for name, error in failed.items())
        raise CliError(f"{len(failed)} of {len(names)} jobs were not resumed:{reasons}")


async def _resumed(connection: Connection, name: str) -> str:
    """Resumes the job, and returns what became of it. Raises CliError and ClusterError."""
    job = await connection.job(name)
    if job["spec"].get("cancel"):
        raise CliError(f"{name} is cancelled and cannot be resumed.", fix=_CONTINUE)
    if job["spec"].get("suspend"):
        await connection.edit(name, {"spec": {"suspend": False}})
        return f"{resource_name(job)} resumed"
    if job_status.phase_of(job) == "Suspended":
        raise CliError(
            f"{name} is not suspended by spec.suspend: "
            f"{text.one_line(job_status.status_of(job).get('summary', ''))}",
            fix=f"`finetune status {name}` shows what it waits for.",
        )
    return f"{resource_name(job)} is not suspended"


def _reason(error: CliError | ClusterError) -> str:
    fix = error.fix if isinstance(error, CliError) else ""
    return text.one_line(f"{error} {fix}")


async def retry_jobs(
    connection: Connection, names: Sequence[str], from_stage: Stage | None, *, write: Write
) -> None:
    """Raises spec.retry.generation by one. Raises CliError if a job has nothing to retry; none is changed then."""
    jobs = [await connection.job(name) for name in names]
    for job in jobs:
        phase = job_status.phase_of(job)
        if job["spec"].get("cancel"):
            raise CliError(f"{name_of(job)} is cancelled and cannot be retried.", fix=_CONTINUE)
        if not job_status.ended(job):
            raise CliError(
                f"{name_of(job)} has not ended ({phase}).",
                fix="It retries faults by itself; `finetune watch` follows it.",
            )
        if phase != "Failed" and from_stage is None:
            raise CliError(
                f"{name_of(job)} has not failed ({phase}).",
                fix="To run stages again, name the first one: --from-stage Evaluate.",
            )
    for job in jobs:
        given = (job["spec"].get("retry") or {}).get("generation") or 0
        done = job_status.status_of(job).get("retryGeneration") or 0
        retry = {"generation": max(given, done) + 1, "fromStage": from_stage}
        try:
            await connection.edit(
                name_of(job),
                {
                    "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]},
                    "spec": {"retry": retry},
                },
            )
        except Conflict as error:
            raise CliError(
                f"{name_of(job)} was changed meanwhile, so it was not retried.", fix="Run the command again."
            ) from error
        stage = from_stage or "the stage that failed"
        write(f"{resource_name(job)} retries from {stage} (generation {retry['generation']})")


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


def name_of(job: Object) -> str:
    return str(job["metadata"]["name"])
