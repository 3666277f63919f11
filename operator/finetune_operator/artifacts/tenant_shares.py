"""Attributes calls to a store to tenants, and limits the concurrent calls of each tenant and bucket."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_tenant: ContextVar[str] = ContextVar("tenant", default="")
_until: ContextVar[float | None] = ContextVar("until", default=None)


@contextmanager
def calls_for_tenant(tenant: str, *, seconds: float | None = None) -> Iterator[None]:
    """Counts calls to a store inside the block, and in tasks started inside it, against one tenant.

    Args:
        tenant: the namespace that the calls are made for.
        seconds: time limit of all calls inside together, including waits for a thread; later calls are refused.
            None: no limit.
    """
    until = None if seconds is None else asyncio.get_running_loop().time() + seconds
    tokens = _tenant.set(tenant), _until.set(until)
    try:
        yield
    finally:
        _tenant.reset(tokens[0])
        _until.reset(tokens[1])


def calls_deadline() -> float | None:
    """Returns the end of the time set by :func:`calls_for_tenant`, on the event loop's clock; None if it set none."""
    return _until.get()


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Calls that may delay each other; calls of different shares never do."""

    tenant: str
    """A namespace; if the caller named none, the bucket's first folder, since a profile's ``storage.artifacts`` holds
    one folder per namespace."""
    bucket: str
    """``gs://name``; the same for all ``file://`` URIs."""


def share_of(uri: str) -> TenantShare:
    """Returns the share of a call for this URI, by the tenant that it is made for."""
    parts = urlsplit(uri)
    folder = parts.path.strip("/").partition("/")[0]
    return TenantShare(_tenant.get() or folder, f"{parts.scheme}://{parts.netloc}")


@dataclass(slots=True)
class _Used:
    slots: asyncio.Semaphore
    users: int = field(default=0)
    """Callers that hold a slot or wait for one."""


class CallSlots:
    """Limits how many calls are in flight.

    Args:
        total: concurrent calls of all.
        each: concurrent calls with the same first, second, ... key.
    """

    def __init__(self, *, total: int, each: Sequence[int]) -> None:
        self._total = asyncio.Semaphore(total)
        self._each = each
        self._used: dict[tuple[int, str], _Used] = {}

    async def take(self, *keys: str) -> None:
        """Waits for a slot of the first key, then of the next, and then for one of all.

        First come, first served among calls with the same keys. Return the slots with :meth:`give_back`.
        """
        held = 0
        try:
            for place in enumerate(keys):
                used = self._used.setdefault(place, _Used(asyncio.Semaphore(self._each[place[0]])))
                used.users += 1
                try:
                    await used.slots.acquire()
                except BaseException:
                    self._left(place)
                    raise
                held += 1
            await self._total.acquire()
        except BaseException:
            self._release(keys[:held])
            raise

    def give_back(self, *keys: str) -> None:
        self._total.release()
        self._release(keys)

    def _release(self, keys: Sequence[str]) -> None:
        for place in enumerate(keys):
            self._used[place].slots.release()
            self._left(place)

    def _left(self, place: tuple[int, str]) -> None:
        used = self._used[place]
        used.users -= 1
        if not used.users:
            del self._used[place]
