"""Counts unsuccessful attempts, compares them with their budgets, and computes the backoff before a retry."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure, FailureClass, Progress, Stage, TrainOutcome
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.classify import AttemptOutcome, AttemptResult
from finetune_operator.lifecycle.attempts.usage import run_seconds
from finetune_operator.planning.defaulted import DefaultedRecovery
from finetune_operator.planning.requests import MAX_ATTEMPT

#: Seconds before the first retry, and maximum before any further one; ``_INPUT`` applies to missing inputs, ``_ACCESS``
#: to refused access.
_RETRY = (5.0, 300.0)
_INPUT = (15.0, 1800.0)
_ACCESS = (30.0, 240.0)
#: Reasons of a refusal by storage, STS or IAM; the second is that of an attempt without a record.
_REFUSED = ("StoragePermissionDenied", "PermissionDenied")
#: A grant may take minutes to arrive: a stage is tried again until an attempt is refused this many seconds after the
#: first in a row, which is within 15 minutes. Tenants write the times of records, so the number is limited, too.
_GRANT_SECONDS = 600.0
_MOST_REFUSALS = 10

#: Consecutive unsuccessful attempts without a new checkpoint after which a training fails: it would never complete.
MOST_STUCK = 10

type ClassifiedAttempt = tuple[Attempt, AttemptResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """Number of unsuccessful attempts over all stages, by the class that is charged."""

    preemption: int = 0
    infrastructure: int = 0
    user: int = 0
    since_checkpoint: int = 0
    """Those of infrastructure since the last new checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExhaustedBudget:
    """A retry budget that is exhausted."""

    reason: Reason = Reason.RETRIES_EXHAUSTED
    field: str
    """The path of the budget, such as ``spec.recovery.maxPreemptions``."""
    used: int
    allowed: int


def too_many_attempts(stage: Stage) -> Failure:
    """Returns the failure of a job whose stage needs another JobSet although all numbers are used."""
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=Reason.TOO_MANY_ATTEMPTS,
        message=f"{stage} has had JobSet number {MAX_ATTEMPT}, the highest that is allowed.",
        fix="Create a job with another name.",
    )


def with_waits(classified: Iterable[ClassifiedAttempt]) -> list[ClassifiedAttempt]:
    """Marks the attempts after which a stage waits: preflight for a missing input, any stage for a grant."""
    marked: list[ClassifiedAttempt] = []
    total: Counter[Stage] = Counter()
    in_a_row: dict[Stage, list[AttemptResult]] = {}
    for attempt, result in classified:
        stage, failure = attempt.key.stage, result.failure
        if failure is not None and refused(failure):
            total[stage] += 1
            ended = result.finished or failure.written
            if ended and run_seconds(attempt, ended) >= _GRANT_SECONDS:
                in_a_row.pop(stage, None)  # it had access for so long: this is another refusal
            row = in_a_row.setdefault(stage, [])
            row.append(result)
            waits = total[stage] < _MOST_REFUSALS and _seconds_of(row) < _GRANT_SECONDS
        else:
            in_a_row.pop(stage, None)
            missing = failure is not None and failure.code == ExitCode.INPUT_MISSING
            waits = missing and stage is Stage.PREFLIGHT
        marked.append((attempt, replace(result, waits=waits)))
    return marked


def refused(failure: Failure) -> bool:
    """Whether the failure is one of access to storage that a grant would mend."""
    return failure.code == ExitCode.PERMISSION_DENIED and failure.reason in _REFUSED


def _seconds_of(refusals: Sequence[AttemptResult]) -> float:
    """Returns the seconds from the end of the first of these attempts to that of the last, as far as they are known."""
    times = [time for each in refusals if (time := each.finished or (each.failure and each.failure.written))]
    return (max(times) - min(times)).total_seconds() if times else 0.0


def count(classified: Sequence[ClassifiedAttempt]) -> AttemptCounts:
    """Returns the number of unsuccessful attempts of each class. ``classified``: as :func:`with_waits` returns them."""
    charged = _charged(classified)
    # The attempt that saved the checkpoint has failed after it.
    last_moved = max((number for number, moved in enumerate(_moved(classified)) if moved), default=0)
    return AttemptCounts(
        preemption=charged.count(FailureClass.PREEMPTION),
        infrastructure=charged.count(FailureClass.INFRASTRUCTURE),
        user=charged.count(FailureClass.USER),
        since_checkpoint=_charged(classified[last_moved:]).count(FailureClass.INFRASTRUCTURE),
    )


