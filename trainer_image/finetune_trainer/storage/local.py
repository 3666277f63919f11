"""``file://`` storage: local folders, with the same guarantees as a bucket."""

import base64
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import google_crc32c

from finetune_trainer.storage import base
from finetune_trainer.storage import uri as addresses
from finetune_trainer.storage.base import Entry, VersionedContent

#: Name prefix of unfinished writes, which are never listed.
_PARTIAL = ".partial-"
_READABLE = 0o644


class LocalBackend:
    """Local files. Writes are atomic; a file's version is derived from its inode, modification time and size."""

    def read(self, uri: str) -> bytes:
        with _mapped(uri):
            return _path(uri).read_bytes()

    def write(self, uri: str, data: bytes, content_type: str) -> None:  # noqa: ARG002 - not applicable to files
        with _mapped(uri), _partial(_path(uri)) as partial:
            partial.write_bytes(data)
            partial.replace(_path(uri))

    def create(self, uri: str, data: bytes, content_type: str) -> bool:  # noqa: ARG002 - not applicable to files
        with _mapped(uri), _partial(_path(uri)) as partial:
            partial.write_bytes(data)
            try:
                os.link(partial, _path(uri))  # atomic: fails if the name exists
            except FileExistsError:
                return False
            return True

    def read_current(self, uri: str, limit: int) -> VersionedContent | None:
        with _mapped(uri):
            try:
                stream = _path(uri).open("rb")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            with stream:
                facts = os.fstat(stream.fileno())
                content = stream.read(limit) if facts.st_size <= limit else None
                return VersionedContent(content=content, version=_version(facts))

    def replace(self, uri: str, data: bytes, content_type: str, version: str) -> bool:  # noqa: ARG002 - not applicable to files
        path = _path(uri)
        with _mapped(uri), _locked(path.parent), _partial(path) as partial:
            try:
                if _version(path.stat()) != version:
                    return False
            except FileNotFoundError:
                return False
            partial.write_bytes(data)
            partial.replace(path)
            return True

    def entries(self, uri: str) -> Iterator[Entry]:
        root = _path(uri)
        with _mapped(uri):
            files = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith(_PARTIAL))
        for path in files:
            entry = self.stat(f"file://{path}")
            if entry is not None:
                yield entry

    def stat(self, uri: str) -> Entry | None:
        path = _path(uri)
        with _mapped(uri):
            facts = size_and_time(path)
            if facts is None:
                return None
            return Entry(uri=uri, size=facts[0], updated=facts[1], crc32c=_crc32c(path))

    def download(self, uri: str, target: Path, generation: str | None) -> None:  # noqa: ARG002 - not applicable to files
        with _mapped(uri):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_path(uri), target)

    def read_range(self, uri: str, start: int, end: int, generation: str | None) -> bytes:  # noqa: ARG002 - not applicable to files
        with _mapped(uri), _path(uri).open("rb") as stream:
            stream.seek(start)
            return stream.read(end - start)

    def upload(self, source: Path, uri: str) -> None:
        with _mapped(uri), _partial(_path(uri)) as partial:
            shutil.copyfile(source, partial)
            partial.replace(_path(uri))

    def delete(self, uri: str) -> None:
        with _mapped(uri):
            _path(uri).unlink(missing_ok=True)

    def require_bucket(self, uri: str) -> None:
        pass


def size_and_time(path: Path) -> tuple[int, datetime] | None:
    """Returns size in bytes and modification time; None if the path is not a regular file."""
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return facts.st_size, datetime.fromtimestamp(facts.st_mtime, UTC)


def _path(uri: str) -> Path:
    path = addresses.parse(uri)
    assert isinstance(path, Path)
    return path


@contextmanager
def _mapped(uri: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise base.missing(uri) from error
    except PermissionError as error:
        raise base.denied(uri, str(error)) from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise base.denied(uri, str(error)) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # reported at the end of the stage
        raise base.unavailable(uri, str(error)) from error


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yields a temporary file next to ``path`` for an unfinished write. Removes it afterwards if it still exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=_PARTIAL, dir=path.parent)
    os.close(handle)
    Path(name).chmod(_READABLE)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _version(facts: os.stat_result) -> str:
    """Returns the file's version, which is unique because every write creates a new file and renames it."""
    return f"{facts.st_ino}.{facts.st_mtime_ns}.{facts.st_size}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder, so that no other process compares and replaces one of its files at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _crc32c(path: Path) -> str:
    checksum = google_crc32c.Checksum()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            checksum.update(chunk)
    return base64.b64encode(checksum.digest()).decode()
