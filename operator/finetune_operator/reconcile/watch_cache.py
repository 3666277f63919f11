"""Caches unfinished jobs with their JobSets and pods, and the profiles, as their watches deliver them.

It is what informers are to other controllers, with three additions. The responses to the operator's own writes are put
into it, so that it is never older than they are. It answers only if it is complete and its watches are alive; otherwise
the caller reads live. It keeps JSON of the fields that decisions read, within a limit for each namespace.

docs/decisions/watch-cache.md explains why decisions may rely on it.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pydantic_core import to_json

from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES, Object, ResourceKind, WatchStream
from finetune_operator.lifecycle.children.ownership import may_be_jobset_of, may_be_pod_of
from finetune_operator.lifecycle.decide import finished, unprocessed
from finetune_operator.reconcile.watch_objects import PARSERS, version_of
from finetune_operator.rendering.labels import UID_LABEL

log = logging.getLogger(__name__)

#: Age in seconds of a watch's last event or bookmark above which its objects are not relied on. The API server sends a
#: bookmark each minute.
OLDEST_SECONDS = 90.0
#: Maximum wait in seconds for a listing after which the watch starts.
LISTING_SECONDS = 10.0
#: Maximum size in bytes of what is kept of the jobs and children of one namespace, and of all.
NAMESPACE_BYTES = 32 * 2**20
TOTAL_BYTES = 128 * 2**20

_MAY_BE_CHILD: Mapping[ResourceKind, Callable[[Object, Object], bool]] = {
    JOBSETS: may_be_jobset_of,
    PODS: may_be_pod_of,
}


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A job with all its JobSets and pods, reduced to what decisions read."""

    job: Object
    jobsets: Sequence[Object]
    pods: Sequence[Object]


@dataclass(frozen=True, slots=True)
class _Stored:
    version: int
    document: bytes


@dataclass(slots=True)
class _Entry:
    """One unfinished job."""

    metadata: Mapping[str, Any]
    stored: _Stored
    complete: bool
    """Whether every child that exists is in ``children``."""
    children: dict[ResourceKind, dict[str, _Stored]] = field(
        default_factory=lambda: {kind: {} for kind in _MAY_BE_CHILD}
    )
    """By kind and uid."""
    deleted: set[str] = field(default_factory=set)
    """UIDs of children whose deletion was reported while the entry was incomplete."""

    @property
    def identity(self) -> Object:
        """The part of the job by which its children are recognized."""
        return {"metadata": self.metadata}

    @property
    def namespace(self) -> str:
        namespace: str = self.metadata["namespace"]
        return namespace


@dataclass(slots=True)
class _StreamState:
    heard: float
    """Time of the last event, bookmark or page."""
    since: float
    """Time since which ``listed`` has its value."""
    begun: bool = False
    """A listing has begun."""
    listed: bool = False
    """A listing is complete, and the watch has lost no event since."""
    version: int = -1
    """Newest resource version that the stream has delivered."""
    seen: set[str] = field(default_factory=set)
    """UIDs in the current listing, of cached objects only."""


