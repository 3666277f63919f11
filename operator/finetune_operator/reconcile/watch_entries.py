"""Unfinished jobs as JSON, with their children as the views that decisions read, within a limit for all."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from sys import getsizeof
from typing import Any, Self

from pydantic_core import to_json

from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, WORKLOADS, ResourceKind
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.ownership import (
    job_named_by,
    may_be_jobset_of,
    may_be_pod_of,
    may_be_workload_of,
)
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.workload import Workload
from finetune_operator.objects import Object
from finetune_operator.reconcile.watch_objects import version_of
from finetune_operator.rendering.labels import UID_LABEL

#: Maximum size in bytes of what is kept of all jobs and their children.
TOTAL_BYTES = 160 * 2**20
#: Maximum size in bytes of the children of one job: some 5,000 pods; the largest slice has 2,304. Larger jobs are read
#: live, with one of a few slots (:mod:`.children`).
JOB_BYTES = 12 * 2**20

MAY_BE_CHILD: Mapping[ResourceKind, Callable[[Object, Object], bool]] = {
    JOBSETS: may_be_jobset_of,
    PODS: may_be_pod_of,
    WORKLOADS: may_be_workload_of,
}


_VIEWS: Mapping[ResourceKind, Callable[[Object], object]] = {
    JOBSETS: JobSet.parse,
    PODS: Pod.parse,
    WORKLOADS: Workload.parse,
}


@dataclass(frozen=True, slots=True)
class ChildVersion:
    uid: str
    version: int
    view: Any
    """The JobSet, Pod or Workload."""
    size: int
    """Bytes in memory, at most."""

    @classmethod
    def of(cls, kind: ResourceKind, found: Object) -> Self:
        view = _VIEWS[kind](found)
        return cls(found["metadata"]["uid"], version_of(found), view, weight(view))


def own_child(kind: ResourceKind, job: Object, found: Object) -> ChildVersion | None:
    """Parses a JobSet, pod or Workload; None if it is not the job's by its metadata."""
    return ChildVersion.of(kind, found) if MAY_BE_CHILD[kind](job, found) else None


def weight(value: object) -> int:
    """Returns the bytes of memory that views take, at most: values that several share count for each."""
    if isinstance(value, list | tuple | frozenset):
        return getsizeof(value) + sum(map(weight, value))
    if isinstance(value, Enum):
        return 0
    if isinstance(value, str | datetime):
        return getsizeof(value)
    fields = getattr(type(value), "__slots__", ())
    return getsizeof(value) + sum(weight(getattr(value, name)) for name in fields) if fields else 0


@dataclass(slots=True)
class JobEntry:
    namespace: str
    name: str
    uid: str
    version: int
    document: bytes
    """The job as JSON. As Python objects, its spec and status would take ten times as much."""
    complete: bool
    """Whether every child that exists is in ``children``."""
    delivered: float
    """Time at which this version of the job was delivered, by the clock of the watches."""
    adopted: bool = False
    """Whether the children are being listed live, and no event of them has been missed since."""
    children: dict[ResourceKind, dict[str, ChildVersion]] = field(
        default_factory=lambda: {kind: {} for kind in MAY_BE_CHILD}
    )
    """By kind and uid."""
    deleted: set[str] = field(default_factory=set)
    """UIDs of children whose deletion was reported while they were listed live."""
    dropped: set[str] = field(default_factory=set)
    """UIDs of children that the entry had before it was emptied."""
    gone: set[str] = field(default_factory=set)
    """Those of them that a live read has lacked since. The watch may still deliver older events of them."""
    size: int = 0
    """Size of the children in bytes."""

    @property
    def identity(self) -> Object:
        """The part of the job by which its children are recognized."""
        return {"metadata": {"namespace": self.namespace, "name": self.name, "uid": self.uid}}

    def views(self, kind: ResourceKind) -> list[Any]:
        return [child.view for child in self.children[kind].values()]


