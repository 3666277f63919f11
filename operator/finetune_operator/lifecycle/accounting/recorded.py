"""``status.ledger``: what the ledger contains of a job."""

from collections.abc import Sequence

from finetune_contract import Stage
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.status_stages import AttemptRecord, CostStatus, LedgerStatus, RecordedAttempt
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord
from finetune_operator.lifecycle.accounting.amounts import Amounts, text_of
from finetune_operator.lifecycle.attempts.own_attempts import ended_attempts
from finetune_operator.lifecycle.children.attempt_key import AttemptKey


def with_records(
    status: FineTuneJobStatus, due: Sequence[LedgerRecord], written: Sequence[LedgerRecord] = ()
) -> FineTuneJobStatus:
    """Returns the status that calls the written records recorded, and the usage at least what is recorded.

    ``written``: the first of the due records, as the ledger contains them.
    """
    recorded, known = Amounts.of(status.ledger), recorded_attempts(status)
    left = due[len(written) :]
    # Before a crash, a record of the day may have taken the name: the end of the attempt remains to be recorded.
    replaced = sum(
        each.ends_attempt and not found.ends_attempt for each, found in zip(due, written, strict=False)
    )
    pending = replaced + sum(each.outcome is not LedgerOutcome.RUNNING for each in left)
    kept = status.ledger.pending_day if status.ledger and not due else None
    day = min((each.day for each in left), default=kept)
    for record in written:
        recorded += Amounts.of_record(record)
        if record.ends_attempt:
            key = AttemptKey(record.stage, record.number, record.restart)
            known[record.stage] = max(key, known.get(record.stage, key))
    if not due and (status.ledger is None or not status.ledger.pending):
        return status
    ledger = LedgerStatus.model_construct(
        chip_hours=text_of(recorded.chip_hours),
        amount=text_of(recorded.cost) if status.cost and status.cost.amount is not None else None,
        attempts=tuple(
            RecordedAttempt.model_construct(
                stage=each.stage, number=each.number, restart=each.restart or None
            )
            for each in sorted(known.values(), key=lambda each: each.stage.order)
        )
        or None,
        pending=pending or None,
        pending_day=day,
    )
    return status.model_copy(update={"ledger": ledger, "cost": _at_least(status.cost, recorded)})


def recorded_attempts(status: FineTuneJobStatus) -> dict[Stage, AttemptKey]:
    """Returns the newest recorded attempt of each stage."""
    recorded = (status.ledger.attempts if status.ledger else None) or ()
    return {each.stage: AttemptKey(each.stage, each.number, each.restart or 0) for each in recorded}


def is_recorded(key: AttemptKey, known: dict[Stage, AttemptKey]) -> bool:
    newest = known.get(key.stage)
    return newest is not None and (key.number, key.restart) <= (newest.number, newest.restart)


def last_attempt(status: FineTuneJobStatus) -> AttemptKey | None:
    """Returns the newest attempt that the status names; None if it names none."""
    named = [each for each in status.stages or () if each.job_set]
    current = [each for each in named if each.name is status.stage]
    for each in current or reversed(named):
        if key := AttemptKey.of_jobset(each.name, each.job_set, each.restart):
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
