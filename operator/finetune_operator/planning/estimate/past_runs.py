"""How long a step has taken in past trainings of the same shape, by the records of the ledger. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from statistics import median
from threading import Lock
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
    """The trainings among the records that it is given, in any order. A record may be given several times.

    Threads may share it: decisions about large jobs run in one of their own.
    """

    def __init__(self, records: Iterable[LedgerRecord] = ()) -> None:
        self._seconds: defaultdict[_Attempt, dict[tuple[date, LedgerOutcome], int]] = defaultdict(dict)
        """Of each record of an attempt: one that runs past midnight has several."""
        self._steps: defaultdict[TrainingShape, dict[_Attempt, int]] = defaultdict(dict)
        """Of the attempts that have ended."""
        self._known: dict[TrainingShape, PastRuns | None] = {}
        self._newest = date.min
        self._lock = Lock()
        for record in records:
            self.add(record)

    def add(self, record: LedgerRecord) -> None:
        """Takes a record; those of other stages are ignored."""
        if record.stage is not Stage.TRAIN:
            return
        with self._lock:
            self._add(record)

    def _add(self, record: LedgerRecord) -> None:
        key = record.uid, record.number, record.restart
        self._seconds[key][record.day, record.outcome] = record.seconds
        shape = TrainingShape.of_record(record)
        if shape is not None and record.trained is not None:
            self._steps[shape][key] = record.trained.steps
            self._known.pop(shape, None)
        if record.day > self._newest:
            self._newest = record.day
            self._forget_old()

    def of(self, shape: TrainingShape) -> PastRuns | None:
        """Returns the past trainings of a shape, without attempts of few steps; None if there are none."""
        with self._lock:
            if shape not in self._steps:
                return None
            if shape not in self._known:
                self._known[shape] = self._summary(shape)
            return self._known[shape]

    def _summary(self, shape: TrainingShape) -> PastRuns | None:
        found: dict[_Attempt, float] = {}
        for key, steps in self._steps[shape].items():
            seconds = sum(self._seconds[key].values())
            if steps >= LEAST_STEPS and seconds:
                found[key] = seconds / steps
        if not found:
            return None
        return PastRuns(
            attempts=len(found),
            jobs=len({uid for uid, _, _ in found}),
            low=min(found.values()),
            median=median(found.values()),
            high=max(found.values()),
        )

    def _forget_old(self) -> None:
        """Forgets attempts whose newest record is too old, once a day."""
        oldest = self._newest.toordinal() - DAYS
        old = {key for key, days in self._seconds.items() if max(day for day, _ in days).toordinal() < oldest}
        for key in old:
            del self._seconds[key]
        for shape, steps in list(self._steps.items()):
            if gone := old & steps.keys():
                self._known.pop(shape, None)
                self._steps[shape] = {key: count for key, count in steps.items() if key not in gone}
                if not self._steps[shape]:
                    del self._steps[shape]
