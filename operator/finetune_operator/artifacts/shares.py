"""On whose behalf the store is asked, and how many calls of each tenant may be under way at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_tenant: ContextVar[str] = ContextVar("tenant", default="")


@contextmanager
def asking_for(tenant: str) -> Iterator[None]:
    """Calls to a store inside, and in tasks that begin inside, count against that tenant: a namespace."""
    token = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(token)


@dataclass(frozen=True, slots=True)
class Share:
    """Calls that may make each other wait, and no others."""

    tenant: str
    """A namespace; where the caller named none, the bucket's first folder, since a profile's ``storage.artifacts``
    holds one folder per namespace."""
    bucket: str
    """``gs://name``; with ``file://`` there is one."""


def share_of(uri: str) -> Share:
    """The share that a call for this URI belongs to, by the tenant that it is made for."""
    parts = urlsplit(uri)
    folder = parts.path.strip("/").partition("/")[0]
    return Share(_tenant.get() or folder, f"{parts.scheme}://{parts.netloc}")


@dataclass(slots=True)
class _Used:
    slots: asyncio.Semaphore
    users: int = field(default=0)
    """That hold a slot or wait for one."""


class Slots:
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
