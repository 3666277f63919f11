"""Access to files and folders by URI, with the same interface for ``gs://`` and ``file://``.

Failures raise ``StageError``: 66 if a file is missing, 77 if access is denied, 69 if storage is unreachable after five
minutes of retries. Writes replace a file atomically.
"""

import fnmatch
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from finetune_contract.exit_codes import ExitCode
from finetune_storage.calls import RetryRule
from finetune_storage.errors import ObjectMissing, ObjectTooLarge
from finetune_storage.files import FileStore, size_and_time
from finetune_storage.google import GoogleStore
from finetune_storage.store import JSON, Entry
from finetune_storage.uris import is_inside, join, name_of, parse
from finetune_trainer.errors import StageError
from finetune_trainer.storage import content_encoding
from finetune_trainer.storage.failures import as_stage_errors, log_retry, stage_error

__all__ = [
    "Entry",
    "StorageClient",
    "VersionedContent",
    "engine_path",
    "is_inside",
    "join",
    "local_path",
    "name_of",
    "open_store",
    "unchanged",
]  # fmt: skip

#: A stage waits five minutes for a bucket, or for an access token.
RETRIES = RetryRule(connect=10, read=60, first=0.5, longest=20, total=300, retrying=log_retry)
_PARALLEL = 8
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedContent:
    """A file's content and the version it belongs to."""

    content: bytes | None
    """None if the file is larger than the requested limit."""
    version: str
    """Changes with every write."""


def open_store() -> "StorageClient":
    """Returns a client for local files and Cloud Storage. It connects to Cloud Storage at the first ``gs://`` URI."""
    return StorageClient(local=FileStore(), gcs=GoogleStore(RETRIES))


def local_path(uri: str) -> Path | None:
    """Returns the path of a ``file://`` URI, None for a ``gs://`` URI."""
    with as_stage_errors():
        address = parse(uri)
    return address if isinstance(address, Path) else None


def engine_path(uri: str) -> str:
    """Returns the URI as MaxText and Orbax expect it: local folders as plain paths."""
    local = local_path(uri)
    return uri if local is None else str(local)


def unchanged(entry: Entry) -> bool:
    """Whether a local file still has the listed size and modification time. Reads no content.

    Always true for an object in a bucket, which is read by its generation.
    """
    path = local_path(entry.uri)
    return path is None or size_and_time(path) == (entry.size, entry.updated)


