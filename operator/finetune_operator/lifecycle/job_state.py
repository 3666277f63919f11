"""What the job as a whole is about at this moment; everything in the status follows from it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, auto

from finetune_contract import Failure, Stage
from finetune_operator.api import Reason, WaitingReason
from finetune_operator.lifecycle.kueue import QueueStatus, QuotaState
from finetune_operator.lifecycle.observation import ReadFailure
from finetune_operator.lifecycle.spending import BudgetExceeded
from finetune_operator.planning import Refused


class JobPhase(StrEnum):
    """The job's course, of which the phase is one reading."""

    INVALID = auto()
    ACTIVE = auto()
    STALLED = auto()
    """As things are it comes no further: its queue will not admit it, or what its pods need is not there for long. It
    goes on by itself when that changes."""
    SUSPENDING = auto()
    SUSPENDED = auto()
    PLANNED = auto()
    SUCCEEDED = auto()
    FAILED = auto()

    @property
    def finished(self) -> bool:
        return self in (JobPhase.PLANNED, JobPhase.SUCCEEDED, JobPhase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCause:
    """What stands in the way of a job that could go on."""

    reason: WaitingReason
    message: str
    since: datetime | None = None
    """None: since this look, or since the status says so already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedSuspension:
    """Why a job is suspended that its user has not suspended, the budget aside."""

    reason: Reason
    message: str
    fix: str

    @property
    def text(self) -> str:
        return f"{self.message} {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Derived by ``decide`` from stages and children."""

    course: JobPhase
    refused: Refused | None = None
    """Why ``Valid`` is False: nothing new is started meanwhile."""
    running: bool = False
    """All pods of the live attempt run."""
    starting: bool = False
    """An attempt is being created or its pods do not run yet."""
    recovering: bool = False
    """The stage had a bad end, and its next attempt does not run yet."""
    wait: WaitCause | None = None
    queue: QueueStatus | None = None
    """Of the live attempt, where a queue holds or held it."""
    failure: Failure | None = None
    over: BudgetExceeded | ForcedSuspension | None = None
    """Why the job is suspended, or being suspended, where its user has not asked for that."""
    unreadable: ReadFailure | None = None
    """Why the run folder cannot be read."""


def queued(stage: Stage, queue: QueueStatus, refused: Refused | None) -> JobState:
    """Its quota is not there yet, or was taken away: pods that still save count as not running."""
    never = queue.standing is QuotaState.NEVER
    message = f'LocalQueue "{queue.queue}": {queue.message.rstrip(".")}.'
    if never:
        message = (
            f"{stage} can not be admitted as things are. {message} Ask the platform team for what is missing: the job "
            "then goes on by itself. Or change spec.resources: a stage that has not run yet gets another JobSet."
        )
    return JobState(
        course=JobPhase.STALLED if never else JobPhase.ACTIVE,
        refused=refused,
        starting=True,
        wait=WaitCause(reason=WaitingReason.QUOTA, message=message, since=queue.since),
        queue=queue,
    )
