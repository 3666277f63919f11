"""What has ended from one status of a job to the next, for metrics."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from finetune_contract import FailureClass, Stage
from finetune_operator.api import (
    Condition,
    ConditionStatus,
    ConditionType,
    FineTuneJobStatus,
    Phase,
    StagePhase,
)
from finetune_operator.api.placement import Capacity
from finetune_operator.lifecycle.attempts.deadlines import HUNG, STARTUP_TIMEOUT
from finetune_operator.lifecycle.decision import Object
from finetune_operator.lifecycle.status.events import new_failures
from finetune_operator.lifecycle.status.fitting import read_status


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """An attempt that has ended without success."""

    failure_class: FailureClass
    hung: bool
    """Whether the operator has ended it because it made no progress although its nodes were there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnd:
    """A stage that has ended."""

    stage: Stage
    result: StagePhase
    seconds: float
    """From the start of its first attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUses:
    """What the seconds of a training were used for, over all its attempts: the fields of ``status.goodput.seconds``."""

    queued: float
    provisioning: float
    startup: float
    productive: float
    evaluation: float
    recomputed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """A training that has ended. No part that the trainer reports is longer than the stage."""

    uses: TrainingUses
    compilation: float | None
    """Seconds of compilation, a part of startup; None if they are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """What has ended from one status of a job to the next."""

    namespace: str
    profile: str
    """Empty if the job was never admitted."""
    capacity: Capacity | None
    result: Phase | None
    """How the job has ended; None: it has not."""
    failure_class: FailureClass | None
    attempts: tuple[AttemptEnd, ...]
    stages: tuple[StageEnd, ...]
    training: TrainingEnd | None
    admission: float | None
    """Seconds from the job's creation until this status, if it is the first that says whether the job is valid."""

    def __bool__(self) -> bool:
        return bool(self.result or self.attempts or self.stages or self.admission is not None)


def transitions(job: Object, status: FineTuneJobStatus) -> Transitions:
    """Returns what has ended from the stored status of ``job`` to ``status``."""
    before = read_status(job.get("status"))
    resolved = status.resolved
    ended = status.phase is not None and status.phase.finished and status.phase is not before.phase
    stages = tuple(_stages(before, status))
    train = next((each for each in stages if each.stage is Stage.TRAIN), None)
    return Transitions(
        namespace=job["metadata"]["namespace"],
        profile=resolved.profile.name if resolved and resolved.profile else "",
        capacity=resolved.resources.capacity if resolved and resolved.resources else None,
        result=status.phase if ended else None,
        failure_class=status.failure.failure_class if ended and status.failure else None,
        attempts=tuple(
            AttemptEnd(failure_class=each.failure_class, hung=each.reason in (HUNG, STARTUP_TIMEOUT))
            for each, _ in new_failures(before.attempts, status.attempts)
            if each.failure_class is not None
        ),
        stages=stages,
        training=_training(status, train.seconds) if train else None,
        admission=_admission(job, before, status),
    )


def _stages(before: FineTuneJobStatus, after: FineTuneJobStatus) -> Iterator[StageEnd]:
    known = {each.name for each in before.stages or () if each.completion_time is not None}
    for each in after.stages or ():
        if each.name not in known and each.start_time and each.completion_time:
            seconds = (each.completion_time - each.start_time).total_seconds()
            yield StageEnd(stage=each.name, result=each.phase, seconds=max(0.0, seconds))


def _training(status: FineTuneJobStatus, longest: float) -> TrainingEnd | None:
    if status.goodput is None:
        return None
    seconds, startup = status.goodput.seconds, status.goodput.startup

    def reported(value: int) -> float:
        # By the trainer, in a record that its tenant can write.
        return min(max(0.0, float(value)), longest)

    return TrainingEnd(
        uses=TrainingUses(
            queued=float(seconds.queued or 0),
            provisioning=float(seconds.provisioning or 0),
            startup=reported(seconds.startup),
            productive=reported(seconds.productive),
            evaluation=reported(seconds.evaluation),
            recomputed=reported(seconds.recomputed),
        ),
        compilation=reported(startup.compilation) if startup else None,
    )


def _admission(job: Object, before: FineTuneJobStatus, after: FineTuneJobStatus) -> float | None:
    created, valid = job["metadata"].get("creationTimestamp"), _valid(after)
    if created is None or valid is None or _valid(before) is not None:
        return None
    return max(0.0, (valid.last_transition_time - datetime.fromisoformat(created)).total_seconds())


def _valid(status: FineTuneJobStatus) -> Condition | None:
    found = (each for each in status.conditions or () if each.type == ConditionType.VALID)
    return next((each for each in found if each.status != ConditionStatus.UNKNOWN), None)
