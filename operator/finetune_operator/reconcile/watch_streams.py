"""State of the watch streams: what each has listed, up to which version, and how long ago it was last heard."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from finetune_operator.cluster.port import ResourceKind, WatchStream

#: Age in seconds of a watch's last event or bookmark above which its objects are not relied on. The API server sends a
#: bookmark each minute if it knows that nothing older can follow: etcd reports its progress, or the kind changes.
OLDEST_SECONDS = 90.0
#: Maximum wait in seconds for a listing after which the watch starts.
LISTING_SECONDS = 10.0
#: Seconds after which the server ends a watch; reopening it is the sign of activity of a quiet watch.
SERVER_SECONDS = 120
#: Seconds without any data, not even a bookmark (at most one per minute), after which a watch is reopened.
INACTIVITY_SECONDS = 70
#: Seconds after which a watch counts as dead: both of the above and the pauses between retries.
DEAD_SECONDS = SERVER_SECONDS + INACTIVITY_SECONDS + 50


@dataclass(slots=True)
class StreamState:
    stream: WatchStream
    heard: float
    """Time of the last event, bookmark or page."""
    active: float
    """The same, or the time of the last list or watch that the API server accepted: in a quiet cluster nothing else is
    a sign of life."""
    since: float
    """Time since which ``listed`` has its value."""
    begun: bool = False
    """A listing has begun."""
    listed: bool = False
    """A listing is complete, and the watch has lost no event since."""
    version: int = -1
    """Newest resource version that the stream has delivered."""


class WatchStreams:
    """All streams. They are used by one event loop."""

    def __init__(
        self, streams: Iterable[WatchStream] = (), *, clock: Callable[[], float] = monotonic
    ) -> None:
        self.now = clock
        now = clock()
        self._states = {stream: StreamState(stream, heard=now, active=now, since=now) for stream in streams}
        self._by_path = {stream.path: state for stream, state in self._states.items()}
        self._listed = asyncio.Event()

    @property
    def all(self) -> tuple[WatchStream, ...]:
        return tuple(self._states)

    def at(self, path: str) -> StreamState:
        return self._by_path[path]

    def of(self, kind: ResourceKind, namespace: str | None) -> StreamState | None:
        """Returns the stream that delivers a kind in a namespace; None if it is not watched."""
        return self._states.get(WatchStream(kind, None)) or self._states.get(WatchStream(kind, namespace))

    def known(self, kinds: Iterable[ResourceKind], namespace: str) -> Iterator[StreamState]:
        return (state for kind in kinds if (state := self.of(kind, namespace)) is not None)

    def version(self, kind: ResourceKind) -> int | None:
        """Returns the newest version that was delivered of a cluster-scoped kind; None if it is not watched."""
        state = self.of(kind, None)
        return state.version if state else None

    def hear(self, state: StreamState, version: int) -> None:
        """Records an event, bookmark or page up to that version."""
        state.heard = state.active = self.now()
        state.version = version

    def accepted(self, path: str) -> None:
        """Records that the API server has accepted a request; those for anything else than a stream are ignored."""
        if state := self._by_path.get(path):
            state.active = self.now()

    def set_listed(self, state: StreamState, *, listed: bool) -> None:
        if state.listed != listed:
            state.listed, state.since = listed, self.now()
        if listed:
            self._listed.set()
            self._listed = asyncio.Event()

    def age(self, stream: WatchStream) -> float:
        """Returns the seconds since the stream's last event, bookmark or page."""
        return self.now() - self._states[stream].heard

    def alive(self, state: StreamState) -> bool:
        """Whether what the stream has delivered may be relied on."""
        return state.listed and self.age(state.stream) <= OLDEST_SECONDS

    def dead(self) -> tuple[str, ...]:
        """Returns a sentence for each watch without activity for more than DEAD_SECONDS."""
        now = self.now()
        return tuple(
            f"the watch of {stream} has received nothing for {now - state.active:.0f} s"
            for stream, state in self._states.items()
            if now - state.active > DEAD_SECONDS
        )

    async def ready(self, kinds: Iterable[ResourceKind], namespace: str) -> bool:
        """Whether the streams of all these kinds are alive. Waits for a listing that has just begun."""
        kinds = tuple(kinds)
        known = list(self.known(kinds, namespace))
        if len(known) < len(kinds):
            return False
        waiting = [state.since for state in known if not state.listed]
        if waiting:
            left = min(waiting) + LISTING_SECONDS - self.now()
            await self.until(lambda: all(state.listed for state in known), left)
        return all(map(self.alive, known))

    async def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Waits until a listing has ended after which the condition holds, at most for that time."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await self._listed.wait()
        except TimeoutError:
            return
