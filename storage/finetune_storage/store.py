"""The interface of both kinds of storage."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from finetune_storage.errors import ListingTooLarge

#: Content type of records.
JSON = "application/json"


class StoredBytes(bytes):
    """The content of an object as it is stored."""

    stored: datetime | None = None
    """When the store wrote it, by the store's clock; None if the store does not say."""
    version: str = ""
    """Changes with every write: the generation of an object in a bucket."""
    encoding: str | None = None
    """The object's Content-Encoding."""

    @classmethod
    def of(
        cls, content: bytes, stored: datetime | None, *, version: str = "", encoding: str | None = None
    ) -> Self:
        made = cls(content)
        made.stored, made.version, made.encoding = stored, version, encoding
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file. ``crc32c`` is base64-encoded as in Cloud Storage, so it is comparable between both kinds of storage."""

    uri: str
    size: int
    updated: datetime
    crc32c: str
    generation: str | None = None
    """Generation of an object in a bucket, which changes with every write. None for a local file."""
    encoding: str | None = None
    """The object's Content-Encoding. If that is a compression, the content is other bytes than the stored ones."""


class BlockingStore(Protocol):
    """What both kinds of storage do with records, by blocking calls in any thread. Methods raise StorageError.

    Reads are strongly consistent and writes atomic for readers. A call that serves a
    :class:`~finetune_storage.calls.StoreCall` ends with it.
    """

    def read(self, uri: str, limit: int | None = None) -> StoredBytes | None:
        """Returns the content of one object; None if there is none.

        Raises ObjectTooLarge if it has more than ``limit`` bytes, of which at most one more is read.
        """
        ...

    def read_part(self, uri: str, start: int, size: int) -> StoredBytes | None:
        """Returns ``size`` bytes from offset ``start``, fewer only where the object ends; None if there is none."""
        ...

    def names(self, uri: str, *, limit: int, longest: int) -> Sequence[str]:
        """Returns the sorted names of all objects below a folder, relative to it; empty if there are none.

        A name of more than ``longest`` characters is left out, but counts. Raises ListingTooLarge for more than
        ``limit`` names, without listing more than needed to detect that.
        """
        ...

    def write(self, uri: str, content: bytes) -> None:
        """Replaces the file as a whole."""
        ...

    def create(self, uri: str, content: bytes) -> bool:
        """Writes the file only if it does not exist yet. Returns False if another writer created it first."""
        ...


def crc32c_of(pieces: Iterable[bytes]) -> str:
    """Returns the checksum of a content that comes in pieces, base64-encoded as in Cloud Storage."""
    # Imported here: a store of local files is made without it.
    import google_crc32c

    checksum = google_crc32c.Checksum()
    for piece in pieces:
        checksum.update(piece)
    return base64.b64encode(checksum.digest()).decode()


def bounded(uri: str, names: Iterable[str], *, limit: int, longest: int) -> Sequence[str]:
    """Returns what :meth:`BlockingStore.names` describes. An empty name stands for what counts but is no object."""
    kept: list[str] = []
    for count, name in enumerate(names, start=1):
        if count > limit:
            raise ListingTooLarge(uri, limit)
        if 0 < len(name) <= longest:
            kept.append(name)
    return sorted(kept)
