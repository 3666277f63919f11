"""One store for every URI: dispatches by scheme, so that callers need not know which store holds an object."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from finetune_operator.artifacts.calls import always
from finetune_operator.artifacts.circuit_breaker import CircuitBreaker
from finetune_operator.artifacts.port import (
    NAMES_LIMIT,
    RECORD_LIMIT,
    RUN_FOLDER_ADVICE,
    ObjectStore,
    RecordStore,
    StorageError,
    StorageUnavailable,
)
from finetune_operator.artifacts.tenant_shares import calls_deadline


class StoreBackend(ObjectStore, RecordStore, Protocol):
    """Object store of one scheme."""

    async def ended(self) -> None:
        """Returns when no call is in flight any more, not even one whose caller no longer waits."""
        ...


type StoreFactories = Mapping[str, Callable[[], StoreBackend]]
"""Factory of the store of each scheme."""


def store_factories(
    may_write: Callable[[], bool] = always, *, threads: int = 64, advice: str = RUN_FOLDER_ADVICE
) -> StoreFactories:
    """Returns the factories of stores that write only while ``may_write`` allows it.

    Args:
        may_write: whether a store may write now.
        threads: concurrent calls of one store; one tenant may use an eighth of them.
        advice: what to do if a role is missing, as a sentence.
    """

    def google() -> StoreBackend:
        # Imported on first use: 20 MiB and 0.4 s that a file://-only cluster and the command line do not need.
        from finetune_operator.artifacts.google_store import GoogleStore

        return GoogleStore(may_write=may_write, threads=threads, advice=advice)

    return {"gs": google, "file": lambda: file_store(may_write, threads)}


def file_store(may_write: Callable[[], bool] = always, threads: int = 64) -> StoreBackend:
    """Returns the store of ``file://`` URIs, which needs POSIX."""
    # Imported on first use: the command line reads buckets on Windows, too.
    from finetune_operator.artifacts.file_store import FileStore

    return FileStore(may_write=may_write, threads=threads)


class SchemeRouter:
    """Implements :class:`finetune_operator.artifacts.port.ObjectStore`, and RecordStore, for every known scheme.

    Calls of a tenant whose bucket does not respond are refused at once for a while (StorageUnavailable).

    Args:
        factories: factory of the store of each scheme. Default: stores that may always write.
        requested: called with ``read``, ``list``, ``write`` or ``create`` before each request.
        refused: called with the same before each refusal, for a request that is not made since the store failed to
            respond to earlier ones.
        breaker: decides which requests are refused.
    """

    def __init__(
        self,
        factories: StoreFactories | None = None,
        *,
        requested: Callable[[str], None] = lambda _: None,
        refused: Callable[[str], None] = lambda _: None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._factories = store_factories() if factories is None else factories
        self._requested = requested
        self._refused = refused
        self._breaker = breaker or CircuitBreaker()
        self._stores: dict[str, StoreBackend] = {}

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        store = self._store(uri)
        return await self._call("read", uri, partial(store.read, uri, limit=limit))

    async def read_part(self, uri: str, *, start: int, size: int) -> bytes | None:
        store = self._store(uri)
        return await self._call("read", uri, partial(store.read_part, uri, start=start, size=size))

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        store = self._store(uri)
        return await self._call("list", uri, partial(store.list, uri, limit=limit))

    async def write(self, uri: str, content: bytes) -> None:
        store = self._store(uri)
        await self._call("write", uri, partial(store.write, uri, content))

    async def create(self, uri: str, content: bytes) -> bool:
        store = self._store(uri)
        return await self._call("create", uri, partial(store.create, uri, content))

    async def ended(self) -> None:
        """Returns when no call is in flight any more, not even one whose caller no longer waits."""
        for store in list(self._stores.values()):
            await store.ended()

    async def _call[T](self, operation: str, uri: str, call: Callable[[], Awaitable[T]]) -> T:
        async def request() -> T:
            self._requested(operation)
            return await call()

        try:
            async with asyncio.timeout_at(calls_deadline()):
                return await self._breaker.call(uri, request, partial(self._refused, operation))
        except TimeoutError as error:
            raise StorageUnavailable(uri, "the store responds too slowly") from error

    def _store(self, uri: str) -> StoreBackend:
        scheme = urlsplit(uri).scheme
        if scheme not in self._stores:
            if scheme not in self._factories:
                raise StorageError(uri, f"unknown scheme; expected one of {', '.join(self._factories)}")
            self._stores[scheme] = self._factories[scheme]()
        return self._stores[scheme]
