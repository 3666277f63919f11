"""``status.ledger``: what the ledger contains of a job."""

from collections.abc import Sequence

from finetune_contract import Stage
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.status_stages import AttemptRecord, CostStatus, LedgerStatus, RecordedAttempt
from finetune_operator.ledger.amounts import Amounts, text_of
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.lifecycle.attempts.own_attempts import ended_attempts
from finetune_operator.lifecycle.children.attempt_key import AttemptKey


def with_records(
    status: FineTuneJobStatus, due: Sequence[LedgerRecord], written: Sequence[LedgerRecord] = ()
) -> FineTuneJobStatus:
    """Returns the status that calls the written records recorded, and the usage at least what is recorded.

    ``due``: all that is due. ``written``: the first of them, as the ledger contains them: the last one may be of less
    usage, since it was written before a crash.
    """
    if not due and (status.ledger is None or not status.ledger.pending):
        return status
    recorded, known = Amounts.of(status.ledger), recorded_attempts(status)
    for record in written:
        recorded += Amounts.of_record(record)
        if record.ends_attempt:
            key = AttemptKey(record.stage, record.number, record.restart)
            known[record.stage] = max(key, known.get(record.stage, key))
    left = _left(due, written)
    ledger = LedgerStatus.model_construct(
        records=recorded_count(status) + len(written),
        chip_hours=text_of(recorded.chip_hours),
        amount=text_of(recorded.cost) if status.cost and status.cost.amount is not None else None,
        attempts=tuple(
            RecordedAttempt.model_construct(stage=key.stage, number=key.number, restart=key.restart or None)
            for key in sorted(known.values(), key=lambda key: key.stage.order)
        )
        or None,
        pending=len(left) or None,
        pending_day=left[0].day if left else None,
    )
    return status.model_copy(update={"ledger": ledger, "cost": _at_least(status.cost, recorded)})


def _left(due: Sequence[LedgerRecord], written: Sequence[LedgerRecord]) -> Sequence[LedgerRecord]:
    """Returns what is due after ``written``. What its last record lacks is due with the next one, if there is one."""
    later = due[len(written) :]
    if written:
        last, stored = due[len(written) - 1], written[-1]
        lacks_end = last.ends_attempt and not stored.ends_attempt
        if lacks_end or (not later and Amounts.of_record(last) - Amounts.of_record(stored)):
            return (last, *later)
    return later


def recorded_count(status: FineTuneJobStatus) -> int:
    """Returns the number of the job's records."""
    return status.ledger.records if status.ledger else 0


def recorded_attempts(status: FineTuneJobStatus) -> dict[Stage, AttemptKey]:
    """Returns the newest recorded attempt of each stage."""
    recorded = (status.ledger.attempts if status.ledger else None) or ()
    return {entry.stage: AttemptKey(entry.stage, entry.number, entry.restart or 0) for entry in recorded}


def is_recorded(key: AttemptKey, known: dict[Stage, AttemptKey]) -> bool:
    newest = known.get(key.stage)
    return newest is not None and (key.number, key.restart) <= (newest.number, newest.restart)


def last_attempt(status: FineTuneJobStatus) -> AttemptKey | None:
    """Returns the newest attempt that the status names; None if it names none."""
    named = [entry for entry in status.stages or () if entry.job_set]
    current = [entry for entry in named if entry.name is status.stage]
    for entry in current or reversed(named):
        if key := AttemptKey.of_jobset(entry.name, entry.job_set, entry.restart):
            return key
    return None


def history(status: FineTuneJobStatus) -> dict[AttemptKey, AttemptRecord]:
    """Returns the ends of attempts in the status, oldest first within a stage."""
    ended = (
        (AttemptKey.of_jobset(entry.stage, entry.job_set, entry.restart), entry)
        for entry in ended_attempts(status)
    )
    return {key: entry for key, entry in ended if key}


def _at_least(cost: CostStatus | None, recorded: Amounts) -> CostStatus | None:
    if cost is None:
        return None
    amounts = Amounts.of(cost)
    raised = amounts.at_least(recorded)
    if raised == amounts:
        return cost
    return cost.model_copy(
        update={
            "chip_hours": text_of(raised.chip_hours),
            "amount": None if cost.amount is None else text_of(raised.cost),
        }
    )