class WatchCache:
    """The cache. It is used by one event loop.

    Args:
        streams: the streams that feed it.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, streams: Iterable[WatchStream] = (), *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._clock = clock
        self._streams = {
            stream: _StreamState(heard=clock(), since=clock()) for stream in streams if stream.kind in PARSERS
        }
        self._by_path = {stream.path: stream for stream in self._streams}
        self._jobs: dict[str, _Entry] = {}
        """By uid."""
        self._uids: dict[tuple[str, str], str] = {}
        """UIDs by namespace and name."""
        self._profiles: dict[str, _Stored] = {}
        """By uid."""
        self._bytes: Counter[str] = Counter()
        """By namespace."""
        self._listed = asyncio.Event()

    # What the watches deliver.

    def page(self, path: str, text: bytes | bytearray, *, first: bool) -> None:
        """Takes one page of the listing with which a watch starts."""
        stream = self._by_path.get(path)
        if stream is None:
            return
        state = self._streams[stream]
        try:
            page = PARSERS[stream.kind].page(text)
        except (ValueError, KeyError):
            log.exception("a page of %s cannot be parsed; they are read live", stream)
            self._set_listed(state, listed=False)
            return
        state.heard = self._clock()
        if first:
            if page.version < state.version:
                # The API server's data were restored from a backup: resource versions are repeated.
                self._clear(stream)
            self._set_listed(state, listed=False)
            state.begun, state.version, state.seen = True, page.version, set()
        for each in page.items:
            self._put(stream.kind, each)
            if self._version(stream.kind, each) is not None:
                state.seen.add(each["metadata"]["uid"])
        if page.last:
            self._drop_unseen(stream, state)
            state.seen = set()
            self._set_listed(state, listed=True)

    def line(self, path: str, line: bytes | bytearray) -> bool:
        """Takes one line of a watch. False if the stream must be listed again: its resource version has decreased."""
        stream = self._by_path.get(path)
        if stream is None:
            return True
        state = self._streams[stream]
        try:
            event = PARSERS[stream.kind].event(line)
        except (ValueError, KeyError):
            log.exception("an event of %s cannot be parsed; they are listed again", stream)
            self._set_listed(state, listed=False)
            return False
        if event.version is None:
            # An error, after which the watch starts again with a listing.
            self._set_listed(state, listed=False)
            return True
        state.heard = self._clock()
        if event.version < state.version:
            log.warning("the resource version of %s has decreased; they are listed again", stream)
            self._set_listed(state, listed=False)
            return False
        state.version = event.version
        match event.type:
            case "ADDED" | "MODIFIED":
                self._put(stream.kind, event.object)
            case "DELETED":
                self._remove(stream.kind, event.object)
        return True

    # What the operator reads and writes itself.

    def wrote(self, kind: ResourceKind, found: Object) -> None:
        """Takes the API server's response to a write, or an object that was read live."""
        self._put(kind, PARSERS[kind].reduce(found))

    def adopt(self, job: Object) -> None:
        """Begins to keep the children of a job that was read live, before they are listed."""
        self._put(JOBS, job)
        if entry := self._jobs.get(job["metadata"]["uid"]):
            entry.deleted.clear()

    def complete(self, uid: str, children: Mapping[ResourceKind, Sequence[Object]]) -> None:
        """Takes all children of a job. They were listed live after :meth:`adopt`."""
        entry = self._jobs.get(uid)
        if entry is None or entry.complete:
            return
        entry.complete = True
        for kind, found in children.items():
            for each in found:
                if each["metadata"]["uid"] not in entry.deleted:
                    self._put_child(kind, entry, each)
        entry.deleted.clear()

    def distrust(self, uid: str) -> None:
        """Has the job and its children read live the next time."""
        if entry := self._jobs.get(uid):
            self._empty(entry)

    async def job(self, namespace: str, name: str) -> CachedJob | None:
        """Returns an unfinished job with all its JobSets and pods; None if they must be read live."""
        if not await self._ready(namespace):
            return None
        entry = self._jobs.get(self._uids.get((namespace, name), ""))
        if entry is None or not entry.complete:
            return None
        return CachedJob(
            job=json.loads(entry.stored.document),
            jobsets=[json.loads(each.document) for each in entry.children[JOBSETS].values()],
            pods=[json.loads(each.document) for each in entry.children[PODS].values()],
        )

    def profiles(self) -> Sequence[Object] | None:
        """Returns all profiles; None if they must be read live."""
        state = self._streams.get(WatchStream(PROFILES, None))
        if state is None or not self._alive(state):
            return None
        return [json.loads(each.document) for each in self._profiles.values()]

    async def listed(self, path: str, *, seconds: float) -> None:
        """Waits until the jobs that own the children in that collection are listed, at most for that time."""
        stream = self._by_path.get(path)
        if stream is None or stream.kind not in _MAY_BE_CHILD:
            return
        jobs = self._streams.get(WatchStream(JOBS, stream.namespace))
        if jobs is not None:
            await self._until(lambda: jobs.listed, seconds)

    def children(self, kind: ResourceKind, namespace: str | None) -> Iterator[tuple[str, str, int]]:
        """Yields uid, uid of the job and resource version of each cached child."""
        for job, entry in self._jobs.items():
            if entry.complete and namespace in (None, entry.namespace):
                for uid, stored in entry.children[kind].items():
                    yield uid, job, stored.version

    def owner_of(self, kind: ResourceKind, child: Object) -> str | None:
        """Returns the uid of the cached job that a child belongs to by its metadata."""
        entry = self._jobs.get(_job_of(child))
        if entry is None or not entry.complete or not _MAY_BE_CHILD[kind](entry.identity, child):
            return None
        return _job_of(child)

    def lacks(self, kind: ResourceKind, found: Object) -> bool:
        """Whether an object, or this version of it, is missing from the cache."""
        version = self._version(kind, found)
        return version is None or version < version_of(found)

    def version_of_job(self, uid: str) -> int | None:
        """Returns the resource version of a cached job; None if it is not cached."""
        entry = self._jobs.get(uid)
        return entry.stored.version if entry else None

    def bytes_of(self, namespace: str | None = None) -> int:
        """Returns the size of what is kept of the jobs and children of one namespace, or of all."""
        return self._bytes[namespace] if namespace else self._bytes.total()

    # Inner parts.

    async def _ready(self, namespace: str) -> bool:
        """Whether the watches of jobs and children are complete and alive. Waits for a listing that has just begun."""
        states = [self._state(kind, namespace) for kind in (JOBS, *_MAY_BE_CHILD)]
        known = [state for state in states if state is not None]
        if len(known) < len(states):
            return False
        waiting = [state.since for state in known if not state.listed]
        if waiting:
            left = min(waiting) + LISTING_SECONDS - self._clock()
            await self._until(lambda: all(state.listed for state in known), left)
        return all(map(self._alive, known))

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await self._listed.wait()
        except TimeoutError:
            return

    def _alive(self, state: _StreamState) -> bool:
        return state.listed and self._clock() - state.heard <= OLDEST_SECONDS

    def _state(self, kind: ResourceKind, namespace: str) -> _StreamState | None:
        return self._streams.get(WatchStream(kind, None)) or self._streams.get(WatchStream(kind, namespace))

    def _set_listed(self, state: _StreamState, *, listed: bool) -> None:
        if state.listed != listed:
            state.listed, state.since = listed, self._clock()
        if listed:
            self._listed.set()
            self._listed = asyncio.Event()

    def _put(self, kind: ResourceKind, found: Object) -> None:
        """Stores an object unless a newer version of it is stored."""
        if kind == PROFILES:
            _store(self._profiles, found)
        elif kind == JOBS:
            self._put_job(found)
        elif (entry := self._jobs.get(_job_of(found))) and _MAY_BE_CHILD[kind](entry.identity, found):
            self._put_child(kind, entry, found)

    def _version(self, kind: ResourceKind, found: Object) -> int | None:
        """Returns the version that is stored of an object; None if it is not stored."""
        metadata = found["metadata"]
        if kind == PROFILES:
            stored = self._profiles.get(metadata["uid"])
        elif kind == JOBS:
            job = self._jobs.get(metadata["uid"])
            stored = job.stored if job else None
        else:
            owner = self._jobs.get(_job_of(found))
            stored = owner.children[kind].get(metadata["uid"]) if owner else None
        return stored.version if stored else None

    def _put_job(self, job: Object) -> None:
        metadata, version = job["metadata"], version_of(job)
        key, uid = (metadata["namespace"], metadata["name"]), metadata["uid"]
        other = self._jobs.get(self._uids.get(key, ""))
        if other is not None and other.stored.version > version:
            return
        if other is not None and (other.metadata["uid"] != uid or finished(job)):
            # Decisions about a finished job are rare, and read live.
            self._drop(other)
            other = None
        if finished(job):
            return
        stored = _Stored(version, to_json(job))
        if other is None:
            complete = unprocessed(job) or not self._children_begun(metadata["namespace"])
            other = _Entry(metadata, stored, complete)
            self._jobs[uid], self._uids[key] = other, uid
        else:
            self._bytes[key[0]] -= len(other.stored.document)
            other.metadata, other.stored = metadata, stored
        self._bytes[key[0]] += len(stored.document)

    def _put_child(self, kind: ResourceKind, entry: _Entry, found: Object) -> None:
        children = entry.children[kind]
        before = children.get(found["metadata"]["uid"])
        if not _store(children, found):
            return
        added = len(children[found["metadata"]["uid"]].document) - (len(before.document) if before else 0)
        self._bytes[entry.namespace] += added
        if self._bytes[entry.namespace] > NAMESPACE_BYTES or self._bytes.total() > TOTAL_BYTES:
            self._empty(entry)

    def _remove(self, kind: ResourceKind, found: Object) -> None:
        uid = found["metadata"]["uid"]
        if kind == PROFILES:
            self._profiles.pop(uid, None)
        elif kind == JOBS:
            if entry := self._jobs.get(uid):
                self._drop(entry)
        elif entry := self._jobs.get(_job_of(found)):
            if not entry.complete:
                entry.deleted.add(uid)
            if child := entry.children[kind].pop(uid, None):
                self._bytes[entry.namespace] -= len(child.document)

    def _empty(self, entry: _Entry) -> None:
        """Drops the children of a job, which are then read live."""
        for children in entry.children.values():
            self._bytes[entry.namespace] -= sum(len(each.document) for each in children.values())
            children.clear()
        entry.complete = False

    def _drop(self, entry: _Entry) -> None:
        self._empty(entry)
        self._bytes[entry.namespace] -= len(entry.stored.document)
        uid: str = entry.metadata["uid"]
        del self._jobs[uid]
        del self._uids[entry.namespace, entry.metadata["name"]]
        if not self._bytes[entry.namespace]:
            del self._bytes[entry.namespace]

    def _children_begun(self, namespace: str) -> bool:
        return any(
            state.begun for kind in _MAY_BE_CHILD if (state := self._state(kind, namespace)) is not None
        )

    def _clear(self, stream: WatchStream) -> None:
        """Forgets what a stream has delivered."""
        if stream.kind == PROFILES:
            self._profiles.clear()
        for entry in [each for each in self._jobs.values() if stream.namespace in (None, each.namespace)]:
            if stream.kind == JOBS:
                self._drop(entry)
            elif stream.kind in _MAY_BE_CHILD:
                self._empty(entry)

    def _drop_unseen(self, stream: WatchStream, state: _StreamState) -> None:
        """Drops what a complete listing lacks: it was deleted while the watch was interrupted."""

        def gone(uid: str, stored: _Stored) -> bool:
            # A newer object was created after the listing.
            return uid not in state.seen and stored.version <= state.version

        if stream.kind == PROFILES:
            for uid in [uid for uid, stored in self._profiles.items() if gone(uid, stored)]:
                del self._profiles[uid]
            return
        for job, entry in list(self._jobs.items()):
            if stream.namespace not in (None, entry.namespace):
                continue
            if stream.kind == JOBS:
                if gone(job, entry.stored):
                    self._drop(entry)
                continue
            for uid, stored in list(entry.children[stream.kind].items()):
                if gone(uid, stored):
                    self._bytes[entry.namespace] -= len(stored.document)
                    del entry.children[stream.kind][uid]


def _job_of(child: Object) -> str:
    """Returns the uid of the job in a child's labels; empty if it has none."""
    uid: str = child["metadata"].get("labels", {}).get(UID_LABEL, "")
    return uid


def _store(stored: dict[str, _Stored], found: Object) -> bool:
    """Stores an object by uid. False if the same or a newer version is stored."""
    uid, version = found["metadata"]["uid"], version_of(found)
    if uid in stored and stored[uid].version >= version:
        return False
    stored[uid] = _Stored(version, to_json(found))
    return True
