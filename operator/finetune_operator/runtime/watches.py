"""Health of the watches. A quiet cluster sends no events, so a watch without events is not necessarily dead."""

from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from finetune_operator.cluster.port import WatchStream

#: Seconds after which the server ends a watch; reopening it is the sign of activity of a quiet watch.
SERVER_SECONDS = 120
#: Seconds without any data, not even a bookmark (at most one per minute), after which a watch is reopened.
INACTIVITY_SECONDS = 70
#: Seconds after which a watch counts as dead: both of the above and the pauses between retries.
DEAD_SECONDS = SERVER_SECONDS + INACTIVITY_SECONDS + 50


class WatchHealth:
    """Time of each watch's last activity: an event, or a LIST or WATCH that the server accepted."""

    def __init__(self, watches: Iterable[WatchStream], clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # The age of a watch that never starts is measured from here.
        self._alive = dict.fromkeys(watches, clock())
        self._by_path = {watch.path: watch for watch in self._alive}

    def active(self, path: str) -> None:
        """Records an event of the watch on that path, or that the server accepted a LIST or WATCH there."""
        watch = self._by_path.get(path)
        if watch is not None:
            self._alive[watch] = self._clock()

    def ages(self) -> Mapping[WatchStream, float]:
        """Returns the seconds since each watch's last activity."""
        now = self._clock()
        return {watch: now - alive for watch, alive in self._alive.items()}

    def dead(self) -> tuple[str, ...]:
        """Returns a sentence for each watch without activity for more than DEAD_SECONDS."""
        return tuple(
            f"the watch of {watch} has received nothing for {age:.0f} s"
            for watch, age in self.ages().items()
            if age > DEAD_SECONDS
        )
