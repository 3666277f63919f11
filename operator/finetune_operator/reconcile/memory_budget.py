"""How much all looks together may hold of what tenants have made in their namespaces.

A look at an ordinary job holds little. One that holds more needs a place, of which there are few, and of which a
namespace gets one; it waits for it, between two pages of a listing.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from finetune_operator.artifacts.tenant_shares import CallSlots
from finetune_operator.cluster.port import Object, ResponseTooLarge
from finetune_operator.lifecycle.reduced import weight

#: Bytes in memory that any look may hold: JobSets and pods of some hundred hosts.
_SMALL = 2**20
#: Of one that has a place: some 6,000 hosts, and the largest slice has 2,304.
_MOST = 24 * 2**20
#: Looks that may hold more than _SMALL at once.
_PLACES = 3


class MemoryShare:
    """Of one look."""

    def __init__(self, namespace: str, places: CallSlots) -> None:
        self._namespace = namespace
        self._places = places
        self._placed = False
        self._taking = asyncio.Lock()
        self._held = 0
        self._over = False

    async def hold(self, found: Sequence[Object], what: str) -> None:
        """These objects stay in memory until the look is over. Raises TooLarge, and CancelledError where it is over: a
        listing goes on for a while when another one of its look has failed."""
        if self._over:
            raise asyncio.CancelledError
        self._held += weight(found)
        if self._held > _MOST:
            raise ResponseTooLarge(
                f"{what}: those that the job may have made take more than {_MOST >> 20} MiB. Delete those that no "
                "controller made, or remove these labels from them"
            )
        if self._held > _SMALL:
            # A look lists several kinds at once, and its namespace has one place.
            async with self._taking:
                if not self._placed:
                    await self._places.take(self._namespace)
                    self._placed = True
                if self._over:
                    self.leave()
                    raise asyncio.CancelledError

    def let_go(self, found: Sequence[Object]) -> None:
        """These objects are not held any more."""
        self._held -= weight(found)

    def leave(self) -> None:
        """The look is over."""
        self._over = True
        if self._placed:
            self._placed = False
            self._places.give_back(self._namespace)


class MemoryBudget:
    """Of all looks."""

    def __init__(self) -> None:
        self._places = CallSlots(total=_PLACES, each=1)

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncIterator[MemoryShare]:
        """The room of one look at a job in that namespace, and of all that follows from it."""
        room = MemoryShare(namespace, self._places)
        try:
            yield room
        finally:
            room.leave()
