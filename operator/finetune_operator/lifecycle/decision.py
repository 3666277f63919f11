"""What is to be done, whole: applying a decision twice is the same as applying it once."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from finetune_contract import Failure
from finetune_operator.lifecycle.observation import AttemptKey, RetryRecord, TakeoverRecord

type Object = Mapping[str, Any]


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
    """Since when that held which the transition ended. Two transitions that say the same differ in it; one that is
    decided a second time, after a crash, does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A JobSet to delete in the foreground (its pods get SIGTERM and their grace period)."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """What Events are about, by kind and name, in the job's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailRequest:
    """What is asked only where it matters, since it costs more than it tells of a job that goes well."""

    hosts: int = 0
    """``Observation.hosts``, of so many processes; 0: none."""
    events: ObjectReference | None = None
    """``Observation.events``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Applied in this order: retry, takeover, records, snapshot, deletions, JobSet, notices, status. With
    ``status_before_deletions`` the deletions come last.

    Notices follow from the status that was there before: written after the new one, a crash between the two would
    lose them. Before it, they are decided again, and the API server knows them by their names.
    """

    status: Object
    """The complete new status; written only where it differs."""
    retry: RetryRecord | None = None
    """The note of a retry by hand, which the next observation must see."""
    takeover: TakeoverRecord | None = None
    """The note of a job that goes on in another one's run folder, likewise."""
    snapshot: Object | None = None
    """The plan to store, a ConfigMap without its namespace; created once."""
    jobset: Object | None = None
    """At most one new JobSet."""
    deletions: tuple[Deletion, ...] = ()
    records: tuple[tuple[AttemptKey, Failure], ...] = ()
    """Failure records (``failure.json``) to write where the trainer could not say it: the process was killed, or
    its end was asked for. What is written must be seen by the next observation."""
    status_before_deletions: bool = False
    """The status holds records that the run folder cannot take now (``status.pending``)."""
    notices: tuple[JobEvent, ...] = ()
    requeue_after: float | None = None
    """Seconds; None: only when something changes."""
    fault: Exception | None = None
    """Raised over what the run folder holds; the decision was taken without it. To be reported as a fault of the
    operator once the decision is applied."""
    closer: DetailRequest | None = None
    """What to look at before this is applied: the decision is then taken again. It stands if nothing is seen."""
