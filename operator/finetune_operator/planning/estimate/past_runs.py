"""How long a step has taken in past trainings of the same shape, by the records of the ledger. Pure.

Whole jobs are compared: most of the time of a short attempt is its start, and an interrupted job has taken what all of
its attempts have taken together.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import Any, Final, Self

from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.planning.plan import Plan

#: Jobs with fewer steps say little: most of their time is the start, compilation and the last checkpoint.
LEAST_STEPS: Final = 20
#: For the same reason, the share of the steps to be estimated that a job must have made.
LEAST_SHARE: Final = 0.1
#: Age of records, before the newest one or before today, that still count: older trainings ran with other releases.
DAYS: Final = 90


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
        return cls(
            model=plan.model.address, tpu=plan.placement.shape.name, chips=plan.chips, **step_settings(plan)
        )

    @classmethod
    def of_record(cls, record: LedgerRecord) -> Self | None:
        """Returns the shape; None if the record does not end a training whose steps, time and slice are known."""
        trained = record.trained
        if trained is None or not trained.seconds or not record.tpu or not record.ends_attempt:
            return None
        made = {"start_step", "end_step", "attempts", "seconds"}
        return cls(model=record.model, tpu=record.tpu, chips=record.chips, **trained.model_dump(exclude=made))


def step_settings(plan: Plan) -> dict[str, Any]:
    """Returns the fields that :class:`TrainingShape` and a record's ``trained`` have in common."""
    lora = plan.method.lora
    return {
        "method": plan.method.type,
        "lora": lora is not None,
        "quantization": (lora.quantization if lora else None) or "",
        "max_seq_length": plan.data.max_seq_length,
        "global_batch_size": plan.hyperparameters.global_batch_size,
    }


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
class _Made:
    """What one job has made until the end of its newest attempt."""

    day: date
    number: tuple[int, int]
    """Of the attempt's JobSet, and of the restart inside it."""
    attempts: int
    steps: int
    seconds: int


class PastTrainings:
    """The trainings among the records that it is given, in any order. A record may be given several times."""

    def __init__(self, records: Iterable[LedgerRecord] = ()) -> None:
        self._made: defaultdict[TrainingShape, dict[str, _Made]] = defaultdict(dict)
        """By UID of the job."""
        self._newest = date.min
        for record in records:
            self.add(record)

    def add(self, record: LedgerRecord) -> None:
        """Takes a record; those that end no training are ignored."""
        shape, trained = TrainingShape.of_record(record), record.trained
        if shape is None or trained is None:
            return
        jobs, number = self._made[shape], (record.number, record.restart)
        if record.uid not in jobs or jobs[record.uid].number <= number:
            steps = max(0, trained.end_step - trained.start_step)
            jobs[record.uid] = _Made(
                day=record.day, number=number, attempts=trained.attempts, steps=steps, seconds=trained.seconds
            )
        if record.day > self._newest:
            self._newest = record.day
            self._forget_old()

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
            for job in self._made.get(shape, {}).values()
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

    def _forget_old(self) -> None:
        """Forgets the jobs whose newest record is too old, once a day."""
        oldest = self._newest.toordinal() - DAYS
        kept = {
            shape: {uid: job for uid, job in jobs.items() if job.day.toordinal() >= oldest}
            for shape, jobs in self._made.items()
        }
        self._made = defaultdict(dict, {shape: jobs for shape, jobs in kept.items() if jobs})
