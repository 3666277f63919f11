"""A keyed work queue: holds each key at most once and hands it to one worker at a time when it is due."""

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

#: Maximum delay in seconds, since users may set delays of decades.
_LONGEST_WAIT = 86_400.0
#: Seconds after which a postponed key comes before the other keys of its namespace.
LONGEST_POSTPONEMENT = 20.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay in seconds after the n-th consecutive failure: ``base * 2**(n-1)``, at most ``longest``."""

    base: float = 0.25
    longest: float = 120

    def after(self, failures: int) -> float:
        # 2**64 s is longer than any limit; larger exponents would overflow.
        return min(self.longest, self.base * 2.0 ** min(failures - 1, 64))


type _Entry[K] = tuple[float, int, K]
"""Due time, order of equal times, key."""


class WorkQueue[K: Hashable]:
    """Schedules keys, for the coroutines of one event loop. ``clock`` counts seconds and never goes back.

    Keys with equal ``namespace`` attributes form a namespace; keys of cluster-scoped objects, which have none, form one
    of their own. Namespaces with due keys take turns: see :meth:`take`.
    """

    def __init__(self, *, backoff: Backoff | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._changed = asyncio.Event()
        self._closed = False
        self._waiting: dict[K, _Entry[K]] = {}
        """The entry of each waiting key; of one in progress, that with which it will wait afterwards."""
        self._later: list[_Entry[K]] = []
        """Heap of the keys that were not due at the last call of :meth:`take_due`. May contain stale entries, at most
        as many as there are waiting keys; ``_waiting`` is authoritative."""
        self._turns: OrderedDict[str | None, deque[_Entry[K]]] = OrderedDict()
        """Due keys by namespace, none empty, in the order of the namespaces' turns; each in the order of due times."""
        self._postponed: dict[str | None, dict[K, float]] = {}
        """By namespace, none empty: keys that wait until no other is due, the first postponed first, and since when."""
        self._order = itertools.count()
        self._taken: dict[K, float] = {}
        """Due times of keys in progress."""
        self._in_progress: dict[str | None, int] = {}
        """Number of taken keys by namespace."""
        self._failures: dict[K, int] = {}

    def add(self, key: K, after: float = 0.0) -> None:
        """Schedules the key for ``after`` seconds from now, unless it is due earlier. A key in progress is handled
        again afterwards.

        One that was postponed takes its place among the due keys then.
        """
        self._add(key, self._clock() + after)
        self._changed.set()

    def _add(self, key: K, at: float) -> None:
        if key in self._waiting and self._waiting[key][0] <= at:
            return
        self._resume(key)
        self._wait(key, at)

    def postpone(self, key: K) -> bool:
        """Schedules a key that is in progress for when no key of its namespace is due.

        After LONGEST_POSTPONEMENT it is due, and comes before those of its namespace that were not postponed. Returns
        False, without any effect, if no other key of the namespace is due: there is nothing to wait for.
        """
        if not self.crowded(key):
            return False
        latest = self._clock() + LONGEST_POSTPONEMENT
        self._add(key, latest)
        if self._waiting[key][0] == latest:
            self._postponed.setdefault(_namespace(key), {})[key] = self._taken[key]
        return True

    def crowded(self, key: K) -> bool:
        """Whether a key of the same namespace is due that is not in progress."""
        self._enqueue_due(self._clock())
        return _namespace(key) in self._turns

    def is_postponed(self, key: K) -> bool:
        return key in self._postponed.get(_namespace(key), ())

    async def take(self, *, each: int | None = None, total: int | None = None) -> K | None:
        """Waits for a due key and takes it as :meth:`take_due` does; None if the queue is closed.

        The caller must pass every taken key to ``done`` or ``failed``.
        """
        while not self._closed:
            key = self.take_due(each=each, total=total)
            if key is not None:
                return key
            # Every key that is due has to wait until another is given back.
            due = self.next_due()
            # There is no await between the calls above and the wait, so no change is missed.
            self._changed.clear()
            try:
                async with asyncio.timeout(None if due is None else due - self._clock()):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return None

    def close(self) -> None:
        """Closes the queue: current and future calls of :meth:`take` return None."""
        self._closed = True
        self._changed.set()

    def take_due(self, *, each: int | None = None, total: int | None = None) -> K | None:
        """Takes a due key; None if none is due.

        Namespaces with due keys take turns, and each gives the key that has been due longest. So a namespace's first
        key is delayed by at most one key of each other namespace, however many keys they have.

        Args:
            each: maximum number of keys in progress per namespace; namespaces at it are skipped. None for no limit.
            total: maximum number of keys in progress. A namespace may have as many as are left for others, so that
                those of a few namespaces never use up the limit. None for no limit.
        """
        now = self._clock()
        self._enqueue_due(now)
        self._enqueue_postponed(now)
        limit = each
        if total is not None:
            left = total - len(self._taken)
            if left <= 0:
                return None
            limit = left if each is None else min(each, left)
        for namespace in self._turns:
            in_progress = self._in_progress.get(namespace, 0)
            if limit is None or in_progress < limit:
                break
        else:
            return None
        keys = self._turns[namespace]
        due, _, key = keys.popleft()
        self._turns.move_to_end(namespace)
        if not keys:
            del self._turns[namespace]
        del self._waiting[key]
        since = self._resume(key)
        self._taken[key] = due if since is None else min(due, since)
        self._in_progress[namespace] = in_progress + 1
        return key

    def done(self, key: K, again_after: float | None) -> None:
        """Records a success. The key is due again after the given seconds, at most a day; None for not at all."""
        self._failures.pop(key, None)
        self._give_back(key, None if again_after is None else min(again_after, _LONGEST_WAIT))

    def failed(self, key: K, at_least: float = 0.0) -> None:
        """Records a failure. The key is due again after :meth:`retry_in`, but not before ``at_least`` seconds.

        It is due earlier if it was added in the meantime.
        """
        wait = max(self.retry_in(key), at_least)
        self._failures[key] = self._failures.get(key, 0) + 1
        self._give_back(key, wait)

    def retry_in(self, key: K) -> float:
        """Returns the delay in seconds that the key gets if the current attempt fails."""
        return self._backoff.after(self._failures.get(key, 0) + 1)

    def next_due(self) -> float | None:
        """Returns when the next key is due that was not due at the last :meth:`take_due`; None if there is none."""
        while self._later:
            if self._stands(self._later[0]):
                return self._later[0][0]
            # Stale.
            heapq.heappop(self._later)
        return None

    def depth(self) -> int:
        """Returns the number of keys that are due or postponed, and not taken."""
        now = self._clock()
        due = (key for key, (at, *_) in self._waiting.items() if at <= now or self.is_postponed(key))
        return sum(1 for key in due if key not in self._taken)

    def oldest(self) -> float:
        """Returns the seconds for which the most overdue key has been due, or postponed; 0 if none is."""
        now = self._clock()
        firsts = [min(keys)[0] for keys in self._turns.values()]
        if (later := self.next_due()) is not None:
            firsts.append(later)
        for postponed in self._postponed.values():
            firsts += [since for key, since in postponed.items() if key not in self._taken]
        return max(0.0, now - min(firsts, default=now))

    def delay(self, key: K) -> float:
        """Returns the seconds since the taken key was due."""
        return max(0.0, self._clock() - self._taken[key])

    def _give_back(self, key: K, again_after: float | None) -> None:
        now = self._clock()
        del self._taken[key]
        times = [self._waiting[key][0]] if key in self._waiting else []
        if again_after is not None:
            times.append(now + again_after)
        if times:
            # The time in which the key was in progress is no delay.
            self._wait(key, max(min(times), now))
        namespace = _namespace(key)
        if self._in_progress[namespace] == 1:
            del self._in_progress[namespace]
        else:
            self._in_progress[namespace] -= 1
        self._changed.set()

    def _wait(self, key: K, at: float) -> None:
        entry = self._waiting[key] = at, next(self._order), key
        if key in self._taken:
            return
        heapq.heappush(self._later, entry)
        if len(self._later) > 2 * len(self._waiting):
            # A key that is repeatedly moved to an earlier time leaves a stale entry for each later one.
            self._later = list(filter(self._stands, self._later))
            heapq.heapify(self._later)

    def _enqueue_due(self, now: float) -> None:
        """Moves due keys to their namespaces, where they stay until they are taken."""
        while self._later and self._later[0][0] <= now:
            entry = heapq.heappop(self._later)
            if self._stands(entry):
                namespace = _namespace(entry[2])
                keys = self._turns.setdefault(namespace, deque())
                if self.is_postponed(entry[2]):
                    ahead = itertools.takewhile(lambda other: self.is_postponed(other[2]), keys)
                    keys.insert(sum(1 for _ in ahead), entry)
                else:
                    keys.append(entry)

    def _enqueue_postponed(self, now: float) -> None:
        """In each namespace without due keys, makes the key due that was postponed first."""
        for namespace, postponed in tuple(self._postponed.items()):
            if namespace in self._turns:
                continue
            key = next((key for key in postponed if key not in self._taken), None)
            if key is not None:
                since = postponed[key]
                self._add(key, now)
                self._enqueue_due(now)
                self._postponed.setdefault(namespace, {})[key] = since

    def _resume(self, key: K) -> float | None:
        """Makes a postponed key an ordinary one; returns since when it waits, None if it is not postponed."""
        namespace = _namespace(key)
        postponed = self._postponed.get(namespace, {})
        since = postponed.pop(key, None)
        if not postponed:
            self._postponed.pop(namespace, None)
        return since

    def _stands(self, entry: _Entry[K]) -> bool:
        return self._waiting.get(entry[2]) is entry


def _namespace(key: Hashable) -> str | None:
    """Returns the namespace of a key; None for a cluster-scoped object."""
    namespace: str | None = getattr(key, "namespace", None)
    return namespace
