"""The records that the ledger lacks.

An attempt is recorded once it has ended; one that runs past midnight (UTC) is recorded for each day. What is due is the
difference between the usage in ``status.cost`` and the part of it that ``status.ledger`` calls recorded. So the records
of a job always add up to its usage, even if pods and records of an attempt are deleted: no usage is lost or counted
twice if an attempt is measured again, or if a record can only be written later.

No crash changes a sum. The status is written after the records that it calls recorded, and counts them; the count is
part of the next record's name. After a crash in between, the same name is decided again: the record that has it counts
as it is stored, and what it lacks is due as the next one.
"""

from collections.abc import Sequence
from datetime import date, datetime
from itertools import islice
from typing import Any

from finetune_contract import FailureClass, Stage
from finetune_operator.api import ConditionType, FineTuneJobStatus
from finetune_operator.api.placement import Capacity
from finetune_operator.api.status_stages import AttemptRecord
from finetune_operator.api.timestamps import whole_second
from finetune_operator.ledger.amounts import Amounts, amount
from finetune_operator.ledger.record import (
    MODEL_BYTES,
    MOST_LABELS,
    LedgerOutcome,
    LedgerRecord,
    TrainedSteps,
)
from finetune_operator.lifecycle.accounting.recorded import (
    history,
    is_recorded,
    last_attempt,
    recorded_attempts,
    recorded_count,
)
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.classify import AttemptResult
from finetune_operator.lifecycle.attempts.usage import rate_of, run_seconds, terms_of, usage_of
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decision import Delete, Finish, NextStep
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.status.attempt_history import attempt_steps
from finetune_operator.lifecycle.status.usage import rounded_down
from finetune_operator.planning import Plan
from finetune_operator.planning.estimate.past_runs import step_settings


def due_records(
    observation: Observation, step: NextStep, status: FineTuneJobStatus
) -> tuple[LedgerRecord, ...] | None:
    """Returns the records that the ledger lacks, oldest first; None if that is unknown, or nothing is recorded now.

    ``status`` is the one to be written, without them.
    """
    if observation.ledger is None or (isinstance(step.action, Delete) and step.action.status_first):
        return None
    if step.stages is None:
        finished = status.is_true(ConditionType.FINISHED)
        return closing_records(observation.job, observation.now) if finished else None
    ended = _of_ended(observation, step.stages, status)
    found = ended + _of_the_day(observation, step.stages, status, ended)
    if not found and isinstance(step.action, Finish):
        return _rest(observation.job, status, observation.now)
    return found


def closing_records(job: Job, now: datetime) -> tuple[LedgerRecord, ...]:
    """Returns what is left to record of a job that has ended or is deleted.

    It follows from the job alone, whose children may be gone. If several attempts are not recorded, because the ledger
    could not be written for a while, those in the history of the status have a record each, and one of them contains
    the usage of all.
    """
    status = job.status
    if status.is_true(ConditionType.FINISHED) and not (status.ledger and status.ledger.pending):
        return ()
    return _rest(job, status, now)


def remainder(due: LedgerRecord, found: LedgerRecord) -> LedgerRecord | None:
    """Returns the record of the usage that the ledger lacks although it contains a record of the name of ``due``.

    None if it lacks none. ``found`` was written before a crash, for less usage.
    """
    rest = Amounts.of_record(due) - Amounts.of_record(found)
    if not rest:
        return None
    return due.model_copy(
        update={
            "sequence": due.sequence + 1,
            "outcome": LedgerOutcome.RUNNING if found.ends_attempt else due.outcome,
            "chip_hours": rest.chip_hours,
            "cost": None if due.cost is None else rest.cost,
            "seconds": max(0, due.seconds - found.seconds),
            "trained": None,
        }
    )


