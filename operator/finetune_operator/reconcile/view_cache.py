"""Keeps the last reading of each job's run folder, and decides what of it must be read again.

A stage writes its record before it ends. So a folder that is read after an end was observed contains the record, and
nothing that a decision waits for appears in it until something else ends, restarts or vanishes. Only progress moves
in between, and files that another client writes by hand; both are read again after a time.

docs/decisions/records-in-the-run-folder.md explains why decisions may rely on it.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Self

from finetune_contract import Stage
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import RunFolderView

#: Maximum age in seconds of a listing on which decisions rely, if the pace is not slower.
LISTING_SECONDS = 60.0
#: Maximum memory in bytes of all views, and of one. A job whose view does not fit is read each time.
TOTAL_BYTES = 48 * 2**20
VIEW_BYTES = 192 * 2**10
#: Bytes in memory for each byte of a record's JSON, and for each key or child beside the records.
_PER_BYTE = 7
_PER_ENTRY = 300


class Due(Enum):
    NOTHING = auto()
    PROGRESS = auto()
    """The progress records alone."""
    EVERYTHING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What JobSets and pods show of the writers of a run folder."""

    job: tuple[str, int]
    """UID and generation."""
    alive: frozenset[Hashable]
    """What may still write: JobSets and pods with their restarts and ended containers."""
    ended: frozenset[Hashable]
    """What has ended."""
    working: frozenset[AttemptKey]
    """Attempts that may be running, and report their progress."""

    @classmethod
    def of(cls, job: Job, jobsets: Sequence[JobSet], pods: Sequence[Pod]) -> Self:
        own: list[tuple[bool, Hashable]] = [
            (each.ended, (each.uid, each.restarts, each.suspended, each.held, each.deleting))
            for each in jobsets
        ]
        own += [(not each.live, _pod(each)) for each in pods]
        return cls(
            job=(job.uid, job.generation),
            alive=frozenset(each for ended, each in own if not ended),
            ended=frozenset(each for ended, each in own if ended),
            working=frozenset(
                replace(each.key, restart=each.restarts)
                for each in jobsets
                if each.key and not each.ended and not each.suspended
            ),
        )

    def continues(self, earlier: Self) -> bool:
        """Whether nothing has ended, restarted or vanished since. JobSets and pods may have been added or started."""
        return self.job == earlier.job and self.ended == earlier.ended and earlier.alive <= self.alive


def _pod(pod: Pod) -> Hashable:
    containers = tuple(
        (each.name, each.restart_count)
        for each in pod.containers
        if each.restart_count or each.state.terminated
    )
    return pod.name, pod.creation_timestamp, containers


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A view of a run folder, and when and under which state it was read."""

    view: RunFolderView
    state: ClusterState
    """As it was observed last; nothing has ended since the folder was read."""
    listed: float
    """Time before everything was read, by a monotonic clock in seconds."""
    progress_read: float
    """Time before the progress was read."""
    json_bytes: int
    """Size of the view's records as JSON, without the progress."""
    progress_bytes: int = 0
    """Size of the progress as JSON."""

    @property
    def size(self) -> int:
        """Estimated size in memory in bytes."""
        entries = len(self.view.attempts) + len(self.view.foreign_attempts)
        entries += len(self.state.alive) + len(self.state.ended)
        return _PER_BYTE * (self.json_bytes + self.progress_bytes) + _PER_ENTRY * (entries + 10)


def due(reading: Reading, state: ClusterState, *, now: float, pace: float) -> Due:
    """Returns what is to be read before the next decision, after the last reading of the job.

    ``pace``: seconds between two readings of the progress of one job.
    """
    if not state.continues(reading.state):
        return Due.EVERYTHING
    age = now - reading.listed
    if not state.working:
        return Due.EVERYTHING if age >= max(LISTING_SECONDS, pace) else Due.NOTHING
    if now - reading.progress_read < pace:
        return Due.NOTHING
    # Only a listing shows that a trainer has started.
    started = state.working <= reading.view.attempts.keys()
    if any(key.stage is Stage.TRAIN for key in state.working):
        # Not too old before the progress is read again.
        recent = age + pace <= LISTING_SECONDS
    else:
        # A listing during Convert costs three requests, so at a slow pace only each second reading is one.
        recent = age < max(LISTING_SECONDS, 2 * pace)
    return Due.PROGRESS if started and recent else Due.EVERYTHING


def reusable(view: RunFolderView) -> bool:
    """Whether a view has no fault. What could not be read may be readable a moment later."""
    faults = (view.unreadable, view.progress_unknown, view.convert_manifest_fault, view.warnings)
    return not any(faults) and not any(each.malformed or each.newer for each in view.attempts.values())


class ViewCache:
    """The last readings, by job.

    When they are full, the tenant that has most gives way to others; readings of its own further jobs are not kept, so
    that its jobs do not displace each other in turn. ``limit_bytes`` is of the estimated size of all in memory.
    """

    def __init__(self, limit_bytes: int = TOTAL_BYTES) -> None:
        self._limit = limit_bytes
        self._readings: dict[Hashable, tuple[str, Reading]] = {}
        """Tenant and reading by job, the last one that was kept last."""
        self._sizes: Counter[str] = Counter()
        """By tenant."""

    @property
    def size(self) -> int:
        """Estimated size of all readings in bytes."""
        return self._sizes.total()

    def get(self, job: Hashable) -> Reading | None:
        kept = self._readings.get(job)
        return kept and kept[1]

    def keep(self, tenant: str, job: Hashable, reading: Reading) -> None:
        """Replaces the job's reading. There is none then if the new one has a fault or does not fit."""
        self.forget(job)
        if reusable(reading.view) and reading.size <= VIEW_BYTES and self._has_room(tenant, reading.size):
            self._readings[job] = tenant, reading
            self._sizes[tenant] += reading.size

    def forget(self, job: Hashable) -> None:
        if kept := self._readings.pop(job, None):
            tenant, reading = kept
            self._sizes[tenant] -= reading.size
            if not self._sizes[tenant]:
                del self._sizes[tenant]

    def _has_room(self, tenant: str, size: int) -> bool:
        """Drops readings of the tenant that has most, as long as it then has no less than this one, until it fits."""
        while self._sizes and self.size + size > self._limit:
            most = max(self._sizes, key=self._sizes.__getitem__)
            job = next(job for job, (owner, _) in reversed(self._readings.items()) if owner == most)
            if self._sizes[most] - self._readings[job][1].size < self._sizes[tenant] + size:
                return False
            self.forget(job)
        return size <= self._limit
