"""Whether the watches live. A quiet cluster sends no events, so a silent watch is not yet a dead one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

from finetune_operator.cluster.port import ResourceKind

#: Seconds after which the server ends a watch and it is opened anew: the sign of life of a quiet one.
SERVER_SECONDS = 120
#: A watch that got nothing for this long, not even a bookmark (one a minute), is opened anew.
INACTIVITY_SECONDS = 70
#: Beyond this, nobody is watching any more: both of the above and the pauses between tries have passed.
DEAD_SECONDS = SERVER_SECONDS + INACTIVITY_SECONDS + 50


@dataclass(frozen=True, slots=True)
class WatchStream:
    """One stream: a kind, in one namespace or in all."""

    kind: ResourceKind
    namespace: str | None

    @property
    def path(self) -> str:
        """Of its requests, as the URL has it."""
        scope = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{self.kind.prefix}{scope}/{self.kind.plural}"

    def __str__(self) -> str:
        return f"{self.kind.plural} in {self.namespace}" if self.namespace else self.kind.plural


class WatchHealth:
    """When each watch was last known to be alive: an event, or a LIST or WATCH that the server has accepted."""

    def __init__(self, watches: Iterable[WatchStream], clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # A watch that never comes up at all ages from here.
        self._alive = dict.fromkeys(watches, clock())
        self._by_path = {watch.path: watch for watch in self._alive}

    def event(self, kind: ResourceKind, namespace: str | None) -> None:
        """Something was told about an object of that kind."""
        for watch in (WatchStream(kind, namespace), WatchStream(kind, None)):
            if watch in self._alive:
                self._alive[watch] = self._clock()

    def answered(self, path: str) -> None:
        """The server has accepted a LIST or WATCH on that path."""
        watch = self._by_path.get(path)
        if watch is not None:
            self._alive[watch] = self._clock()

    def ages(self) -> Mapping[WatchStream, float]:
        """Seconds since the last sign of life."""
        now = self._clock()
        return {watch: now - alive for watch, alive in self._alive.items()}

    def age(self, watch: WatchStream) -> float:
        """Seconds since its last sign of life."""
        return self._clock() - self._alive[watch]

    def dead(self) -> tuple[str, ...]:
        """A sentence for each watch that has shown no life for too long."""
        return tuple(
            f"the watch of {watch} has shown no life for {age:.0f} s"
            for watch, age in self.ages().items()
            if age > DEAD_SECONDS
        )
