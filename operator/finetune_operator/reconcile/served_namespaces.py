"""Which of the served namespaces can be watched now. One that cannot concerns itself alone.

A namespace is lost while the API server refuses (403) to list or watch one of the watched kinds in it: the operator's
RoleBinding or Role there is gone, and perhaps the namespace. Tenants may be able to delete them, so a loss must not
free a job from its limits: chips that ran when it was last observed count until the namespace is back.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import monotonic

from finetune_operator.cluster.port import WatchStream

log = logging.getLogger(__name__)

#: Seconds of refusals after which a namespace is lost. A binding may be replaced, or reach the API server's cache late.
LOST_SECONDS = 30.0


class ServedNamespaces:
    """The namespaces that this operator is to serve. It is used by one event loop.

    Args:
        names: the configured namespaces; empty: all, of which none is ever lost.
        utc_now: the wall clock.
        clock: monotonic clock in seconds.
        chips: returns the chips at work in a namespace, as they were last observed.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        utc_now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = monotonic,
        chips: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self.names = tuple(names)
        self._utc_now = utc_now
        self._clock = clock
        self._chips = chips
        self._refused: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """By namespace and path: when the API server first refused it, if it has not answered since."""
        self._lost: set[str] = set()
        self._returned: dict[str, datetime] = {}
        self.changed: Callable[[str], None] = lambda _: None
        """Called after a namespace was lost or is back."""

    def refused(self, stream: WatchStream, message: str, *, at_once: bool = False) -> None:
        """Takes a refusal (403) of a list or watch. ``at_once``: the namespace is lost without waiting for another."""
        namespace = stream.namespace
        if namespace is None:
            return
        since = self._refused[namespace].setdefault(stream.path, self._clock())
        if namespace in self._lost or not (at_once or self._clock() - since >= LOST_SECONDS):
            return
        self._lost.add(namespace)
        self.changed(namespace)
        log.error(
            "namespace %s is not served: %s. Nothing starts in it, and the %d chips that were at work count on. Give "
            "the operator its rights there again, or remove the namespace from the release's namespaces",
            namespace,
            message,
            self._chips(namespace),
        )

    def answered(self, stream: WatchStream) -> None:
        """Takes note that the API server has accepted a list or watch."""
        namespace = stream.namespace
        if namespace is None or self._refused[namespace].pop(stream.path, None) is None:
            return
        if namespace in self._lost and not self._refused[namespace]:
            self._lost.remove(namespace)
            self._returned[namespace] = self._utc_now()
            log.warning("namespace %s is served again", namespace)
            self.changed(namespace)

    def serves(self, namespace: str) -> bool:
        """Whether the namespace is to be served and is not lost."""
        return (not self.names or namespace in self.names) and namespace not in self._lost

    def lost(self) -> dict[str, int]:
        """Returns the lost namespaces, and the chips at work in each when it was last observed."""
        return {namespace: self._chips(namespace) for namespace in sorted(self._lost)}

    def unobserved_until(self, namespace: str) -> datetime | None:
        """Returns the end of the namespace's last loss, which is now if it is lost; None if it never was."""
        return self._utc_now() if namespace in self._lost else self._returned.get(namespace)

    def problems(self) -> tuple[str, ...]:
        """Returns why this process cannot work: a sentence for each namespace if all are lost."""
        if not self.names or len(self._lost) < len(set(self.names)):
            return ()
        return tuple(
            f"namespace {namespace} is not served: its objects cannot be listed" for namespace in self.lost()
        )
