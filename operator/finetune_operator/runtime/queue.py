"""A keyed work queue: each key at most once, never in two hands, as soon as it is due.

:class:`KeySchedule` is the pure part, :class:`WorkQueue` lets coroutines wait on it.
"""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

#: Seconds. Users write times of decades.
_LONGEST_WAIT = 86_400.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting time after the n-th failure in a row: ``base * 2**(n-1)``, at most ``longest``. Seconds."""

    base: float = 0.25
    longest: float = 120

    def after(self, failures: int) -> float:
        # 2**64 s is longer than any limit; larger exponents would overflow.
        return min(self.longest, self.base * 2.0 ** min(failures - 1, 64))


class KeySchedule[K: Hashable]:
    """Which key is to be handled when. Times are seconds of any one clock.

    Keys with the same attribute ``namespace`` share their places: see :meth:`take`.
    """

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._due: dict[K, float] = {}
        """Waiting keys."""
        self._heap: list[tuple[float, int, K]] = []
        """May hold entries that are out of date, at most as many as keys wait; ``_due`` decides."""
        self._parked: dict[str, list[tuple[float, int, K]]] = {}
        """By namespace: entries that are due, but whose namespace has as many keys in hand as it may have."""
        self._order = itertools.count()
        self._taken: set[K] = set()
        self._in_hand: Counter[str] = Counter()
        """Keys taken, by namespace."""
        self._failures: dict[K, int] = {}

    def add(self, key: K, at: float) -> None:
        """Handle the key at that time or earlier. One that is being handled now is handled again after it."""
        if key in self._due and self._due[key] <= at:
            return
        self._due[key] = at
        if key not in self._taken:
            self._push(key)

    def take(self, now: float, share: int | None = None) -> K | None:
        """The key that has been due longest, now in the caller's hand; None when nothing is due.

        Args:
            share: pass over the keys of namespaces that have as many keys in hand. None: no limit.
        """
        while (at := self.next_due()) is not None and at <= now:
            entry = heapq.heappop(self._heap)
            key = entry[2]
            namespace = _namespace(key)
            if namespace is not None:
                if share is not None and self._in_hand[namespace] >= share:
                    heapq.heappush(self._parked.setdefault(namespace, []), entry)
                    continue
                self._in_hand[namespace] += 1
            del self._due[key]
            self._taken.add(key)
            return key
        return None

    def done(self, key: K, now: float, again_after: float | None) -> None:
        """The key was handled well. What is asked for later than a day from now is due in a day."""
        self._failures.pop(key, None)
        self._give_back(key, None if again_after is None else now + min(again_after, _LONGEST_WAIT))

    def failed(self, key: K, now: float, at_least: float = 0.0) -> None:
        """Handling failed; it is due again after :meth:`retry_in`, at least after so many seconds, or earlier where it
        was added meanwhile."""
        wait = max(self.retry_in(key), at_least)
        self._failures[key] = self._failures.get(key, 0) + 1
        self._give_back(key, now + wait)

    def retry_in(self, key: K) -> float:
        """How long the key would wait, did the present attempt fail."""
        return self._backoff.after(self._failures.get(key, 0) + 1)

    def next_due(self) -> float | None:
        """When the next key is due; None when none waits, or each waits for another one of its namespace."""
        return self._first(self._heap)

    def depth(self, now: float) -> int:
        """Keys that are due and in nobody's hand."""
        return sum(1 for key, at in self._due.items() if at <= now and key not in self._taken)

    def waiting(self) -> int:
        """All keys, those in hand included."""
        return len(self._due.keys() | self._taken)

    def oldest(self, now: float) -> float:
        """Seconds that the most overdue key has been due; 0 when none is."""
        firsts = [self._first(heap) for heap in (self._heap, *self._parked.values())]
        return max((now - at for at in firsts if at is not None and at < now), default=0.0)

    def _give_back(self, key: K, at: float | None) -> None:
        self._taken.remove(key)
        if at is not None and (key not in self._due or at < self._due[key]):
            self._due[key] = at
        if key in self._due:
            self._push(key)
        namespace = _namespace(key)
        if namespace is not None:
            self._in_hand[namespace] -= 1
            if not self._in_hand[namespace]:
                del self._in_hand[namespace]
            self._unpark(namespace)

    def _unpark(self, namespace: str) -> None:
        """One place has become free: the one key that has waited longest for it is due again."""
        parked = self._parked.get(namespace)
        if parked is None:
            return
        if self._first(parked) is not None:
            heapq.heappush(self._heap, heapq.heappop(parked))
        if not parked:
            del self._parked[namespace]

    def _first(self, heap: list[tuple[float, int, K]]) -> float | None:
        """When the first key of a heap is due. Entries that are out of date are dropped."""
        while heap:
            if self._stands(heap[0]):
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def _push(self, key: K) -> None:
        heapq.heappush(self._heap, (self._due[key], next(self._order), key))
        if len(self._heap) > 2 * len(self._due):
            # A key whose time moves nearer again and again leaves an entry for each of its later times.
            standing = {entry[2]: entry for entry in self._heap if self._stands(entry)}
            self._heap = list(standing.values())
            heapq.heapify(self._heap)

    def _stands(self, entry: tuple[float, int, K]) -> bool:
        at, _, key = entry
        return key not in self._taken and self._due.get(key) == at


def _namespace(key: Hashable) -> str | None:
    """None for what belongs to the whole cluster."""
    namespace: str | None = getattr(key, "namespace", None)
    return namespace


class WorkQueue[K: Hashable]:
    """A schedule that coroutines of one event loop share."""

    def __init__(self, *, backoff: Backoff | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._schedule = KeySchedule[K](backoff)
        self._clock = clock
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, key: K, after: float = 0.0) -> None:
        """Handle the key ``after`` seconds from now, or earlier where it is due earlier."""
        self._schedule.add(key, self._clock() + after)
        self._wake()

    async def take(self, share: int | None = None) -> K | None:
        """Waits for a due key. None: the queue is closed. Every key taken is given to ``done`` or ``failed``.

        Args:
            share: how many keys of one namespace may be in hand at once. None: any number.
        """
        while not self._closed:
            now = self._clock()
            key = self._schedule.take(now, share)
            if key is not None:
                return key
            due = self._schedule.next_due()
            # Nothing is awaited between the look above and the wait, so no change is missed.
            self._changed.clear()
            await self._wait(None if due is None else due - now)
        return None

    def done(self, key: K, again_after: float | None) -> None:
        self._schedule.done(key, self._clock(), again_after)
        self._wake()

    def failed(self, key: K, at_least: float = 0.0) -> None:
        self._schedule.failed(key, self._clock(), at_least)
        self._wake()

    def retry_in(self, key: K) -> float:
        return self._schedule.retry_in(key)

    def close(self) -> None:
        """Whoever waits or comes to take gets None."""
        self._closed = True
        self._wake()

    def depth(self) -> int:
        return self._schedule.depth(self._clock())

    def oldest(self) -> float:
        return self._schedule.oldest(self._clock())

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _wake(self) -> None:
        self._changed.set()
