"""How long a step has taken in past trainings of the same shape, by the records of the ledger. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import median
from types import MappingProxyType
from typing import Final, Self

from finetune_contract import Stage
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord
from finetune_operator.planning.plan import Plan

#: Attempts with fewer steps say little: most of their time is the start, compilation and the last checkpoint.
LEAST_STEPS: Final = 20
#: Age of records, before the newest one or before today, that still count: older trainings ran with other releases.
DAYS: Final = 90

type _Attempt = tuple[str, int, int]
"""UID of the job, number of the JobSet, restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShape:
    """What the time of a step mainly depends on. Not part of it: the model's revision, the rank of an adapter, the
    data, the mesh, other settings of the engine, and the trainer's release."""

    model: str
    tpu: str
    chips: int
    method: str
    lora: bool
    quantization: str
    max_seq_length: int
    global_batch_size: int

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        lora = plan.method.lora
        return cls(
            model=plan.model.address,
            tpu=plan.placement.shape.name,
            chips=plan.chips,
            method=plan.method.type,
            lora=lora is not None,
            quantization=(lora.quantization if lora else None) or "",
            max_seq_length=plan.data.max_seq_length,
            global_batch_size=plan.hyperparameters.global_batch_size,
        )

    @classmethod
    def of_record(cls, record: LedgerRecord) -> Self | None:
        """Returns the shape; None if the record does not end a training whose steps and slice are known."""
        trained = record.trained
        if trained is None or not record.tpu or not record.ends_attempt:
            return None
        return cls(
            model=record.model,
            tpu=record.tpu,
            chips=record.chips,
            **trained.model_dump(exclude={"steps"}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRuns:
    """The seconds of a step in the attempts of past trainings: the whole running time of an attempt, with start,
    compilation, validation and checkpoints, divided by its steps."""

    attempts: int
    jobs: int
    low: float
    median: float
    high: float


class PastTrainings:
    """The trainings among the records that it is given, in any order. A record may be given several times."""

    def __init__(self, records: Iterable[LedgerRecord] = ()) -> None:
        self._seconds: defaultdict[_Attempt, dict[tuple[date, LedgerOutcome], int]] = defaultdict(dict)
        """Of each record of an attempt: one that runs past midnight has several."""
        self._ended: dict[_Attempt, tuple[TrainingShape, int, date]] = {}
        """Shape, steps, and day of the end."""
        self._runs: Mapping[TrainingShape, PastRuns] | None = None
        for record in records:
            self.add(record)

    def add(self, record: LedgerRecord) -> None:
        """Takes a record; those of other stages are ignored."""
        if record.stage is not Stage.TRAIN:
            return
        key = record.uid, record.number, record.restart
        self._seconds[key][record.day, record.outcome] = record.seconds
        shape = TrainingShape.of_record(record)
        if shape is not None and record.trained is not None:
            self._ended[key] = shape, record.trained.steps, record.day
        self._runs = None

    def runs(self) -> Mapping[TrainingShape, PastRuns]:
        """Returns what is known of each shape; attempts with few steps are left out."""
        if self._runs is None:
            self._forget_old()
            found: defaultdict[TrainingShape, dict[_Attempt, float]] = defaultdict(dict)
            for key, (shape, steps, _) in self._ended.items():
                seconds = sum(self._seconds[key].values())
                if steps >= LEAST_STEPS and seconds:
                    found[shape][key] = seconds / steps
            self._runs = MappingProxyType({shape: _summary(attempts) for shape, attempts in found.items()})
        return self._runs

    def _forget_old(self) -> None:
        newest = max((day for days in self._seconds.values() for day, _ in days), default=date.min)
        if newest <= date.min + timedelta(days=DAYS):
            return
        oldest = newest - timedelta(days=DAYS)
        for key in [key for key, days in self._seconds.items() if max(day for day, _ in days) < oldest]:
            del self._seconds[key]
            self._ended.pop(key, None)


def _summary(attempts: Mapping[_Attempt, float]) -> PastRuns:
    return PastRuns(
        attempts=len(attempts),
        jobs=len({uid for uid, _, _ in attempts}),
        low=min(attempts.values()),
        median=median(attempts.values()),
        high=max(attempts.values()),
    )