def _charged(classified: Iterable[ClassifiedAttempt]) -> list[FailureClass | None]:
    return [
        result.failure_class
        for _, result in classified
        if result.ending is AttemptOutcome.FAILED and not result.waits
    ]


def exhausted(
    result: AttemptResult, counters: AttemptCounts, recovery: DefaultedRecovery
) -> ExhaustedBudget | None:
    """Returns the budget that ``result`` has exceeded; None if it allows a retry."""
    if result.failure_class is FailureClass.PLATFORM:
        # The next attempt would use the same image, so no budget applies.
        return ExhaustedBudget(field="the limit for such failures", used=1, allowed=0)
    field, used, allowed = {
        FailureClass.PREEMPTION: ("maxPreemptions", counters.preemption, recovery.max_preemptions),
        FailureClass.USER: ("maxUserRetries", counters.user, recovery.max_user_retries),
    }.get(
        result.failure_class or FailureClass.INFRASTRUCTURE,
        (
            "maxInfrastructureRetries",
            counters.since_checkpoint if recovery.renewed_by else counters.infrastructure,
            recovery.max_infrastructure_retries,
        ),
    )
    if used <= allowed:
        return None
    return ExhaustedBudget(field=f"spec.recovery.{field}", used=used, allowed=allowed)


def stuck(stage_attempts: Sequence[ClassifiedAttempt], progress: Progress | None) -> int:
    """Returns the number of unsuccessful attempts at training since the last new checkpoint.

    An attempt without a record of its checkpoint may have saved one: if ``progress``, the newest record, names a later
    checkpoint than all recorded ones, only the attempts after the one that wrote it count.
    """
    last_moved = max((number for number, moved in enumerate(_moved(stage_attempts), 1) if moved), default=0)
    since = [
        attempt.key
        for attempt, result in stage_attempts[last_moved:]
        if result.ending is AttemptOutcome.FAILED
    ]
    best = max((_reached(attempt, result) for attempt, result in stage_attempts), default=0)
    if progress is not None and max([progress.start_step, *progress.checkpoints]) > best:
        since = [key for key in since if (key.number, key.restart) > (progress.attempt, progress.restart)]
    return len(since)


def retry_at(stage_attempts: Sequence[ClassifiedAttempt]) -> datetime | None:
    """Returns when the stage may be tried again after its last attempt; None: at once.

    The wait doubles with every consecutive unsuccessful attempt. After a preemption with progress there is no wait.
    """
    _, last = stage_attempts[-1]
    if last.ending is not AttemptOutcome.FAILED or last.finished is None:
        return None
    in_a_row = 0
    for (_, result), moved in zip(reversed(stage_attempts), reversed(_moved(stage_attempts)), strict=True):
        if result.ending is not AttemptOutcome.FAILED or result.failure_class is not last.failure_class:
            break
        if result.failure_class is FailureClass.PREEMPTION and moved:
            break
        in_a_row += 1
    if last.failure_class is FailureClass.PREEMPTION:
        # No wait after the first one: another node may be available.
        in_a_row -= 1
    if in_a_row <= 0:
        return None
    first, most = _RETRY
    if last.waits and last.failure is not None:
        first, most = _ACCESS if refused(last.failure) else _INPUT
    return last.finished + timedelta(seconds=min(most, first * 2.0 ** min(in_a_row - 1, 16)))


def _moved(stage_attempts: Sequence[ClassifiedAttempt]) -> list[bool]:
    """Returns for each attempt whether it saved a later checkpoint than those before it."""
    found, best = [], 0
    for attempt, result in stage_attempts:
        reached = _reached(attempt, result)
        found.append(reached > best)
        best = max(best, reached)
    return found


def _reached(attempt: Attempt, result: AttemptResult) -> int:
    """Returns the step of the attempt's recorded checkpoint; 0 if none is recorded, or the stage saves none."""
    if attempt.key.stage is not Stage.TRAIN:
        return 0
    stage_result = attempt.result
    if stage_result and isinstance(stage_result.details, TrainOutcome):
        return stage_result.details.step
    return (result.failure.checkpoint if result.failure else None) or 0
