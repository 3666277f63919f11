"""How long a step has taken in past trainings of the same shape, by the records of the ledger. Pure.

Whole jobs are compared: most of the time of a short attempt is its start, and an interrupted job has taken what all of
its attempts have taken together.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from statistics import median
from typing import Final, Self

from finetune_contract import Stage
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord
from finetune_operator.planning.plan import Plan

#: Jobs with fewer steps say little: most of their time is the start, compilation and the last checkpoint.
LEAST_STEPS: Final = 20
#: For the same reason, the share of the steps to be estimated that a job must have made.
LEAST_SHARE: Final = 0.1
#: Age of records, before the newest one or before today, that still count: older trainings ran with other releases.
DAYS: Final = 90

type _Number = tuple[int, int]
"""Number of an attempt's JobSet, and of the restart inside it."""


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
            **trained.model_dump(exclude={"start_step", "end_step"}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRuns:
    """The seconds of a step in past jobs: the running time of all attempts of a job, with start, compilation,
    validation, checkpoints and repeated steps, divided by the steps that it got further."""

    attempts: int
    jobs: int
    fewest_steps: int
    most_steps: int
    """Steps of the shortest and of the longest of these jobs."""
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How an attempt has ended."""

    tpu: str
    chips: int
    shape: TrainingShape | None
    """None if its steps are not known: for example of an attempt that was lost before its first step."""
    start_step: int
    end_step: int

    @classmethod
    def of(cls, record: LedgerRecord) -> Self:
        steps = record.trained
        return cls(
            tpu=record.tpu,
            chips=record.chips,
            shape=TrainingShape.of_record(record),
            start_step=steps.start_step if steps else 0,
            end_step=steps.end_step if steps else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What one job has made in a shape."""

    attempts: int
    steps: int
    seconds: int


class _Job:
    """The attempts of one job."""

    def __init__(self) -> None:
        self.hours: defaultdict[_Number, dict[tuple[date, LedgerOutcome], Decimal]] = defaultdict(dict)
        """Chip hours of each record of an attempt: one that runs past midnight has several."""
        self.ends: dict[_Number, _End] = {}

    @property
    def shapes(self) -> set[TrainingShape]:
        return {end.shape for end in self.ends.values() if end.shape is not None}

    def made(self, shape: TrainingShape) -> Made | None:
        """Returns how far the job has got in a shape, and in which time; None if the time is not known.

        An attempt whose steps are not known counts with its time if the next one shows what it has saved. A step that
        is made again counts once.
        """
        attempts, steps, hours, last = 0, 0, Decimal(0), Decimal(0)
        reached: int | None = None
        unknown = list[Decimal]()
        for number, end in sorted(self.ends.items(), key=lambda item: item[0]):
            if (end.tpu, end.chips) != (shape.tpu, shape.chips):
                continue
            used = sum(self.hours[number].values(), Decimal(0))
            if end.shape is None:
                unknown.append(used)
                continue
            if end.shape != shape:
                continue
            if unknown and (reached is not None or end.start_step == 0):
                begun = reached or 0
            else:
                # The job continues another one's checkpoint, or was on another slice in between.
                begun = max(end.start_step, reached or 0)
                unknown.clear()
            attempts += 1 + len(unknown)
            steps += max(0, end.end_step - begun)
            hours += used + sum(unknown)
            reached, last = max(end.end_step, reached or 0), used
            unknown.clear()
        # The usage of attempts that were recorded late together is in the record of the last one, perhaps Evaluate's.
        if not last:
            return None
        return Made(attempts=attempts, steps=steps, seconds=round(float(hours) * 3600 / shape.chips))

    def older(self, oldest: int) -> list[_Number]:
        """Returns the attempts whose newest record is older than that ordinal of a date."""
        return [key for key, days in self.hours.items() if _newest(days).toordinal() < oldest]

    def forget(self, numbers: Iterable[_Number]) -> None:
        for number in numbers:
            del self.hours[number]
            self.ends.pop(number, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTrainings:
    """Trainings by their shape."""

    made: Mapping[TrainingShape, Sequence[Made]] = field(default_factory=dict)

    def of(
        self, shape: TrainingShape, steps: int | None = None, least_step_seconds: float | None = None
    ) -> PastRuns | None:
        """Returns the past trainings of a shape; None if there are none.

        Trainers report the steps, and tenants can forge them. So a job counts once, however many attempts it has.

        Args:
            shape: the shape.
            steps: number of steps to be estimated. Jobs with far fewer are left out; None if it is not known.
            least_step_seconds: seconds that no step can be faster than. Jobs that were faster are left out; None if
                that is not known.
        """
        least, fastest = max(LEAST_STEPS, LEAST_SHARE * (steps or 0)), least_step_seconds or 0.0
        jobs = [
            job
            for job in self.made.get(shape, ())
            if job.steps >= least and job.seconds >= fastest * job.steps
        ]
        if not jobs:
            return None
        step_seconds = [job.seconds / job.steps for job in jobs]
        return PastRuns(
            attempts=sum(job.attempts for job in jobs),
            jobs=len(jobs),
            fewest_steps=min(job.steps for job in jobs),
            most_steps=max(job.steps for job in jobs),
            low=min(step_seconds),
            median=median(step_seconds),
            high=max(step_seconds),
        )


class TrainingRecords:
    """The trainings among the records that it is given, in any order. A record may be given several times."""

    def __init__(self, records: Iterable[LedgerRecord] = ()) -> None:
        self._jobs: defaultdict[str, _Job] = defaultdict(_Job)
        """By UID."""
        self._made: defaultdict[TrainingShape, dict[str, Made]] = defaultdict(dict)
        """What each job has made in a shape, by UID."""
        self._trainings: PastTrainings | None = None
        self._newest = date.min
        for record in records:
            self.add(record)

    def add(self, record: LedgerRecord) -> None:
        """Takes a record; those of other stages are ignored."""
        if record.stage is not Stage.TRAIN:
            return
        job, number = self._jobs[record.uid], (record.number, record.restart)
        # The time is that of the chip hours: the record of usage that could not be recorded for a while has no other.
        job.hours[number][record.day, record.outcome] = record.chip_hours
        if record.ends_attempt:
            job.ends[number] = _End.of(record)
        self._changed(record.uid, job.shapes)
        if record.day > self._newest:
            self._newest = record.day
            self._forget_old()

    def trainings(self) -> PastTrainings:
        """Returns the trainings of all records until now."""
        if self._trainings is None:
            self._trainings = PastTrainings(
                made={shape: tuple(made.values()) for shape, made in self._made.items()}
            )
        return self._trainings

    def _changed(self, uid: str, shapes: Iterable[TrainingShape]) -> None:
        self._trainings = None
        for shape in shapes:
            self._made[shape].pop(uid, None)
            if made := self._jobs[uid].made(shape):
                self._made[shape][uid] = made
            if not self._made[shape]:
                del self._made[shape]

    def _forget_old(self) -> None:
        """Forgets attempts whose newest record is too old, once a day."""
        oldest = self._newest.toordinal() - DAYS
        for uid, job in list(self._jobs.items()):
            if old := job.older(oldest):
                before = job.shapes
                job.forget(old)
                self._changed(uid, before)
                if not job.hours:
                    del self._jobs[uid]


def _newest(days: Mapping[tuple[date, LedgerOutcome], Decimal]) -> date:
    return max(day for day, _ in days)
