"""Port to object storage for the reconciler and the command line."""

from collections.abc import Sequence
from typing import Protocol

from finetune_storage.errors import (
    BucketMissing,
    ListingTooLarge,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnauthenticated,
    StorageUnavailable,
)
from finetune_storage.store import StoredBytes

__all__ = [
    "BucketMissing",
    "ListingTooLarge",
    "ObjectTooLarge",
    "StorageDenied",
    "StorageError",
    "StorageUnauthenticated",
    "StorageUnavailable",
    "StoredBytes",
]

#: Bytes of one record. Records of the contract have a few KiB; a trainer writes nothing larger.
RECORD_LIMIT = 2**20
#: Bytes of one record that a running stage writes repeatedly.
PROGRESS_LIMIT = 64 * 2**10
#: Objects below one folder: ten for each attempt that a job can make.
NAMES_LIMIT = 20_000
#: Characters of one object name. No name in the contract has more than 64.
NAME_LENGTH = 256


class ReadableStore(Protocol):
    """Object storage. Reads are strongly consistent; blocking work runs off the event loop; every call has a deadline.

    Tenants write what a bucket holds, so no call uses more memory than its limit allows.
    """

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        """Returns the content of one object, as StoredBytes if the time of the write is known; None if there is none.

        Reads at most ``limit`` + 1 bytes. Raises ObjectTooLarge if the object has more than ``limit`` bytes, and
        StorageError.
        """
        ...

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        """Returns the sorted names of all objects below the folder ``uri``, relative to it; empty if there are none.

        A name of more than NAME_LENGTH characters counts toward ``limit``, but is left out. Raises ListingTooLarge if
        there are more than ``limit`` names, without listing more than needed to detect that, and StorageError.
        """
        ...


class ObjectStore(ReadableStore, Protocol):
    """Object storage for records that are replaced."""

    def answered(self, uri: str) -> float | None:
        """Returns the seconds since a call for this tenant to the bucket was answered; None if there was none, or a
        later one was refused or not answered."""
        ...

    async def read_part(self, uri: str, *, start: int, size: int) -> bytes | None:
        """Returns ``size`` bytes of one object from offset ``start``, fewer only where it ends; None if there is none.

        Parts of one object may come from different versions of it: compare a digest of the whole. Raises StorageError.
        """
        ...

    async def write(self, uri: str, content: bytes) -> None:
        """Replaces one small object as a whole. Raises StorageError."""
        ...


class RecordStore(ReadableStore, Protocol):
    """Object storage for records that are never changed."""

    async def create(self, uri: str, content: bytes) -> bool:
        """Creates one small object; returns False, and changes nothing, if another one exists. Raises StorageError.

        In a bucket, an object with the same content counts as created: the response to a first request may be lost.
        """
        ...
