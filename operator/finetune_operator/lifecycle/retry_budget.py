"""How many bad ends there were, how many may be, and how long to wait before the next try."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure, FailureClass, Progress, Stage, TrainOutcome
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import AttemptOutcome, AttemptResult
from finetune_operator.planning.plan import RetryLimits
from finetune_operator.planning.requests import MAX_ATTEMPT

#: Seconds before the first and at most before any further try.
_RETRY = (5.0, 300.0)
_INPUT = (15.0, 1800.0)

#: Bad ends in a row without a new checkpoint after which a training is given up: it would go on for ever.
MOST_STUCK = 10

type Judged = tuple[Attempt, AttemptResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """Bad ends over all stages, by who is charged."""

    preemption: int = 0
    infrastructure: int = 0
    user: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustedBudget:
    """One budget is used up."""

    reason: Reason = Reason.RETRIES_EXHAUSTED
    field: str
    """``spec.recovery.maxPreemptions``"""
    used: int
    allowed: int


def too_many_attempts(stage: Stage) -> Failure:
    """The job's failure where the stage needs another JobSet and no number is left for it."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=Reason.TOO_MANY_ATTEMPTS,
        message=f"{stage} has had JobSet number {MAX_ATTEMPT}, and there are no more numbers.",
        fix="Create a job of another name.",
    )


def waits_for_input(stage: Stage, verdict: AttemptResult) -> bool:
    """Preflight found an input missing: nobody is charged, and it is looked for again."""
    return (
        stage is Stage.PREFLIGHT
        and verdict.failure is not None
        and verdict.failure.code == ExitCode.INPUT_MISSING
    )


def count(judged: Iterable[Judged]) -> AttemptCounts:
    """Charge every bad end to its class."""
    charged = [
        verdict.failure_class
        for attempt, verdict in judged
        if verdict.ending is AttemptOutcome.FAILED and not waits_for_input(attempt.key.stage, verdict)
    ]
    return AttemptCounts(
        preemption=charged.count(FailureClass.PREEMPTION),
        infrastructure=charged.count(FailureClass.INFRASTRUCTURE),
        user=charged.count(FailureClass.USER),
    )


def exhausted(
    verdict: AttemptResult, counters: AttemptCounts, recovery: RetryLimits
) -> ExhaustedBudget | None:
    """The budget that this bad end has used up, if any."""
    if verdict.failure_class is FailureClass.PLATFORM:
        # The next attempt would be of the same image, and the budgets say nothing of that.
        return ExhaustedBudget(field="the number of such failures", used=1, allowed=0)
    field, used, allowed = {
        FailureClass.PREEMPTION: ("maxPreemptions", counters.preemption, recovery.preemptions),
        FailureClass.USER: ("maxUserRetries", counters.user, recovery.user),
    }.get(
        verdict.failure_class or FailureClass.INFRASTRUCTURE,
        ("maxInfrastructureRetries", counters.infrastructure, recovery.infrastructure),
    )
    if used <= allowed:
        return None
    return ExhaustedBudget(field=f"spec.recovery.{field}", used=used, allowed=allowed)


def stuck(stage_attempts: Sequence[Judged], progress: Progress | None) -> int:
    """How many of the last bad ends of a training came without a new checkpoint.

    An attempt without a record of its checkpoint may have saved one: where ``progress``, the newest record, names a
    checkpoint beyond all that are recorded, only the bad ends after the attempt that wrote it count.
    """
    last_moved = max((number for number, moved in enumerate(_moved(stage_attempts), 1) if moved), default=0)
    since = [
        attempt.key
        for attempt, verdict in stage_attempts[last_moved:]
        if verdict.ending is AttemptOutcome.FAILED
    ]
    best = max((_reached(attempt, verdict) for attempt, verdict in stage_attempts), default=0)
    if progress is not None and max([progress.start_step, *progress.checkpoints]) > best:
        since = [key for key in since if (key.number, key.restart) > (progress.attempt, progress.restart)]
    return len(since)


def retry_at(stage_attempts: Sequence[Judged]) -> datetime | None:
    """When the stage may be tried again after its last attempt; None: at once.

    The wait doubles with every bad end in a row. A preemption after progress is no reason to wait.
    """
    _, last = stage_attempts[-1]
    if last.ending is not AttemptOutcome.FAILED or last.finished is None:
        return None
    in_a_row = 0
    for (_, verdict), moved in zip(reversed(stage_attempts), reversed(_moved(stage_attempts)), strict=True):
        if verdict.ending is not AttemptOutcome.FAILED or verdict.failure_class is not last.failure_class:
            break
        if verdict.failure_class is FailureClass.PREEMPTION and moved:
            break
        in_a_row += 1
    if last.failure_class is FailureClass.PREEMPTION:
        # The first one waits for nobody: another node may be free.
        in_a_row -= 1
    if in_a_row <= 0:
        return None
    first, most = _INPUT if waits_for_input(stage_attempts[-1][0].key.stage, last) else _RETRY
    return last.finished + timedelta(seconds=min(most, first * 2.0 ** min(in_a_row - 1, 16)))


def _moved(stage_attempts: Sequence[Judged]) -> list[bool]:
    """Of each attempt, whether it left a checkpoint further on than those before it."""
    found, best = [], 0
    for attempt, verdict in stage_attempts:
        reached = _reached(attempt, verdict)
        found.append(reached > best)
        best = max(best, reached)
    return found


def _reached(attempt: Attempt, verdict: AttemptResult) -> int:
    """The step of the checkpoint that is recorded of the attempt; 0: none is."""
    result = attempt.files.result if attempt.files else None
    if result and isinstance(result.details, TrainOutcome):
        return result.details.step
    return (verdict.failure.checkpoint if verdict.failure else None) or 0
