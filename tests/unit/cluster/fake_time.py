"""A clock that only the test advances; sleepers wake in the order of their times."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta


class FakeTime:
    """Monotonic clock, wall clock and sleep of one test."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        return self.now

    def utc_now(self) -> datetime:
        return datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=self.now)

    async def sleep(self, seconds: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), waiter))
        await waiter

    async def advance(self, seconds: float) -> None:
        """Advances the clock and wakes every sleeper that becomes due.

        Tasks may advance it further themselves: time in which no other task runs.
        """
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, waiter = heapq.heappop(self._sleepers)
            self.now = max(self.now, due)
            if not waiter.done():
                waiter.set_result(None)
            await settle()
        self.now = max(self.now, end)


async def settle() -> None:
    """Runs all tasks that are ready."""
    for _ in range(50):
        await asyncio.sleep(0)
