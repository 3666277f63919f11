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


@dataclass(slots=True)
class StreamState:
    """State of one stream."""

    stream: WatchStream
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

    def has_delivered(self, version: int) -> bool:
        """Whether the stream has delivered all events up to that version."""
        return self.listed and version <= self.version


class WatchStreams:
    """All streams. They are used by one event loop.

    Args:
        streams: the streams.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, streams: Iterable[WatchStream] = (), *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._clock = clock
        self._states = {
            stream: StreamState(stream=stream, heard=clock(), since=clock()) for stream in streams
        }
        self._by_path = {stream.path: state for stream, state in self._states.items()}
        self._listed = asyncio.Event()

    @property
    def all(self) -> tuple[WatchStream, ...]:
        return tuple(self._states)

    def at(self, path: str) -> StreamState:
        """Returns the stream with that path."""
        return self._by_path[path]

    def of(self, kind: ResourceKind, namespace: str | None) -> StreamState | None:
        """Returns the stream that delivers a kind in a namespace; None if it is not watched."""
        return self._states.get(WatchStream(kind, None)) or self._states.get(WatchStream(kind, namespace))

    def known(self, kinds: Iterable[ResourceKind], namespace: str) -> Iterator[StreamState]:
        """Yields the streams of those kinds that are watched in a namespace."""
        return (state for kind in kinds if (state := self.of(kind, namespace)) is not None)

    def hear(self, state: StreamState, version: int) -> None:
        """Records an event, bookmark or page up to that version."""
        state.heard, state.version = self._clock(), version

    def set_listed(self, state: StreamState, *, listed: bool) -> None:
        if state.listed != listed:
            state.listed, state.since = listed, self._clock()
        if listed:
            self._listed.set()
            self._listed = asyncio.Event()

    def age(self, state: StreamState) -> float:
        """Returns the seconds since the stream's last event, bookmark or page."""
        return self._clock() - state.heard

    def alive(self, state: StreamState) -> bool:
        """Whether what the stream has delivered may be relied on."""
        return state.listed and self.age(state) <= OLDEST_SECONDS

    async def ready(self, kinds: Iterable[ResourceKind], namespace: str) -> bool:
        """Whether the streams of all these kinds are alive. Waits for a listing that has just begun."""
        kinds = tuple(kinds)
        known = list(self.known(kinds, namespace))
        if len(known) < len(kinds):
            return False
        waiting = [state.since for state in known if not state.listed]
        if waiting:
            left = min(waiting) + LISTING_SECONDS - self._clock()
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
