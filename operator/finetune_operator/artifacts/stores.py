"""One store for every URI: dispatches by scheme, so that callers never ask where something lies."""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from finetune_operator.artifacts.file_store import FileStore
from finetune_operator.artifacts.port import NAMES_LIMIT, RECORD_LIMIT, StorageError, Store


def _google() -> Store:
    # Imported on first use: 20 MiB and 0.4 s that a file:// only cluster and the command line do not need.
    from finetune_operator.artifacts.google_store import GoogleStore

    return GoogleStore()


#: What makes the store of each scheme.
FACTORIES: Mapping[str, Callable[[], Store]] = {"gs": _google, "file": FileStore}


def _ignore(_operation: str) -> None:
    """The observer of those who do not measure."""


class UniversalStore:
    """Implements :class:`finetune_operator.artifacts.port.Store` for every known scheme.

    Args:
        factories: what makes the store of each scheme.
        requested: hears ``read``, ``list`` or ``write`` before each request.
    """

    def __init__(
        self,
        factories: Mapping[str, Callable[[], Store]] = FACTORIES,
        *,
        requested: Callable[[str], None] = _ignore,
    ) -> None:
        self._factories = factories
        self._requested = requested
        self._stores: dict[str, Store] = {}

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        self._requested("read")
        return await self._store(uri).read(uri, limit=limit)

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        self._requested("list")
        return await self._store(uri).list(uri, limit=limit)

    async def write(self, uri: str, content: bytes) -> None:
        self._requested("write")
        await self._store(uri).write(uri, content)

    def _store(self, uri: str) -> Store:
        scheme = urlsplit(uri).scheme
        if scheme not in self._stores:
            if scheme not in self._factories:
                raise StorageError(uri, f"unknown scheme; known are {', '.join(self._factories)}")
            self._stores[scheme] = self._factories[scheme]()
        return self._stores[scheme]
