"""What has ended from one status of a job to the next, for metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from finetune_contract import FailureClass, Stage
from finetune_operator.api import (
    Condition,
    ConditionStatus,
    ConditionType,
    FineTuneJobStatus,
    Phase,
    Reason,
    StagePhase,
)
from finetune_operator.api.placement import Capacity
from finetune_operator.api.status_results import FailureStatus
from finetune_operator.lifecycle.attempts.capacity import NO_CAPACITY
from finetune_operator.lifecycle.attempts.deadlines import (
    HUNG,
    POD_NOT_STARTED,
    STAGE_TIMEOUT,
    STARTUP_TIMEOUT,
)
from finetune_operator.lifecycle.decision import Object
from finetune_operator.lifecycle.status.events import new_failures
from finetune_operator.lifecycle.status.fitting import read_status
from finetune_operator.planning.defaults import BUILT_IN, EVALUATE_SECONDS
from finetune_operator.planning.merge import lookup

#: Limits that a job may lower, by the reason or class of the failures that they lead to. The number of retries of class
#: Infrastructure is none of them: whatever it is, there was a fault.
_LIMITS: Mapping[str, str] = {
    NO_CAPACITY: "preRunningDeadlineSeconds",
    POD_NOT_STARTED: "preRunningDeadlineSeconds",
    HUNG: "hangPolicy.noStepSeconds",
    STARTUP_TIMEOUT: "hangPolicy.startupSeconds",
    STAGE_TIMEOUT: "hangPolicy.stageSeconds",
    FailureClass.PREEMPTION: "recovery.maxPreemptions",
}


class FailureCause(StrEnum):
    """Why a failure that is not the job's fault may still be nothing that the platform team has to mend."""

    OWN_LIMIT = "OwnLimit"
    """The job itself sets the limit that ended it, below the built-in default."""
    NO_CAPACITY = "NoCapacity"
    """No nodes were available in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """An attempt that has ended without success."""

    failure_class: FailureClass
    hung: bool
    """Whether the operator has ended it because it made no progress although its nodes were there."""
    cause: FailureCause | None


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
    cause: FailureCause | None
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
    failure = status.failure if ended else None
    return Transitions(
        namespace=job["metadata"]["namespace"],
        profile=resolved.profile.name if resolved and resolved.profile else "",
        capacity=resolved.resources.capacity if resolved and resolved.resources else None,
        result=status.phase if ended else None,
        failure_class=failure.failure_class if failure else None,
        cause=_cause(job, failure.reason, _spent(failure)) if failure else None,
        attempts=tuple(
            AttemptEnd(
                failure_class=each.failure_class,
                hung=each.reason in (HUNG, STARTUP_TIMEOUT),
                cause=_cause(job, each.reason),
            )
            for each, _ in new_failures(before.attempts, status.attempts)
            if each.failure_class is not None
        ),
        stages=stages,
        training=_training(status, train.seconds) if train else None,
        admission=_admission(job, before, status),
    )


def _spent(failure: FailureStatus) -> FailureClass | None:
    """Returns the class whose retries are used up; None if something else has ended the job."""
    return None if failure.reason == Reason.NO_PROGRESS else failure.failure_class


def _cause(job: Object, *limited_by: str | None) -> FailureCause | None:
    """Returns the cause of a failure with this reason and, if it has ended the job, this class."""
    for path in filter(None, map(_LIMITS.get, filter(None, limited_by))):
        own = lookup(job["spec"], path)
        # The default of stageSeconds alone depends on the stage: that of Evaluate is the shortest.
        if isinstance(own, int) and own < (lookup(BUILT_IN, path) or EVALUATE_SECONDS):
            return FailureCause.OWN_LIMIT
    return FailureCause.NO_CAPACITY if NO_CAPACITY in limited_by else None


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
