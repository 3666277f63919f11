"""Bounds the memory that all observations together hold for objects that tenants created in their namespaces.

The observation of an ordinary job holds little. One that holds more needs a slot; there are few slots, and a namespace
gets at most one. The observation waits for it between two pages of a listing.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from finetune_operator.artifacts.tenant_shares import CallSlots
from finetune_operator.cluster.port import Object, ResponseTooLarge
from finetune_operator.lifecycle.children.projection import weight

#: Bytes in memory that any observation may hold: JobSets and pods of a few hundred hosts.
_SMALL = 2**20
#: Bytes that an observation with a slot may hold: about 6,000 hosts; the largest slice has 2,304.
_MOST = 24 * 2**20
#: Number of observations that may hold more than _SMALL at once.
_PLACES = 3


class MemoryShare:
    """The share of one observation."""

    def __init__(self, namespace: str, places: CallSlots) -> None:
        self._namespace = namespace
        self._places = places
        self._placed = False
        self._taking = asyncio.Lock()
        self._held = 0
        self._over = False

    async def hold(self, found: Sequence[Object], what: str) -> None:
        """Accounts for objects that stay in memory until the observation ends; waits for a slot if they need one.

        Raises:
            ResponseTooLarge: the observation would hold more than any may; these objects are not accounted for.
            CancelledError: the observation has ended. A listing continues for a while after another listing of the same
                observation has failed.
        """
        if self._over:
            raise asyncio.CancelledError
        held = self._held + weight(found)
        if held > _MOST:
            raise ResponseTooLarge(
                f"{what}: the objects that may belong to the job take more than {_MOST >> 20} MiB. Delete those "
                "without a controller, or remove these labels from them"
            )
        self._held = held
        if held > _SMALL:
            # An observation lists several kinds concurrently, and its namespace has one slot.
            async with self._taking:
                if not self._placed:
                    await self._places.take(self._namespace)
                    self._placed = True
                if self._over:
                    self.leave()
                    raise asyncio.CancelledError

    def release(self, found: Sequence[Object]) -> None:
        """Accounts for objects that are no longer held."""
        self._held -= weight(found)

    def leave(self) -> None:
        """Ends the observation and releases its slot."""
        self._over = True
        if self._placed:
            self._placed = False
            self._places.give_back(self._namespace)


class MemoryBudget:
    """The slots that all observations share."""

    def __init__(self) -> None:
        self._places = CallSlots(total=_PLACES, each=(1,))

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncIterator[MemoryShare]:
        """Yields the share for one reconcile of a job in that namespace."""
        room = MemoryShare(namespace, self._places)
        try:
            yield room
        finally:
            room.leave()
