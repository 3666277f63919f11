"""How long a step has taken in past trainings of the same shape, by the records of the ledger. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from finetune_operator.ledger.record import LedgerRecord, TrainedSteps
from finetune_operator.planning.plan import Plan

#: Attempts with fewer steps say little: most of their time is the start, compilation and the last checkpoint.
LEAST_STEPS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTrainings:
    """What a ledger contains of trainings, of any shape."""

    days: int
    """Number of days before today that the records are of."""
    records: Sequence[LedgerRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRuns:
    """The seconds of a step in the attempts of past trainings: the whole running time of an attempt, with start,
    compilation, validation and checkpoints, divided by its steps."""

    attempts: int
    jobs: int
    low: float
    median: float
    high: float


def past_runs(plan: Plan, records: Iterable[LedgerRecord]) -> PastRuns | None:
    """Returns the seconds of a step in past trainings of the plan's shape; None if there are none.

    Of the same shape are trainings of the same model, at any revision, with the same method, precision of the base
    model, sequence length, rows per step and slices, in any namespace. The rank of an adapter, the data and the mesh
    are not compared.

    Args:
        plan: the job.
        records: records of the ledger, in any order. An attempt's time is that of all of its records.
    """
    seconds: defaultdict[tuple[str, int, int], int] = defaultdict(int)
    steps: dict[tuple[str, int, int], int] = {}
    for record in records:
        if not _same_slice(plan, record):
            continue
        key = record.uid, record.number, record.restart
        seconds[key] += record.seconds
        if record.trained and record.ends_attempt and _same_step(plan, record.trained):
            steps[key] = record.trained.steps
    found = {
        key: seconds[key] / count for key, count in steps.items() if count >= LEAST_STEPS and seconds[key]
    }
    if not found:
        return None
    return PastRuns(
        attempts=len(found),
        jobs=len({uid for uid, _, _ in found}),
        low=min(found.values()),
        median=median(found.values()),
        high=max(found.values()),
    )


def _same_slice(plan: Plan, record: LedgerRecord) -> bool:
    place = plan.placement.shape.name, plan.chips
    return (record.tpu, record.chips) == place and record.model == plan.model.address


def _same_step(plan: Plan, trained: TrainedSteps) -> bool:
    lora = plan.method.lora
    return trained == TrainedSteps(
        steps=trained.steps,
        method=plan.method.type,
        lora=lora is not None,
        quantization=(lora.quantization if lora else None) or "",
        max_seq_length=plan.data.max_seq_length,
        global_batch_size=plan.hyperparameters.global_batch_size,
    )
