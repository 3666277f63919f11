"""Caches unfinished jobs with their JobSets, pods and Workloads, as their watches deliver them.

It is what informers are to other controllers, with three additions. The responses to the operator's own writes are put
into it, so that it is never older than they are. It answers only if it is complete and its watches are alive; otherwise
the caller reads live. It keeps what decisions read, within a limit.

docs/decisions/watch-cache.md explains why decisions may rely on it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from pydantic_core import from_json

from finetune_operator.api.conditions import is_true
from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, WORKLOADS, ResourceKind, WatchStream
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.ownership import owner_uids
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.workload import Workload
from finetune_operator.lifecycle.job import Job, unprocessed
from finetune_operator.objects import Object
from finetune_operator.reconcile.watch_entries import MAY_BE_CHILD, ChildVersion, JobEntries
from finetune_operator.reconcile.watch_objects import (
    ListPage,
    WatchLine,
    parse_line,
    parse_page,
    reduced,
    version_of,
)
from finetune_operator.reconcile.watch_streams import StreamState, WatchStreams

log = logging.getLogger(__name__)

#: Kinds without which nothing is answered. Workloads are watched only where Kueue is installed.
_REQUIRED = (JOBS, JOBSETS, PODS)
#: Kinds whose objects are cached. Of the profiles, the watch is only parsed.
_CACHED = (JOBS, *MAY_BE_CHILD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJob:
    """A job with its plan, and its children by their metadata."""

    job: Job
    config_map: Object | None = None
    jobsets: Sequence[JobSet]
    pods: Sequence[Pod] = ()
    workloads: tuple[Workload, ...] | None = ()
    """Those of JobSets that Kueue manages; None if Kueue is not installed, and from the cache if they must be read."""
    cached_since: float | None = None
    """Time at which the job was delivered as it is, by the clock of the watches; None if it was read live."""
    excess: str | None = None
    """Why pods and Workloads are unknown, as a sentence: more objects carry the job's labels than are read. ``jobsets``
    then has those that the status names, and the next one of each stage. None: everything is known."""


class WatchCache:
    """The cache, which the streams feed. It is used by one event loop.

    ``missed`` is called with each unfinished job that is found to be deleted without an event, as it was last observed.
    """

    def __init__(
        self,
        streams: Iterable[WatchStream] = (),
        *,
        clock: Callable[[], float] = monotonic,
        missed: Callable[[Object], object] = lambda _job: None,
    ) -> None:
        self._missed = missed
        self.streams = WatchStreams(streams, clock=clock)
        self._entries = JobEntries()
        self._seen: dict[str, set[str]] = {}
        """By path: UIDs in the current listing, of cached objects only."""

    # What the watches deliver.

    def page(self, path: str, text: bytes | bytearray, *, first: bool) -> ListPage:
        """Parses and takes one page of the listing with which a watch starts. Raises ValueError."""
        state = self.streams.at(path)
        kind = state.stream.kind
        try:
            page = parse_page(kind, text)
        except (ValueError, KeyError) as error:
            self.streams.set_listed(state, listed=False)
            raise ValueError(f"a page of {state.stream} cannot be parsed") from error
        if first:
            self._begin(state, page.version)
        self.streams.hear(state, page.version)
        if kind in _CACHED:
            self._take_page(state, page)
        if page.last:
            self.streams.set_listed(state, listed=True)
        return page

    def line(self, path: str, line: bytes | bytearray) -> WatchLine | None:
        """Parses and takes one line of a watch.

        None if the stream must be listed again: its resource version has decreased, or the line cannot be parsed.
        """
        state = self.streams.at(path)
        kind = state.stream.kind
        try:
            event = parse_line(kind, line)
        except (ValueError, KeyError):
            log.exception("an event of %s cannot be parsed; they are listed again", state.stream)
            self.streams.set_listed(state, listed=False)
            return None
        if event.version is None:
            # An error, after which the watch starts again with a listing.
            self.streams.set_listed(state, listed=False)
            return event
        if self.was_restored(path, event.version):
            return None
        self.streams.hear(state, event.version)
        if kind in _CACHED:
            match event.type:
                case "ADDED" | "MODIFIED":
                    self._put(kind, event.object)
                case "DELETED":
                    self._remove(kind, event.object)
        return event

    def was_restored(self, path: str, version: int) -> bool:
        """Whether the stream must be listed again because the collection's version is lower than what was delivered.

        The cluster was restored from a backup.
        """
        state = self.streams.at(path)
        if version >= state.version:
            return False
        log.warning("the resource version of %s has decreased; they are listed again", state.stream)
        self.streams.set_listed(state, listed=False)
        return True

    # What the operator reads and writes itself.

    def wrote(self, kind: ResourceKind, found: Object) -> None:
        """Takes the API server's response to a write."""
        self._put_response(kind, reduced(kind, found))

    def adopt(self, job: Object) -> None:
        """Begins to keep the children of a job that was read live, before they are listed.

        Those that are cached are dropped: what was decided on the live ones must not be followed by a decision on older
        ones.
        """
        self._put_response(JOBS, job)
        if entry := self._entries.get(job["metadata"]["uid"]):
            self._entries.empty(entry)
            entry.adopted = True

    def complete(self, uid: str, children: Mapping[ResourceKind, Sequence[ChildVersion]]) -> None:
        """Takes all children of a job, which were listed live after :meth:`adopt`.

        Does nothing if an event of a child may have been missed since: the job is read live again.
        """
        entry = self._entries.get(uid)
        if entry is None or entry.complete or not entry.adopted:
            return
        if not all(state.listed for state in self.streams.known(MAY_BE_CHILD, entry.namespace)):
            return
        deleted = frozenset(entry.deleted)
        entry.complete, entry.adopted = True, False
        entry.deleted.clear()
        exist = {child.uid for found in children.values() for child in found}
        for missing in entry.dropped - exist:
            for kind in MAY_BE_CHILD:
                self._entries.remove_child(kind, entry, missing)
            entry.gone.add(missing)
        entry.dropped.clear()
        for kind, found in children.items():
            for child in found:
                # There is no room for all of them if the entry was emptied again.
                if entry.complete and child.uid not in deleted:
                    self._entries.put_child(kind, entry, child)

    def distrust(self, uid: str) -> None:
        """Has the job and its children read live the next time."""
        if entry := self._entries.get(uid):
            self._entries.empty(entry)

    def forget(self, namespace: str, name: str) -> None:
        """Drops a job that does not exist. If it was created again in the meantime, it is read live."""
        if entry := self._entries.named(namespace, name):
            self._entries.drop(entry)

    async def job(self, namespace: str, name: str) -> ReadJob | None:
        """Returns an unfinished job with all its children, without its plan; None if they must be read live."""
        if not await self.streams.ready(_REQUIRED, namespace):
            return None
        entry = self._entries.named(namespace, name)
        if entry is None or not entry.complete:
            return None
        workloads = self.streams.of(WORKLOADS, namespace)
        return ReadJob(
            job=Job.parse(from_json(entry.document)),
            jobsets=entry.views(JOBSETS),
            pods=entry.views(PODS),
            workloads=tuple(entry.views(WORKLOADS)) if workloads and self.streams.alive(workloads) else None,
            cached_since=entry.delivered,
        )

    async def listed(self, path: str, *, seconds: float) -> None:
        """Waits until the jobs that own the children in that collection are listed, at most for that time."""
        stream = self.streams.at(path).stream
        jobs = self.streams.of(JOBS, stream.namespace)
        if stream.kind in MAY_BE_CHILD and jobs is not None:
            await self.streams.until(lambda: jobs.listed, seconds)

    def jobs_in(self, namespace: str) -> Iterator[Object]:
        """Yields the cached jobs of a namespace as they were delivered or written last."""
        for entry in self._entries.within(namespace):
            yield from_json(entry.document)

    # What the comparison with listings reads.

    def jobs_by_uid(self, kind: ResourceKind, namespace: str | None) -> dict[str, str]:
        """Returns the uid of the job of each cached object of a kind, by the object's uid."""
        entries = self._entries.within(namespace)
        if kind == JOBS:
            return {entry.uid: entry.uid for entry in entries}
        return {uid: entry.uid for entry in entries if entry.complete for uid in entry.children[kind]}

    def owner_of(self, kind: ResourceKind, found: Object) -> str | None:
        """Returns the uid of the cached job that an object is or, by its metadata, belongs to.

        A Workload belongs to a job with its JobSet. Without it, it may be cached, but no decision reads it.
        """
        if kind == JOBS:
            uid = found["metadata"]["uid"]
            return uid if self._entries.get(uid) else None
        entry = self._entries.owner_of(kind, found)
        if entry is None or not entry.complete:
            return None
        if kind == WORKLOADS and entry.children[JOBSETS].keys().isdisjoint(owner_uids(found)):
            return None
        return entry.uid

    def version(self, kind: ResourceKind, job: str, uid: str) -> int | None:
        """Returns the resource version of a cached job, or of one of its children; None if it is not cached."""
        entry = self._entries.get(job)
        found = entry if entry is None or kind == JOBS else entry.children[kind].get(uid)
        return found.version if found else None

    # Inner parts.

    def _put_response(self, kind: ResourceKind, found: Object) -> None:
        """Stores an object that was read or written live, unless the watch has already delivered that version.

        If it has and the object is not stored, it was deleted in the meantime. If an older version is stored, the watch
        has lost an event.
        """
        state = self.streams.of(kind, found["metadata"].get("namespace"))
        stored = self._version(kind, found) is not None
        delivered = state is not None and state.listed and version_of(found) <= state.version
        if stored or not delivered:
            self._put(kind, found)

    def _put(self, kind: ResourceKind, found: Object) -> None:
        """Stores an object unless a newer version of it is stored."""
        if kind == JOBS:
            self._put_job(found)
        elif entry := self._entries.owner_of(kind, found):
            self._entries.put_child(kind, entry, ChildVersion.of(kind, found))
        else:
            # It may have been a child before its labels or owner were changed.
            self._remove(kind, found)

    def _put_job(self, job: Object) -> None:
        metadata = job["metadata"]
        before = self._entries.named(metadata["namespace"], metadata["name"])
        finished = is_true(job, "Finished")
        if before is not None:
            if before.version > version_of(job):
                return
            if before.uid != metadata["uid"]:
                self._missed(from_json(before.document))
            if before.uid != metadata["uid"] or finished:
                # Decisions about a finished job are rare, and read live.
                self._entries.drop(before)
        if not finished:
            begun = any(state.begun for state in self.streams.known(MAY_BE_CHILD, metadata["namespace"]))
            self._entries.put_job(job, complete=unprocessed(job) or not begun, now=self.streams.now())

    def _remove(self, kind: ResourceKind, found: Object) -> None:
        uid = found["metadata"]["uid"]
        if kind == JOBS:
            if job := self._entries.get(uid):
                self._entries.drop(job)
        else:
            for entry in (self._entries.holder_of(uid), self._entries.named_by(kind, found)):
                if entry is not None:
                    if entry.adopted:
                        entry.deleted.add(uid)
                    self._entries.remove_child(kind, entry, uid)

    def _version(self, kind: ResourceKind, found: Object) -> int | None:
        """Returns the version that is stored of an object; None if it is not stored."""
        entry = self._entries.named_by(kind, found)
        return self.version(kind, entry.uid, found["metadata"]["uid"]) if entry else None

    def _begin(self, state: StreamState, version: int) -> None:
        stream = state.stream
        if version < state.version and stream.kind in _CACHED:
            # The API server's data were restored from a backup: resource versions are repeated.
            drop = self._entries.drop if stream.kind == JOBS else self._entries.empty
            for entry in self._entries.within(stream.namespace):
                drop(entry)
        self.streams.set_listed(state, listed=False)
        state.begun = True
        self._seen[stream.path] = set()
        if stream.kind in MAY_BE_CHILD:
            for entry in self._entries.within(stream.namespace):
                entry.adopted = False
                # The listing is newer than any live read before it.
                entry.dropped.clear()
                entry.gone.clear()

    def _take_page(self, state: StreamState, page: ListPage) -> None:
        kind, path = state.stream.kind, state.stream.path
        seen = self._seen.setdefault(path, set())
        for each in page.items:
            self._put(kind, each)
            if self._version(kind, each) is not None:
                seen.add(each["metadata"]["uid"])
        if page.last:
            self._drop_unseen(state, self._seen.pop(path))

    def _drop_unseen(self, state: StreamState, seen: set[str]) -> None:
        """Drops what a complete listing lacks: it was deleted while the watch was interrupted."""
        kind = state.stream.kind

        def is_gone(uid: str, version: int) -> bool:
            # An object with a newer version was created after the listing.
            return uid not in seen and version <= state.version

        for entry in self._entries.within(state.stream.namespace):
            if kind != JOBS:
                for child in list(entry.children[kind].values()):
                    if is_gone(child.uid, child.version):
                        self._entries.remove_child(kind, entry, child.uid)
            elif is_gone(entry.uid, entry.version):
                self._missed(from_json(entry.document))
                self._entries.drop(entry)