def _rest(job: Job, status: FineTuneJobStatus, now: datetime) -> tuple[LedgerRecord, ...]:
    """Returns the records of attempts that have none, or one of usage that no record contains."""
    last, ended = last_attempt(status), status.is_true(ConditionType.FINISHED)
    if last is None:
        return ()
    known, rest = recorded_attempts(status), Amounts.of(status.cost) - Amounts.of(status.ledger)
    every: dict[AttemptKey, AttemptRecord | None] = {**history(status)}
    every.setdefault(last, None)
    ends = {key: entry for key, entry in every.items() if not is_recorded(key, known)}
    late = not ends
    idle = not ended and not (status.active_time and status.active_time.seconds)
    if not rest and (late or idle):
        return ()
    ends = ends or {last: every[last]}
    whole = next((key for key in reversed(ends) if key.stage.on_tpu), next(reversed(ends)))
    completed = status.completion_time if ended else None
    return tuple(
        _record(
            job,
            status,
            key,
            rest if key == whole else Amounts(),
            sequence=sequence,
            outcome=LedgerOutcome.RUNNING if late else _outcome(entry, ended=ended),
            failure_class=entry.failure_class if entry else None,
            reason=entry.reason if entry else "",
            end=whole_second(completed or now),
            **_reported_slice(status, key, held=bool(rest) and key == whole),
        )
        for sequence, (key, entry) in enumerate(ends.items(), recorded_count(status) + 1)
    )


def _reported_slice(status: FineTuneJobStatus, key: AttemptKey, *, held: bool) -> dict[str, Any]:
    """Returns the fields about the slice in the status. ``held``: whether the record has chip hours."""
    resources = status.resolved.resources if status.resolved else None
    if resources is None or not (key.stage.on_tpu or held):
        return {}
    return {"tpu": resources.tpu, "chips": resources.chips, "capacity": resources.capacity}


def _of_ended(
    observation: Observation, stages: JobStages, status: FineTuneJobStatus
) -> tuple[LedgerRecord, ...]:
    """Returns a record for each attempt that has ended and is not recorded.

    The last one on TPUs gets all that the job has used and no other attempt accounts for, including what is no longer
    measured.
    """
    known, plan, now = recorded_attempts(status), stages.plan, observation.now
    ended = [(attempt, end) for attempt, end in stages.classified if not is_recorded(attempt.key, known)]
    if not ended:
        return ()
    left = Amounts.of(status.cost) - Amounts.of(status.ledger)
    for attempt in stages.attempts:
        if attempt.live:
            left -= _measured(attempt, plan, now)
    amounts: dict[AttemptKey, Amounts] = {}
    for attempt, _ in ended:
        amounts[attempt.key] = _measured(attempt, plan, now).at_most(left)
        left -= amounts[attempt.key]
    last = next((attempt.key for attempt, _ in reversed(ended) if attempt.key.stage.on_tpu), ended[-1][0].key)
    amounts[last] += left
    return tuple(
        _of_attempt(observation, stages, status, attempt, amounts[attempt.key], sequence=sequence, end=end)
        for sequence, (attempt, end) in enumerate(ended, recorded_count(status) + 1)
    )


def _of_attempt(
    observation: Observation,
    stages: JobStages,
    status: FineTuneJobStatus,
    attempt: Attempt,
    own: Amounts,
    *,
    sequence: int,
    end: AttemptResult | None = None,
) -> LedgerRecord:
    """``end``: None if the attempt continues."""
    held = _slice(attempt, stages.plan, own)
    chips = held.get("chips")
    return _record(
        observation.job,
        status,
        attempt.key,
        own,
        sequence=sequence,
        outcome=LedgerOutcome(end.ending) if end else LedgerOutcome.RUNNING,
        failure_class=end.failure_class if end else None,
        reason=end.reason[:128] if end else "",
        end=whole_second((end.finished if end else None) or observation.now),
        seconds=int(own.chip_hours * 3600 / chips if chips else run_seconds(attempt, observation.now)),
        trained=_trained(stages, status, attempt, end) if end else None,
        **held,
    )


def _of_the_day(
    observation: Observation, stages: JobStages, status: FineTuneJobStatus, ended: Sequence[LedgerRecord]
) -> tuple[LedgerRecord, ...]:
    """Returns the record of a live attempt if the status is the first of a day: its usage up to the last status of the
    day before, apart from the records of what has ended. If it could not be written then, it is due until it is."""
    stored, live = observation.status, stages.live
    if live is None or stored.active_time is None or status.active_time is None:
        return ()
    if status.active_time.as_of.date() <= _day(observation.job, observation.now):
        return ()
    used = Amounts.of(stored.cost) - Amounts.of(stored.ledger)
    for record in ended:
        used -= Amounts.of_record(record)
    sequence = recorded_count(status) + len(ended) + 1
    return (_of_attempt(observation, stages, status, live, used, sequence=sequence),) if used else ()


