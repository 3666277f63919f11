"""What takes too long: running altogether, waiting for nodes, starting up, and the next step of training."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure, Progress, Stage
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.times import stamp
from finetune_operator.planning.plan import Limits
from finetune_operator.planning.queueing import QUEUE_LABEL
from finetune_operator.rendering import TPU_STAGES

#: Reasons. Of an attempt that the operator ends, its record has them before.
DEADLINE_EXCEEDED = "DeadlineExceeded"
NO_CAPACITY = "NoCapacity"
STARTUP_TIMEOUT = "StartupTimeout"
HUNG = "Hung"


def ran(attempt: Attempt, now: datetime) -> float:
    """Seconds that its processes ran, by whoever saw most of it; 0 where nobody can tell any more.

    What was counted once stays counted: the trainer's own record begins after its imports, and pods go.
    """
    told, files = [0.0], attempt.files
    if files and files.result:
        told.append((files.result.finished - files.result.started).total_seconds())
    if span := children.running_span(attempt.pods):
        begun, ended = span
        told.append(((ended or now) - begun).total_seconds())
    if files and files.failure and files.failure.seconds:
        told.append(files.failure.seconds)
    return max(told)


def active_left(limits: Limits, attempts: Iterable[Attempt], now: datetime) -> float | None:
    """Seconds that the job may still run; None: as long as it likes."""
    if limits.active is None:
        return None
    return limits.active - sum(ran(attempt, now) for attempt in attempts)


def active_exceeded(limits: Limits) -> Failure:
    """The job's failure."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=DEADLINE_EXCEEDED,
        message=f"The stages have run for the {limits.active} s of spec.activeDeadlineSeconds.",
        fix="Raise spec.activeDeadlineSeconds and spec.retry.generation: training goes on from its last checkpoint.",
    )


def overdue(
    attempt: Attempt, limits: Limits, progress: Progress | None, capacity: str, now: datetime
) -> Failure | None:
    """The record of a live attempt that has come to nothing; it is to be ended then."""
    stage = attempt.key.stage
    if stage not in TPU_STAGES:
        return None
    if not attempt.running:
        since = _placed_since(attempt)
        if since is None or now - since <= timedelta(seconds=limits.pre_running):
            return None
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=NO_CAPACITY,
            message=f"{stage} waited for {capacity} capacity for the {limits.pre_running} s of "
            "spec.preRunningDeadlineSeconds.",
            saw=capacity,
            fix="Allow other kinds of capacity or another slice in spec.resources.",
        )
    return _silent(attempt, limits, progress, now) if stage is Stage.TRAIN else None


def next_due(attempt: Attempt, limits: Limits, now: datetime) -> float | None:
    """Seconds until an attempt that waits for nodes has waited too long."""
    since = _placed_since(attempt)
    if since is None or attempt.running or attempt.key.stage not in TPU_STAGES:
        return None
    return max(1.0, limits.pre_running - (now - since).total_seconds() + 1.0)


def passed_capacities(attempts: Sequence[Attempt]) -> frozenset[str]:
    """Kinds that were waited for in vain since the last attempt that ran."""
    passed: set[str] = set()
    for attempt in reversed([each for each in attempts if each.key.stage in TPU_STAGES]):
        noted = attempt.files.failure if attempt.files else None
        if noted and noted.reason == NO_CAPACITY:
            passed.add(noted.saw)
        elif not attempt.live:
            break
    return frozenset(passed)


def _placed_since(attempt: Attempt) -> datetime | None:
    """When it began to wait for nodes: waiting for quota is another thing. Of a restart inside a JobSet nobody tells;
    its place is kept for it."""
    if attempt.jobset is None or attempt.key.restart or children.deleting(attempt.jobset):
        return None
    queued = QUEUE_LABEL in attempt.jobset["metadata"].get("labels", {})
    if queued and attempt.jobset["spec"].get("suspend"):
        return None
    return children.let_go_at(attempt.jobset, queued=queued)


def _silent(attempt: Attempt, limits: Limits, progress: Progress | None, now: datetime) -> Failure | None:
    key, span = attempt.key, children.running_span(attempt.pods)
    # Where a queue has taken the slice away and given it again, the record is of the run before.
    fresh = progress is not None and (span is None or progress.updated >= span[0])
    if progress and fresh and (progress.attempt, progress.restart) == (key.number, key.restart):
        if now - progress.updated <= timedelta(seconds=limits.no_step):
            return None
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=HUNG,
            message=f"Training stands still: step {progress.step} of {progress.total_steps} was done at "
            f"{stamp(progress.updated)}, and nothing since for the {limits.no_step} s of "
            "spec.hangPolicy.noStepSeconds.",
            fix="It goes on from the last checkpoint. If steps take that long, raise spec.hangPolicy.noStepSeconds.",
        )
    if span is None or now - span[0] <= timedelta(seconds=limits.startup):
        return None
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=STARTUP_TIMEOUT,
        message=f"Training made no step in the {limits.startup} s of spec.hangPolicy.startupSeconds after its pods "
        "had started.",
        fix="If restoring and compiling take that long, raise spec.hangPolicy.startupSeconds.",
    )
