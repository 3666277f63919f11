"""``finetune suspend --all``: an emergency stop of all live jobs of a namespace, or of the cluster."""

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import batched, groupby

from finetune_contract import Stage
from finetune_operator.cli import job_status
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.edit import Write, running_stage
from finetune_operator.cluster.port import ClusterError, NotFound
from finetune_operator.objects import Object

#: Edits at the same time.
_AT_ONCE = 16
#: Names in one command that resumes jobs.
_NAMES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A job that can be suspended."""

    namespace: str
    name: str
    stage: Stage | None
    """The stage that runs now; None: nothing of the job runs."""

    @property
    def order(self) -> tuple[bool, str, str]:
        """Slices are freed first."""
        return not (self.stage and self.stage.on_tpu), self.namespace, self.name


async def live_jobs(connection: Connection, *, everywhere: bool, selector: str | None) -> list[LiveJob]:
    """Returns the jobs that have not ended and are neither suspended nor cancelled, those with a slice first."""
    found = [
        LiveJob(
            namespace=job["metadata"]["namespace"], name=job["metadata"]["name"], stage=running_stage(job)
        )
        async for job in connection.jobs(everywhere=everywhere, selector=selector)
        if _live(job)
    ]
    return sorted(found, key=lambda job: job.order)


def consequences(jobs: Sequence[LiveJob]) -> Iterator[str]:
    """Yields what suspending does to the jobs together."""
    namespaces = len({job.namespace for job in jobs})
    yield f"{_jobs(len(jobs))} in {namespaces} {'namespace' if namespaces == 1 else 'namespaces'} would be suspended:"
    trained = sum(job.stage is Stage.TRAIN for job in jobs)
    begun = sum(job.stage is not None for job in jobs) - trained
    waiting = len(jobs) - trained - begun
    if trained:
        yield f"  {trained} in training, which saves a checkpoint and continues from it later"
    if begun:
        yield f"  {begun} in another stage, which begins again later"
    if waiting:
        yield f"  {waiting} of which nothing runs, which lose their place in a queue"


def resume_commands(jobs: Sequence[LiveJob], options: Sequence[str]) -> Iterator[str]:
    """Yields the commands that resume the jobs. ``options`` select the cluster and the user."""
    by_namespace = groupby(sorted((job.namespace, job.name) for job in jobs), key=lambda each: each[0])
    for namespace, found in by_namespace:
        for names in batched((name for _, name in found), _NAMES):
            yield shlex.join(["finetune", "resume", *options, "-n", namespace, *names])


async def suspend_all(
    connection: Connection, jobs: Sequence[LiveJob], *, write: Write, report: Write
) -> None:
    """Writes the commands that resume the jobs, then sets spec.suspend of each, and reports how many are suspended.

    The commands come first and name all jobs: also one whose edit takes effect without a response, and those that
    are edited before an interruption. To resume a job that was not suspended has no effect.

    A job that fails to be edited keeps no other one from being suspended. Raises CliError at the end if there is one;
    jobs that were deleted meanwhile are none.
    """
    if jobs:
        report(f"Suspending {_jobs(len(jobs))}. The commands on standard output resume them:")
    for command in resume_commands(jobs, connection.options):
        write(command)
    places, failed = asyncio.Semaphore(_AT_ONCE), list[str]()

    async def suspended(job: LiveJob) -> bool:
        async with places:
            try:
                await connection.edit(job.name, {"spec": {"suspend": True}}, namespace=job.namespace)
            except NotFound:
                return False
            except ClusterError as error:
                failed.append(f"{job.namespace}/{job.name}: {error}")
                return False
            return True

    done = await asyncio.gather(*map(suspended, jobs))
    report(f"{_jobs(sum(done))} suspended.")
    if failed:
        raise CliError(
            f"The edit of {len(failed)} of {_jobs(len(jobs))} failed. The first: {failed[0]}",
            fix="Run the command again, with >> if its output goes to a file: it leaves out what is suspended.",
        )


def _live(job: Object) -> bool:
    spec = job["spec"]
    # planOnly is no exception: it can be set while a training runs, and does not stop it.
    return not (job_status.ended(job) or spec.get("suspend") or spec.get("cancel"))


def _jobs(number: int) -> str:
    return f"{number} {'job' if number == 1 else 'jobs'}"