def _record(
    job: Job, status: FineTuneJobStatus, key: AttemptKey, own: Amounts, **values: Any
) -> LedgerRecord:
    resolved, cost = status.resolved, status.cost
    source = resolved.model.source if resolved and resolved.model else ""
    return LedgerRecord(
        day=_day(job, values["end"]),
        namespace=job.namespace,
        job=job.name,
        uid=job.uid,
        labels=dict(islice(sorted(job.labels.items()), MOST_LABELS)),
        profile=resolved.profile.name if resolved and resolved.profile else "",
        # Cut where its bytes would make the record too large to be read.
        model=source.encode()[:MODEL_BYTES].decode(errors="ignore"),
        stage=key.stage,
        number=key.number,
        restart=key.restart,
        currency=cost.currency if cost else None,
        chip_hours=own.chip_hours,
        cost=own.cost if cost and cost.amount is not None else None,
        **values,
    )


def _trained(
    stages: JobStages, status: FineTuneJobStatus, attempt: Attempt, end: AttemptResult
) -> TrainedSteps | None:
    """Returns what the attempts of Train have made until the end of this one; None if that is not known, or if they had
    different numbers of chips."""
    plan, (_, end_step) = stages.plan, attempt_steps(attempt, end)
    if attempt.key.stage is not Stage.TRAIN or end_step is None:
        return None
    runs = [run for run in stages.classified if run[0].key.stage is Stage.TRAIN and run[0].key <= attempt.key]
    starts = [start for run in runs if (start := attempt_steps(*run)[0]) is not None]
    chips = {rate_of(run, plan).chips for run, _ in runs}
    if len(chips) > 1 or (plan.resumes and not starts):
        return None
    return TrainedSteps(
        start_step=min(starts) if plan.resumes else 0,
        end_step=end_step,
        attempts=len(runs),
        # No stage before Train has chips.
        seconds=int(Amounts.of(status.cost).chip_hours * 3600 / max(1, *chips)),
        **step_settings(plan),
    )


def _day(job: Job, end: datetime) -> date:
    """Returns the day on which a record counts: that of the last stored report of the usage, so that it is the same
    when the record is decided again. While the ledger is away, it remains the day of the first record that was due."""
    stored = job.status
    if stored.ledger and stored.ledger.pending_day:
        return stored.ledger.pending_day
    if stored.active_time:
        return stored.active_time.as_of.date()
    return (job.creation_timestamp or end).date()


def _slice(attempt: Attempt, plan: Plan, own: Amounts) -> dict[str, Any]:
    """Returns the fields about the slice that the attempt ran on; of a stage on CPU, which may contain late usage of an
    earlier one, the capacity at most."""
    if not attempt.key.stage.on_tpu:
        return {"capacity": Capacity(plan.placement.capacity)} if own else {}
    rate = rate_of(attempt, plan)
    name = (attempt.jobset.flavor if attempt.jobset else None) or _flavor_of(rate.price, plan)
    return {
        "tpu": plan.placement.shape.name if rate.chips == plan.chips else "",
        "chips": rate.chips,
        "flavor": name,
        "capacity": Capacity(terms_of(name, plan).capacity),
        "chip_hour_price": rate.price,
    }


def _flavor_of(price: float | None, plan: Plan) -> str:
    """Returns the flavor of an attempt whose JobSet is deleted: the present one, unless its price differs."""
    if price == plan.placement.chip_hour_price:
        return plan.placement.flavor
    return next(
        (name for name, terms in plan.flavors.items() if terms.chip_hour_price == price),
        plan.placement.flavor,
    )


def _measured(attempt: Attempt, plan: Plan, now: datetime) -> Amounts:
    used = usage_of(attempt, plan, now)
    return Amounts(
        chip_hours=amount(rounded_down(used.chip_hours)), cost=amount(rounded_down(used.cost or 0.0))
    )


def _outcome(entry: AttemptRecord | None, *, ended: bool) -> LedgerOutcome:
    """Returns how an attempt ended by its entry in the history; without one, it ran when its job was deleted."""
    if entry is None:
        return LedgerOutcome.STOPPED if ended else LedgerOutcome.DELETED
    if entry.failure_class is FailureClass.QUOTA:
        return LedgerOutcome.EVICTED
    if entry.failure_class is not None:
        return LedgerOutcome.FAILED
    return LedgerOutcome.SUCCEEDED if entry.reason == LedgerOutcome.SUCCEEDED else LedgerOutcome.STOPPED
