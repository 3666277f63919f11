"""On whose behalf the store is asked, and how many calls of each tenant may be under way at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_tenant: ContextVar[str] = ContextVar("tenant", default="")
_until: ContextVar[float | None] = ContextVar("until", default=None)


@contextmanager
def calls_for_tenant(tenant: str, *, seconds: float | None = None) -> Iterator[None]:
    """Calls to a store inside, and in tasks that begin inside, count against that tenant: a namespace.

    Args:
        tenant: on whose behalf the store is asked.
        seconds: for all calls inside together, waits for a thread included; later ones are refused. None: no limit.
    """
    until = None if seconds is None else asyncio.get_running_loop().time() + seconds
    tokens = _tenant.set(tenant), _until.set(until)
    try:
        yield
    finally:
        _tenant.reset(tokens[0])
        _until.reset(tokens[1])


def calls_deadline() -> float | None:
    """By the loop's clock, the end of the time that :func:`calls_for_tenant` has set; None where it has set none."""
    return _until.get()


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Calls that may make each other wait, and no others."""

    tenant: str
    """A namespace; where the caller named none, the bucket's first folder, since a profile's ``storage.artifacts``
    holds one folder per namespace."""
    bucket: str
    """``gs://name``; with ``file://`` there is one."""


def share_of(uri: str) -> TenantShare:
    """The share that a call for this URI belongs to, by the tenant that it is made for."""
    parts = urlsplit(uri)
    folder = parts.path.strip("/").partition("/")[0]
    return TenantShare(_tenant.get() or folder, f"{parts.scheme}://{parts.netloc}")


@dataclass(slots=True)
class _Used:
    slots: asyncio.Semaphore
    users: int = field(default=0)
    """That hold a slot or wait for one."""


class CallSlots:
    """Who may begin a call now.

    Args:
        total: of all tenants together.
        each: of one tenant, whatever number of buckets it names.
    """

    def __init__(self, *, total: int, each: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._each = each
        self._tenants: dict[str, _Used] = {}

    async def take(self, tenant: str) -> None:
        """Waits, first come, first served among the tenant's calls. Each slot that is taken is given back."""
        used = self._tenants.setdefault(tenant, _Used(asyncio.Semaphore(self._each)))
        used.users += 1
        try:
            await used.slots.acquire()
            try:
                await self._total.acquire()
            except BaseException:
                used.slots.release()
                raise
        except BaseException:
            self._left(tenant)
            raise

    def give_back(self, tenant: str) -> None:
        self._total.release()
        self._tenants[tenant].slots.release()
        self._left(tenant)

    def _left(self, tenant: str) -> None:
        used = self._tenants[tenant]
        used.users -= 1
        if not used.users:
            del self._tenants[tenant]
