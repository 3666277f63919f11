"""What has ended from one status of a job to the next, for metrics."""

from collections.abc import Iterator
from dataclasses import dataclass

from finetune_contract import FailureClass, Stage
from finetune_operator.api import FineTuneJobStatus, Phase, StagePhase
from finetune_operator.api.placement import Capacity
from finetune_operator.lifecycle.attempts.deadlines import STANDING_STILL
from finetune_operator.lifecycle.decision import Object
from finetune_operator.lifecycle.status.events import new_failures
from finetune_operator.lifecycle.status.fitting import read_status


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """An attempt that has ended without success."""

    failure_class: FailureClass
    hung: bool
    """Whether the operator has ended it because it made no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnd:
    """A stage that has ended."""

    stage: Stage
    result: StagePhase
    seconds: float
    """From the start of its first attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWaits:
    """Seconds that a training which has ended had waited, over all its attempts."""

    queued: float
    provisioning: float


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
    waits: TrainingWaits | None

    def __bool__(self) -> bool:
        return bool(self.result or self.attempts or self.stages)


def transitions(job: Object, status: FineTuneJobStatus) -> Transitions:
    """Returns what has ended from the stored status of ``job`` to ``status``."""
    before = read_status(job.get("status"))
    resolved = status.resolved
    ended = status.phase is not None and status.phase.finished and status.phase is not before.phase
    stages = tuple(_stages(before, status))
    trained = any(each.stage is Stage.TRAIN for each in stages)
    return Transitions(
        namespace=job["metadata"]["namespace"],
        profile=resolved.profile.name if resolved and resolved.profile else "",
        capacity=resolved.resources.capacity if resolved and resolved.resources else None,
        result=status.phase if ended else None,
        failure_class=status.failure.failure_class if ended and status.failure else None,
        attempts=tuple(
            AttemptEnd(failure_class=each.failure_class, hung=each.reason in STANDING_STILL)
            for each, _ in new_failures(before.attempts, status.attempts)
            if each.failure_class is not None
        ),
        stages=stages,
        waits=_waits(status) if trained else None,
    )


def _stages(before: FineTuneJobStatus, after: FineTuneJobStatus) -> Iterator[StageEnd]:
    known = {each.name for each in before.stages or () if each.completion_time is not None}
    for each in after.stages or ():
        if each.name not in known and each.start_time and each.completion_time:
            seconds = (each.completion_time - each.start_time).total_seconds()
            yield StageEnd(stage=each.name, result=each.phase, seconds=max(0.0, seconds))


def _waits(status: FineTuneJobStatus) -> TrainingWaits | None:
    if status.goodput is None:
        return None
    seconds = status.goodput.seconds
    return TrainingWaits(queued=float(seconds.queued or 0), provisioning=float(seconds.provisioning or 0))
