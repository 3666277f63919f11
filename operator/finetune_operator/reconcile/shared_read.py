"""Shares a read among the reconciles that need the same objects at the same time."""

import asyncio
from collections.abc import Awaitable, Callable


class SharedRead[T]:
    """A read whose answer is as fresh for each caller as if the caller had read alone.

    A call waits for the first read that begins after it, and shares it with all calls that wait for the same one. At
    most one read is in progress at a time, so a burst of calls costs two reads rather than one for each.

    Args:
        read: reads once. What it returns is shared, so it must not be changed.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._begun: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Returns the answer of a read that begins now or later. Raises what that read raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._begun))
        # The others still need the answer if this caller is cancelled.
        return await asyncio.shield(self._next)

    async def _after(self, earlier: asyncio.Task[T] | None) -> T:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._begun, self._next = self._next, None
        return await self._read()
