"""What the job as a whole is about at this moment; everything in the status follows from it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, auto

from finetune_contract import Failure, Stage
from finetune_operator.api import Reason, WaitingReason
from finetune_operator.lifecycle.observed import Unreadable
from finetune_operator.lifecycle.queueing import Queueing, Standing
from finetune_operator.lifecycle.spending import Overspent
from finetune_operator.planning import Refused


class Course(StrEnum):
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
        return self in (Course.PLANNED, Course.SUCCEEDED, Course.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What stands in the way of a job that could go on."""

    reason: WaitingReason
    message: str
    since: datetime | None = None
    """None: since this look, or since the status says so already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """Why a job is suspended that its user has not suspended, the budget aside."""

    reason: Reason
    message: str
    fix: str

    @property
    def text(self) -> str:
        return f"{self.message} {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Derived by ``decide`` from stages and children."""

    course: Course
    refused: Refused | None = None
    """Why ``Valid`` is False: nothing new is started meanwhile."""
    running: bool = False
    """All pods of the live attempt run."""
    starting: bool = False
    """An attempt is being created or its pods do not run yet."""
    recovering: bool = False
    """The stage had a bad end, and its next attempt does not run yet."""
    wait: Wait | None = None
    queue: Queueing | None = None
    """Of the live attempt, where a queue holds or held it."""
    failure: Failure | None = None
    over: Overspent | Halted | None = None
    """Why the job is suspended, or being suspended, where its user has not asked for that."""
    unreadable: Unreadable | None = None
    """Why the run folder cannot be read."""


def queued(stage: Stage, queue: Queueing, refused: Refused | None) -> Situation:
    """Its quota is not there yet, or was taken away: pods that still save count as not running."""
    never = queue.standing is Standing.NEVER
    message = f'LocalQueue "{queue.queue}": {queue.message.rstrip(".")}.'
    if never:
        message = (
            f"{stage} can not be admitted as things are. {message} Ask the platform team for what is missing: the job "
            "then goes on by itself. Or change spec.resources: a stage that has not run yet gets another JobSet."
        )
    return Situation(
        course=Course.STALLED if never else Course.ACTIVE,
        refused=refused,
        starting=True,
        wait=Wait(reason=WaitingReason.QUOTA, message=message, since=queue.since),
        queue=queue,
    )
