"""What the reconciler and the command line ask of object storage."""

from collections.abc import Sequence
from typing import Protocol


class StorageError(Exception):
    """Base: the store did not answer as hoped. ``uri`` is what was asked for."""

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(f"{uri}: {message}")
        self.uri = uri


class StorageUnavailable(StorageError):
    """Timeouts, 429, 5xx, connection errors: nothing is known; ask again later."""


class StorageDenied(StorageError):
    """401, 403: the operator's identity lacks a role on the bucket."""


class Store(Protocol):
    """Reads are strongly consistent. Blocking work happens off the event loop; every call has a deadline."""

    async def read(self, uri: str) -> bytes | None:
        """Content of one object, or None when there is none. Raises StorageError."""
        ...

    async def list(self, uri: str) -> Sequence[str]:
        """Names relative to the folder ``uri`` of every object below it, sorted; empty when there is none."""
        ...

    async def write(self, uri: str, content: bytes) -> None:
        """Replace one small object whole."""
        ...
