"""A decision: one action of a closed union, and the status. Applying it twice is the same as applying it once."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from finetune_operator.api import FineTuneJobStatus
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.lifecycle.attempts.pending_records import Record
from finetune_operator.lifecycle.attempts.usage import Usage
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.job_state import JobState
from finetune_operator.lifecycle.observation import RetryRecord, TakeoverRecord
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.objects import Object
from finetune_operator.planning import Refused

type Action = Admit | Wait | Create | Delete | Finish


#: Seconds between two observations of a job whose changes watches report, in case a watch has lost one.
SAFETY_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A JobSet to delete in the foreground: its pods get SIGTERM and their grace period."""

    name: str
    uid: str

    @classmethod
    def of(cls, jobset: JobSet) -> Self:
        """Returns the deletion of this JobSet, and of no later one of the same name."""
        return cls(name=jobset.name, uid=jobset.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithRecords:
    records: tuple[Record, ...] = ()
    """Written before anything is deleted or created, so that the next observation sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(_WithRecords):
    """Store what every later decision starts from, and decide again. Nothing else is done."""

    write: Object | RetryRecord | TakeoverRecord
    """The job's plan, a ConfigMap without its namespace that is created once; or the record of a retry or of a
    takeover, which is written to the run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(_WithRecords):
    """Change nothing in the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create(_WithRecords):
    """Create the JobSet of the next attempt."""

    jobset: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(_WithRecords):
    """Stop JobSets that may still run. Their attempts' records are written before."""

    jobsets: tuple[Deletion, ...]
    status_first: bool = False
    """The status is written before the deletions: it holds the records, which the run folder cannot take now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(_WithRecords):
    """The job has ended, and nothing of it runs."""

    ends_now: bool = False
    """Whether it ends with this decision. The run folder then gets a record of job and status (``status.json``), after
    the records of attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """An object in the job's namespace, by kind and name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailRequest:
    """Details to be read before the action is taken. They are read only when they matter."""

    hosts: int = 0
    """Number of processes whose ``Observation.hosts`` are requested; 0: none."""
    events: ObjectReference | None = None
    """Object whose ``Observation.events`` are requested."""


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One Kubernetes Event about the job, for one transition."""

    type: EventType
    reason: str
    message: str
    since: str = ""
    """Time since which the state held that the transition ended. It distinguishes two transitions with the same
    message; a transition that is decided again after a crash has the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """An action with the state of the job that leads to it. The status is built from it."""

    action: Action
    state: JobState | None = None
    """None: the status stays as it is."""
    stages: JobStages | None = None
    """None: the job has no plan that can be used."""
    used: Usage | None = None
    """Usage of a job of which something runs although it has no plan that can be used."""
    requeue_after: float | None = None
    """Seconds until the job is observed again without a change; None: only after a change."""
    obsolete: tuple[Deletion, ...] = ()
    """JobSets that have ended and are no longer needed. They are deleted along with any action."""
    pending: tuple[Record, ...] | None = None
    """Records that the status holds until the run folder can take them; None: those that it holds now."""
    retry_generation: int | None = None
    """``spec.retry.generation`` that needs no action, because every stage has succeeded."""
    not_retried: Refused | None = None
    """Why a requested retry is impossible."""
    summary: str | None = None
    """Replaces the summary that follows from the state."""
    details: DetailRequest | None = None
    """If set, these details are read and the decision is taken again; this one stands if there are none."""
    events: tuple[JobEvent, ...] = ()
    """Those that do not follow from the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Applied in this order: what the action stores (Admit), its records, what it deletes, obsolete JobSets, the JobSet
    that it creates, the record of the job's end, Events, records of the ledger, status. For a Delete with
    ``status_first`` the status comes before its deletions.

    Events follow from the previous status. If they were written after the new one, a crash between the two writes would
    lose them. Written before it, they are decided again, and the API server recognizes them by their names.
    """

    action: Action
    status: FineTuneJobStatus
    """The complete new status; written only if it differs from the stored one."""
    events: tuple[JobEvent, ...] = ()
    obsolete: tuple[Deletion, ...] = ()
    ledger: tuple[LedgerRecord, ...] = ()
    """Records that the ledger lacks, oldest first. A status that shows them as recorded is
    :func:`finetune_operator.lifecycle.accounting.recorded.with_records`."""
    requeue_after: float | None = None
    """Seconds; None: only after a change."""
    details: DetailRequest | None = None
    """Details to be read before the decision is applied; it is then taken again."""
    reported: bool = True
    """False: status, Events and the record of the JobSet follow with the next decision."""
    fault: Exception | None = None
    """Raised by what the run folder contains; the decision was taken without it. To be reported as a fault of the
    operator once the decision is applied."""


def stop(jobsets: Iterable[JobSet], *, status_first: bool = False) -> Delete | Wait:
    """Returns the deletion of those JobSets that may still run and are not being deleted; Wait if there are none."""
    running = tuple(Deletion.of(each) for each in jobsets if not each.ended and not each.deleting)
    return Delete(jobsets=running, status_first=status_first) if running else Wait()