class StorageClient:
    """Reads and writes files and folders of both kinds of storage. Thread safe."""

    def __init__(self, *, local: FileStore, gcs: GoogleStore) -> None:
        self._local = local
        self._gcs = gcs

    def _of(self, uri: str) -> FileStore | GoogleStore:
        return self._gcs if local_path(uri) is None else self._local

    # --- single files ---------------------------------------------------------------------------------------------

    def read(self, uri: str) -> bytes:
        """Returns the file's content. Raises ``StageError`` 66 if it does not exist."""
        with as_stage_errors():
            content = self._of(uri).read(uri)
        if content is None:
            raise stage_error(ObjectMissing(uri))
        return content_encoding.unpacked(content, content.encoding, uri)

    def read_or_none(self, uri: str) -> bytes | None:
        """Returns the file's content, None if it does not exist. Sends a single request in both cases."""
        try:
            return self.read(uri)
        except StageError as error:
            if error.code is ExitCode.INPUT_MISSING:
                return None
            raise

    def read_current(self, uri: str, *, limit: int) -> VersionedContent | None:
        """Returns content and version of a file that other processes may write; None if it does not exist.

        Content of more than ``limit`` bytes is not read.
        """
        with as_stage_errors():
            try:
                stored = self._of(uri).read(uri, limit)
            except ObjectMissing:
                return None
            except ObjectTooLarge as error:
                return VersionedContent(content=None, version=error.version)
        if stored is None:
            return None
        content = content_encoding.unpacked(stored, stored.encoding, uri)
        return VersionedContent(content=content, version=stored.version)

    def write(self, uri: str, data: bytes | str, *, content_type: str = JSON) -> None:
        """Replaces the file atomically: readers see either the old or the new content."""
        with as_stage_errors():
            self._of(uri).write(uri, _bytes(data), content_type)

    def create(self, uri: str, data: bytes | str, *, content_type: str = JSON) -> bool:
        """Writes the file only if it does not exist yet. Returns False if another writer created it first."""
        with as_stage_errors():
            return self._of(uri).create(uri, _bytes(data), content_type)

    def replace(self, uri: str, data: bytes | str, *, version: str, content_type: str = JSON) -> bool:
        """Replaces the file atomically if its version, from ``read_current``, is still ``version``.

        Returns False if the file has been replaced or deleted since.
        """
        with as_stage_errors():
            return self._of(uri).replace(uri, _bytes(data), content_type, version)

    def stat(self, uri: str) -> Entry | None:
        """Returns size, modification time and checksum of a file; None if it does not exist."""
        with as_stage_errors():
            return self._of(uri).stat(uri)

    def exists(self, uri: str) -> bool:
        return self.stat(uri) is not None

    def fetch_file(self, uri: str, target: Path, *, generation: str | None = None) -> Path:
        """Downloads the file to ``target`` and returns ``target``.

        ``generation`` is that of a listed object in a bucket. Raises ``StageError`` 66 if the object has been replaced
        since.
        """
        with as_stage_errors():
            encoding = self._of(uri).download(uri, target, generation)
        content_encoding.unpack(target, encoding, uri)
        return target

    def read_range(self, uri: str, start: int, end: int, *, generation: str | None = None) -> bytes:
        """Returns the bytes from ``start`` up to but excluding ``end``, fewer if the file ends earlier.

        ``generation`` has the same meaning as in ``fetch_file``.
        """
        with as_stage_errors():
            part = self._of(uri).read_part(uri, start, end - start, generation)
        if part is None:
            raise stage_error(ObjectMissing(uri))
        if packed := content_encoding.compression(part.encoding):
            raise content_encoding.refused(
                uri, f"Content-Encoding: {packed}", "parts of the object cannot be read, because it is stored packed",
                "no Content-Encoding",
            )  # fmt: skip
        return part

    def upload_file(self, source: Path, uri: str) -> None:
        with as_stage_errors():
            self._of(uri).upload(source, uri)

    def delete(self, uri: str) -> None:
        """Deletes one file. Does nothing if it does not exist."""
        with as_stage_errors():
            self._of(uri).delete(uri)

    def require_bucket(self, uri: str) -> None:
        """Raises ``StageError`` 66 if the bucket of a ``gs://`` URI does not exist, 77 if its metadata is denied."""
        with as_stage_errors():
            self._of(uri).require_bucket(uri)

    # --- folders --------------------------------------------------------------------------------------------------

    def entries(self, uri: str) -> Iterator[Entry]:
        """Yields every file below the folder, ordered by name; nothing if the folder does not exist."""
        with as_stage_errors():
            yield from self._of(uri).entries(uri.rstrip("/"))

    def glob(self, pattern: str) -> list[Entry]:
        """Returns the matching files. Wildcards do not match slashes; a pattern without wildcards names one file."""
        wanted = pattern.split("/")
        fixed = next((count for count, part in enumerate(wanted) if _WILDCARDS & set(part)), None)
        if fixed is None:
            entry = self.stat(pattern)
            return [] if entry is None else [entry]
        folder = "/".join(wanted[:fixed])
        return [entry for entry in self.entries(folder) if _matches(entry.uri.split("/"), wanted)]

    def fetch_folder(self, uri: str, scratch: Path, *, include: Sequence[str] = ("*",)) -> Path:
        """Returns a local folder with the files below ``uri``.

        A ``file://`` folder is returned itself. From a bucket, the files whose names below ``uri`` match a pattern of
        ``include`` are copied to ``scratch``. Raises ``StageError`` 66 if the folder does not exist or no file matches.
        """
        local = local_path(uri)
        if local is not None:
            if not local.is_dir():
                raise stage_error(ObjectMissing(uri))
            return local
        prefix = uri.rstrip("/") + "/"
        found = {entry.uri.removeprefix(prefix): entry for entry in self.entries(uri)}
        wanted = {
            name: entry
            for name, entry in found.items()
            if any(fnmatch.fnmatch(name, pattern) for pattern in include)
        }
        if not wanted:
            raise stage_error(ObjectMissing(uri))
        return self.fetch_listed(wanted, scratch)

    def fetch_listed(
        self, files: Mapping[str, Entry], target: Path, *, fetched: Callable[[int], None] = lambda _: None
    ) -> Path:
        """Downloads the files, as listed, to their names below ``target`` and returns ``target``.

        ``fetched`` is called with the size of each file in bytes, on the threads that download.
        Raises ``StageError`` 66 for an object in a bucket that has been replaced or deleted since it was listed, 64 for
        a name that leads out of ``target``.
        """
        for name, entry in files.items():
            if not is_inside(name):
                raise StageError(
                    ExitCode.BAD_REQUEST, "InvalidUri", "a file's name points outside of its folder", where=entry.uri,
                    actual=repr(name), expected="names between slashes, none empty, '.' or '..'",
                    fix="Rename or remove the file.",
                )  # fmt: skip
        target.mkdir(parents=True, exist_ok=True)

        def fetch(name: str, entry: Entry) -> None:
            self.fetch_file(entry.uri, target / name, generation=entry.generation)
            fetched(entry.size)

        _in_parallel(partial(fetch, name, entry) for name, entry in files.items())
        return target

    def upload_folder(
        self,
        source: Path,
        uri: str,
        *,
        skip: Sequence[str] = (),
        uploaded: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Uploads every file below ``source`` except those in ``skip``.

        ``uploaded`` is called with the size of each file in bytes, on the threads that upload.
        """

        def upload(name: str) -> None:
            self.upload_file(source / name, join(uri, name))
            uploaded((source / name).stat().st_size)

        names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
        _in_parallel(partial(upload, name) for name in names if name not in set(skip))

    def delete_folder(self, uri: str, *, first: Sequence[str] = ()) -> None:
        """Deletes every file below ``uri``.

        Files in ``first`` are deleted before all others, so that no reader takes the remainder for a complete folder.
        """
        for name in first:
            self.delete(join(uri, name))
        _in_parallel([partial(self.delete, entry.uri) for entry in self.entries(uri)])
        local = local_path(uri)
        if local is not None:
            shutil.rmtree(local, ignore_errors=True)  # removes the remaining empty folders


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _in_parallel(calls: Iterable[Callable[[], object]]) -> None:
    """Runs the calls on a few threads; raises the first error."""
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()
