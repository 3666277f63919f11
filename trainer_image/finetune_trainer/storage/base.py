"""The interface of both kinds of storage, and the ``StageError`` for each kind of failure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file. ``crc32c`` is base64-encoded as in Cloud Storage, so it is comparable between both kinds of storage."""

    uri: str
    size: int
    updated: datetime
    crc32c: str
    generation: str | None = None
    """Generation of an object in a bucket, which changes with every write. None for a local file."""
    compression: str | None = None
    """Compression that the object's Content-Encoding declares; its content is then other bytes than the stored ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedContent:
    """A file's content and the version it belongs to."""

    content: bytes | None
    """None if the file is larger than the requested limit."""
    version: str
    """Changes with every write."""


class Backend(Protocol):
    """One kind of storage. Methods raise ``StageError``: 66 (missing), 77 (denied), 69 (unreachable after retries)."""

    def read(self, uri: str) -> bytes: ...

    def write(self, uri: str, data: bytes, content_type: str) -> None:
        """Replaces the file atomically."""
        ...

    def create(self, uri: str, data: bytes, content_type: str) -> bool:
        """Writes the file only if it does not exist yet. Returns False if another writer created it first."""
        ...

    def read_current(self, uri: str, limit: int) -> VersionedContent | None:
        """Returns the content and its version; None if the file does not exist. Reads at most ``limit`` bytes."""
        ...

    def replace(self, uri: str, data: bytes, content_type: str, version: str) -> bool:
        """Writes the file only if it still has that version. Returns False if it has been replaced or deleted since."""
        ...

    def entries(self, uri: str) -> Iterator[Entry]:
        """Yields every file below the folder, ordered by name; nothing if the folder does not exist."""
        ...

    def stat(self, uri: str) -> Entry | None: ...

    def download(self, uri: str, target: Path, generation: str | None) -> None:
        """Downloads the file to ``target``. If ``generation`` is given, any other generation counts as missing."""
        ...

    def read_range(self, uri: str, start: int, end: int, generation: str | None) -> bytes:
        """Returns the bytes from ``start`` up to but excluding ``end``, fewer if the file ends earlier.

        ``generation`` has the same meaning as in ``download``.
        """
        ...

    def upload(self, source: Path, uri: str) -> None: ...

    def delete(self, uri: str) -> None:
        """Deletes one file. Does nothing if it does not exist."""
        ...

    def require_bucket(self, uri: str) -> None:
        """Reads the metadata of the URI's bucket, as libraries do before they use it. A local file has none."""
        ...


def missing(uri: str) -> StageError:
    """Returns the error (66) for a file or folder that does not exist."""
    return StageError(
        ExitCode.INPUT_MISSING,
        "InputMissing",
        "the file or folder does not exist",
        where=uri,
        fix="Check the address, or put the file there.",
    )


def denied(uri: str, detail: str) -> StageError:
    """Returns the error (77) for a request that storage denies."""
    return StageError(
        ExitCode.PERMISSION_DENIED,
        "StoragePermissionDenied",
        "access is denied",
        where=uri,
        actual=detail[:300],
        fix="Grant the stage's service account roles/storage.objectViewer there, or objectUser to write.",
    )


def unavailable(uri: str, detail: str) -> StageError:
    """Returns the error (69) for a request that fails after all retries."""
    return StageError(
        ExitCode.UNAVAILABLE,
        "StorageUnavailable",
        "storage did not respond, even after retries",
        where=uri,
        actual=detail[:300],
        fix="No action is needed: the operator retries.",
    )


def unidentified(uri: str, detail: str) -> StageError:
    """Returns the error (77) for a stage to which Google refuses an access token."""
    return StageError(
        ExitCode.PERMISSION_DENIED, "StoragePermissionDenied", "Google refuses the stage's account an access token",
        where=uri, actual=detail[:300],
        fix="If its ServiceAccount has the annotation iam.gke.io/gcp-service-account, remove it, or grant the "
        "ServiceAccount roles/iam.workloadIdentityUser on the account that it names.",
    )  # fmt: skip


def without_token(uri: str, detail: str) -> StageError:
    """Returns the error (69) for a request for which no access token could be obtained, after all retries."""
    return StageError(
        ExitCode.UNAVAILABLE, "StorageUnavailable",
        "the node's metadata server gave no access token, even after retries", where=uri, actual=detail[:300],
        fix="The operator retries. If it persists, look at the gke-metadata-server pod of the node.",
    )  # fmt: skip