class JobEntries:
    def __init__(self) -> None:
        self._jobs: dict[str, JobEntry] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._holders: dict[str, JobEntry] = {}
        """By uid of the child: the entry that has it."""
        self._bytes: Counter[str] = Counter()
        """By namespace."""
        self._total = 0

    def get(self, uid: str) -> JobEntry | None:
        return self._jobs.get(uid)

    def named(self, namespace: str, name: str) -> JobEntry | None:
        return self._jobs.get(self._uids.get((namespace, name), ""))

    def within(self, namespace: str | None) -> Iterator[JobEntry]:
        """Yields the entries of a namespace, or all."""
        return (entry for entry in list(self._jobs.values()) if namespace in (None, entry.namespace))

    def named_by(self, kind: ResourceKind, child: Object) -> JobEntry | None:
        """Returns the entry of a job, or of the job that a child names, without checking that it is the job's.

        Names and labels are texts that any tenant may write, so a job has children in its own namespace only.
        """
        metadata = child["metadata"]
        if kind == JOBS:
            return self.get(metadata["uid"])
        if kind == WORKLOADS:
            return self.named(metadata["namespace"], job_named_by(child) or "")
        entry = self._jobs.get(metadata.get("labels", {}).get(UID_LABEL, ""))
        return entry if entry is not None and entry.namespace == metadata["namespace"] else None

    def holder_of(self, uid: str) -> JobEntry | None:
        return self._holders.get(uid)

    def owner_of(self, kind: ResourceKind, child: Object) -> JobEntry | None:
        """Returns the entry of the job that a child belongs to by its metadata."""
        entry = self.named_by(kind, child)
        return entry if entry is not None and MAY_BE_CHILD[kind](entry.identity, child) else None

    def put_job(self, job: Object, *, complete: bool, now: float) -> None:
        """Stores an unfinished job. ``complete``: whether no child of it was missed, if it is not stored yet."""
        metadata = job["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        version, document, entry = version_of(job), to_json(job), self.named(namespace, name)
        if entry is None:
            entry = JobEntry(namespace, name, uid, version, document, complete, now)
            self._jobs[uid], self._uids[namespace, name] = entry, uid
            self._count(namespace, len(document))
        else:
            self._count(namespace, len(document) - len(entry.document))
            entry.version, entry.document, entry.delivered = version, document, now
        self._make_room()

    def put_child(self, kind: ResourceKind, entry: JobEntry, child: ChildVersion) -> None:
        """Stores a child unless the same or a newer version is stored, or it is gone.

        The job that it named before loses it.
        """
        if child.uid in entry.gone:
            return
        if holder := self.holder_of(child.uid):
            if holder.children[kind][child.uid].version >= child.version:
                return
            self.remove_child(kind, holder, child.uid)
        entry.children[kind][child.uid] = child
        self._holders[child.uid] = entry
        self._resize(entry, child.size)
        if entry.size > JOB_BYTES:
            self.empty(entry)
        self._make_room()

    def remove_child(self, kind: ResourceKind, entry: JobEntry, uid: str) -> None:
        if child := entry.children[kind].pop(uid, None):
            del self._holders[uid]
            self._resize(entry, -child.size)
        entry.dropped.discard(uid)
        entry.gone.discard(uid)

    def empty(self, entry: JobEntry) -> None:
        """Drops the children of a job, which are then read live."""
        self._resize(entry, -entry.size)
        for children in entry.children.values():
            for uid in children:
                del self._holders[uid]
            entry.dropped.update(children)
            children.clear()
        entry.deleted.clear()
        entry.complete = entry.adopted = False

    def drop(self, entry: JobEntry) -> None:
        self.empty(entry)
        self._count(entry.namespace, -len(entry.document))
        del self._jobs[entry.uid]
        del self._uids[entry.namespace, entry.name]

    def _make_room(self) -> None:
        """Drops the largest jobs, with their children, of the namespace that takes most. They are then read live."""
        while self._total > TOTAL_BYTES:
            namespace = max(self._bytes, key=self._bytes.__getitem__)
            largest = max(self.within(namespace), key=lambda entry: entry.size + len(entry.document))
            self.drop(largest)

    def _resize(self, entry: JobEntry, added: int) -> None:
        entry.size += added
        self._count(entry.namespace, added)

    def _count(self, namespace: str, added: int) -> None:
        self._total += added
        self._bytes[namespace] += added
        if not self._bytes[namespace]:
            del self._bytes[namespace]
