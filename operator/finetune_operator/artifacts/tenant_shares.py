"""Attributes calls to a store to tenants, and limits the concurrent calls of each tenant and bucket."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

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
    """``gs://name``; for ``file://`` one of each tenant, since folders have no service in common that many tenants'
    calls could exhaust."""


def share_of(uri: str) -> TenantShare:
    """Returns the share of a call for this URI, by the tenant that it is made for."""
    parts = urlsplit(uri)
    tenant = _tenant.get() or parts.path.strip("/").partition("/")[0]
    return TenantShare(tenant, f"{parts.scheme}://{tenant if parts.scheme == 'file' else parts.netloc}")


class CallSlots:
    """Limits how many calls are in flight.

    Args:
        total: concurrent calls of all.
        each: concurrent calls with the same first, second, ... key.
    """

    def __init__(self, *, total: int, each: Sequence[int]) -> None:
        self._total = asyncio.Semaphore(total)
        self._each = each
        self._used: WeakValueDictionary[tuple[int, str], asyncio.Semaphore] = WeakValueDictionary()
        """By place and key, as long as a call holds a slot or waits for one."""

    async def take(self, *keys: str) -> Callable[[], None]:
        """Waits for a slot of the first key, then of the next, and then for one of all.

        First come, first served among calls with the same keys. Returns what gives the slots back.
        """
        of_keys = [self._slots_of(place, key) for place, key in enumerate(keys)]
        with ExitStack() as held:
            for slots in (*of_keys, self._total):
                await slots.acquire()
                held.callback(slots.release)
            return held.pop_all().close

    def _slots_of(self, place: int, key: str) -> asyncio.Semaphore:
        return self._used.setdefault((place, key), asyncio.Semaphore(self._each[place]))
