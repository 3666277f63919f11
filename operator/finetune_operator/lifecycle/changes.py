"""What changes from one status of a job to the next. Events and counters are made of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from finetune_contract import FailureClass
from finetune_operator.api import Condition, ConditionStatus, FineTuneJobStatus, Phase
from finetune_operator.api.status_stages import AttemptRecord, AttemptsStatus, StageStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionChange:
    """A condition that is new, has turned, or is not True for another reason than before."""

    before: Condition | None
    after: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """An attempt that has ended without success."""

    record: AttemptRecord
    failure_class: FailureClass
    number: int
    """Which of its ends of that kind it is: Kueue may evict an attempt more than once; it ends in any other way only
    once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnd:
    """A stage that has ended."""

    stage: StageStatus
    seconds: float
    """From the start of its first attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changes from one status of a job to the next."""

    before: FineTuneJobStatus
    after: FineTuneJobStatus
    conditions: tuple[ConditionChange, ...]
    attempts: tuple[AttemptEnd, ...]
    stages: tuple[StageEnd, ...]
    result: Phase | None
    """How the job has ended; None: it has not, or had ended so before."""


def changes(before: FineTuneJobStatus, after: FineTuneJobStatus) -> Changes:
    """Returns what changes between two statuses of a job."""
    ended = after.phase is not None and after.phase.finished and after.phase is not before.phase
    return Changes(
        before=before,
        after=after,
        conditions=tuple(_conditions(before.conditions or (), after.conditions or ())),
        attempts=tuple(_attempts(_history(before.attempts), _history(after.attempts))),
        stages=tuple(_stages(before.stages or (), after.stages or ())),
        result=after.phase if ended else None,
    )


def _conditions(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[ConditionChange]:
    known = {condition.type: condition for condition in before}
    for condition in after:
        old = known.get(condition.type)
        same = (
            old is not None
            and old.status == condition.status
            and (condition.status is ConditionStatus.TRUE or old.reason == condition.reason)
        )
        if not same:
            yield ConditionChange(before=old, after=condition)


def _attempts(before: Sequence[AttemptRecord], after: Sequence[AttemptRecord]) -> Iterator[AttemptEnd]:
    known = Counter(map(_which_end, before))
    seen = Counter[tuple[str, int, bool]]()
    for record in after:
        which = _which_end(record)
        seen[which] += 1
        if record.failure_class is not None and seen[which] > known[which]:
            yield AttemptEnd(record=record, failure_class=record.failure_class, number=seen[which])


def _stages(before: Sequence[StageStatus], after: Sequence[StageStatus]) -> Iterator[StageEnd]:
    known = {stage.name for stage in before if stage.completion_time is not None}
    for stage in after:
        if stage.name not in known and stage.start_time and stage.completion_time:
            seconds = (stage.completion_time - stage.start_time).total_seconds()
            yield StageEnd(stage=stage, seconds=max(0.0, seconds))


def _history(attempts: AttemptsStatus | None) -> Sequence[AttemptRecord]:
    return (attempts.history if attempts else None) or ()


def _which_end(record: AttemptRecord) -> tuple[str, int, bool]:
    return record.stage, record.attempt, record.failure_class is FailureClass.QUOTA
