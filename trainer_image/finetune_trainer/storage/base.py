"""What both kinds of storage can do, and how their failures become ours."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file. ``crc32c`` is base64, as Cloud Storage writes it, so equal files look equal in both storages."""

    uri: str
    size: int
    updated: datetime
    crc32c: str
    generation: str | None = None
    """Of an object in a bucket: another one after every write. None: a local file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedContent:
    """What a file holds now."""

    content: bytes | None
    """None: more than was asked for."""
    version: str
    """Another one after every write."""


class Backend(Protocol):
    """One kind of storage. All raise ``StageError``: 66 (missing), 77 (denied), 69 (unreachable after retries)."""

    def read(self, uri: str) -> bytes: ...

    def write(self, uri: str, data: bytes, content_type: str) -> None:
        """Replaces the file as a whole."""
        ...

    def create(self, uri: str, data: bytes, content_type: str) -> bool:
        """Writes only where nothing lies yet; False when another was first."""
        ...

    def read_current(self, uri: str, limit: int) -> VersionedContent | None:
        """None when the file is not there. Content and version belong together; at most ``limit`` bytes are read."""
        ...

    def replace(self, uri: str, data: bytes, content_type: str, version: str) -> bool:
        """Writes only where the file still is of that version; False where it is another one by now, or gone."""
        ...

    def entries(self, uri: str) -> Iterator[Entry]:
        """Every file below the folder, in the order of their names; nothing for a folder that is not there."""
        ...

    def stat(self, uri: str) -> Entry | None: ...

    def download(self, uri: str, target: Path, generation: str | None) -> None:
        """``generation``: only this one; any other is missing."""
        ...

    def read_range(self, uri: str, start: int, end: int, generation: str | None) -> bytes:
        """Bytes from ``start`` up to ``end``, fewer where the file ends before; ``generation`` as in ``download``."""
        ...

    def upload(self, source: Path, uri: str) -> None: ...

    def delete(self, uri: str) -> None:
        """Removes one file; fine when it is gone already."""
        ...


def missing(uri: str) -> StageError:
    return StageError(
        ExitCode.INPUT_MISSING,
        "InputMissing",
        "there is no such file or folder",
        where=uri,
        fix="Check the address, or put the file there.",
    )


def denied(uri: str, detail: str) -> StageError:
    return StageError(
        ExitCode.PERMISSION_DENIED,
        "StoragePermissionDenied",
        "access is denied",
        where=uri,
        saw=detail[:300],
        fix="Grant the stage's service account roles/storage.objectViewer there, or objectUser to write.",
    )


def unavailable(uri: str, detail: str) -> StageError:
    return StageError(
        ExitCode.UNAVAILABLE,
        "StorageUnavailable",
        "storage did not answer, retries included",
        where=uri,
        saw=detail[:300],
        fix="Nothing to change: the operator tries again.",
    )
