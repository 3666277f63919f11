"""The state of a job as a whole, from which its status follows."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, auto

from finetune_contract import Failure, Stage
from finetune_operator.api import WaitingReason
from finetune_operator.lifecycle.children.kueue import QueueStatus, QuotaState
from finetune_operator.lifecycle.observation import ReadFailure
from finetune_operator.lifecycle.stages.spending import ForcedSuspension
from finetune_operator.planning import Plan, Refused


class JobPhase(StrEnum):
    """The job's state in one word. ``status.phase`` and the conditions that tools judge by follow from it."""

    INVALID = auto()
    ACTIVE = auto()
    STALLED = auto()
    """The job cannot proceed: its queue will not admit it, or what its pods need has been missing for long. It
    continues when that changes."""
    SUSPENDING = auto()
    SUSPENDED = auto()
    CANCELLING = auto()
    """What runs of a cancelled job saves and stops; then the job fails."""
    PLANNED = auto()
    SUCCEEDED = auto()
    FAILED = auto()

    @property
    def finished(self) -> bool:
        return self in (JobPhase.PLANNED, JobPhase.SUCCEEDED, JobPhase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCause:
    """Why a job that could proceed waits."""

    reason: WaitingReason
    message: str
    since: datetime | None = None
    """None: since this observation, or since the time that the status has."""


#: What the status of every live job says while the operator is paused.
PAUSED = (
    "The platform team has paused the operator: what runs continues, and nothing starts until it is resumed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Derived from the stages and from the job's children."""

    phase: JobPhase
    refused: Refused | None = None
    """Why the condition ``Valid`` is False. Nothing is started meanwhile."""
    running: bool = False
    """All pods of the live attempt run."""
    recovering: bool = False
    """An attempt of the stage has failed, and the next one does not run yet."""
    wait: WaitCause | None = None
    stuck: bool = False
    """``wait`` says what keeps the job from proceeding until a user acts, whatever it is doing."""
    queue: QueueStatus | None = None
    """Of the live attempt, if it is or was in a queue."""
    failure: Failure | None = None
    over: ForcedSuspension | None = None
    """Why the job is suspended, or being suspended, without its user's request."""
    unreadable: ReadFailure | None = None
    """Why the run folder cannot be read."""


def waits(reason: WaitingReason, message: str) -> JobState:
    """Returns the state of a job of which nothing runs, and which proceeds when the wait ends."""
    return JobState(phase=JobPhase.ACTIVE, wait=WaitCause(reason=reason, message=message))


_CONFIGURE = "Ask the platform team for what is missing: the job then continues automatically."


def queued(plan: Plan, stage: Stage, queue: QueueStatus) -> JobState:
    """Returns the state of a job whose stage has no quota. Pods that still save their work count as not running."""
    never = queue.quota_state is QuotaState.NEVER
    message, fix = f'LocalQueue "{queue.queue}": {queue.message.rstrip(".")}.', _CONFIGURE
    if stage.on_tpu:
        fix += " Or change spec.resources: a stage that has not run yet gets another JobSet."
    if (plan.queues.tpu if stage.on_tpu else plan.queues.cpu) is None:
        message, fix = _unplanned(stage, queue)
    if never:
        message = f"{stage} cannot be admitted with the current configuration. {message} {fix}"
    return JobState(
        phase=JobPhase.STALLED if never else JobPhase.ACTIVE,
        wait=WaitCause(reason=WaitingReason.QUOTA, message=message, since=queue.since),
        queue=queue,
    )


def _unplanned(stage: Stage, queue: QueueStatus) -> tuple[str, str]:
    """Returns why a stage for which the profile names no queue is in one, and what to do if it cannot be admitted."""
    field = f"queue.{'localQueue' if stage.on_tpu else 'cpuLocalQueue'} of the profile"
    if not queue.queue:
        why = "and Kueue manages every JobSet of this namespace (manageJobsWithoutQueueName)."
        fix = f"Ask the platform team to name one in {field}, and create the job again."
    else:
        put = "which takes every JobSet without a queue" if queue.queue == "default" else "by a label"
        requests = "google.com/tpu" if stage.on_tpu else "cpu, memory and ephemeral-storage"
        why = f'but its JobSet was put into LocalQueue "{queue.queue}", {put}: {queue.message.rstrip(".")}.'
        fix = (
            f"{_CONFIGURE} The queue has to cover {requests}. Jobs that are created later use another one if "
            f"{field} names it."
        )
    return f"The profile names no queue for {stage}, {why}", fix
