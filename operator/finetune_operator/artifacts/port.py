"""What the reconciler and the command line ask of object storage."""

from collections.abc import Sequence
from typing import Protocol

#: Bytes. A record of the contract has a few KiB; what is larger was not written by a trainer.
RECORD_LIMIT = 2**20
#: Bytes, of what a running stage writes again and again.
PROGRESS_LIMIT = 64 * 2**10
#: Objects below one folder: ten for each of the attempts that a job can make.
NAMES_LIMIT = 20_000
#: Characters. No name of the contract has more than 64.
NAME_LENGTH = 256


class StorageError(Exception):
    """Base: the store did not answer as hoped. ``uri`` is what was asked for."""

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(f"{uri}: {message}")
        self.uri = uri
        self.message = message
        """What went wrong, without the URI."""


class StorageUnavailable(StorageError):
    """Timeouts, 429, 5xx, connection errors: nothing is known; ask again later."""


class StorageDenied(StorageError):
    """401, 403: the operator's identity lacks a role on the bucket."""


class ObjectTooLarge(StorageError):
    """The object has more bytes than the caller reads."""

    def __init__(self, uri: str, limit: int) -> None:
        super().__init__(uri, f"the file has more than {limit:,} bytes, the most that is read of it")
        self.limit = limit


class ListingTooLarge(StorageError):
    """The folder holds more objects than the caller lists."""

    def __init__(self, uri: str, limit: int) -> None:
        super().__init__(uri, f"the folder holds more than {limit:,} files, the most that are listed")
        self.limit = limit


class ObjectStore(Protocol):
    """Reads are strongly consistent. Blocking work happens off the event loop; every call has a deadline.

    What a bucket holds was written by tenants: no call takes more memory than its limit allows.
    """

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        """Content of one object, or None when there is none.

        Raises TooLarge where it has more than ``limit`` bytes, having read one more at most; StorageError.
        """
        ...

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        """Names relative to the folder ``uri`` of every object below it, sorted; empty when there is none.

        A name of more than NAME_LENGTH characters counts, but is left out. Raises TooManyNames where there are more
        than ``limit``, having asked for no more than needed to know; StorageError.
        """
        ...

    async def write(self, uri: str, content: bytes) -> None:
        """Replace one small object whole."""
        ...
