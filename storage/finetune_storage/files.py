"""``file://`` storage: local folders, with the same guarantees as a bucket. Needs POSIX."""

import contextlib
import errno
import fcntl
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import IO

from finetune_storage import calls
from finetune_storage.errors import ObjectMissing, ObjectTooLarge, StorageDenied, StorageUnavailable
from finetune_storage.store import JSON, Entry, StoredBytes, bounded, crc32c_of
from finetune_storage.uris import file_path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: A folder in which names are looked up: on Linux without the right to list it.
_PARENT = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
#: O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal must not become the controlling one.
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Name prefix of unfinished writes.
_UNFINISHED = ".partial-"
#: Files that are never listed. Earlier releases wrote the second kind.
_UNLISTED = (_UNFINISHED, ".writing-")
_READABLE = 0o644
_PIECE = 2**20
#: Levels of untrusted folders below the listed one; the contract has one. Each holds a descriptor during the walk.
_DEEPEST = 16

type Boundary = Callable[[Path], Sequence[str]]
"""Returns the last names of a path, at least one, that lie in what others write: none of them may be a link."""


class FileStore:
    """Implements :class:`.store.BlockingStore`. Only regular files are objects: pipes and devices are ignored.

    Args:
        boundary: links in the names that it returns are not followed, and deep folders there not listed. None: the
            paths are trusted, and links are followed everywhere.
    """

    def __init__(self, boundary: Boundary | None = None) -> None:
        self._boundary = boundary
        self._links = 0 if boundary is None else os.O_NOFOLLOW

    # --- contents -------------------------------------------------------------------------------------------------

    def read(self, uri: str, limit: int | None = None) -> StoredBytes | None:
        return self._part(uri, 0, sys.maxsize, limit)

    def read_part(
        self, uri: str, start: int, size: int, _generation: str | None = None
    ) -> StoredBytes | None:
        return self._part(uri, start, size)

    def _part(self, uri: str, start: int, size: int, limit: int | None = None) -> StoredBytes | None:
        """Raises ObjectTooLarge, and reads nothing, if the whole file has more than ``limit`` bytes."""
        with (
            _failures(uri),
            _absence_passes(),
            self._parent(uri) as (folder, name),
            _opened(folder, name, _FILE | self._links) as descriptor,
        ):
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                return None
            if limit is not None and facts.st_size > limit:
                raise ObjectTooLarge(uri, limit, _version(facts))
            content = _content(descriptor, start, max(0, min(size, facts.st_size - start)))
            return StoredBytes.of(content, _modified(facts), version=_version(facts))
        return None

    def write(self, uri: str, content: bytes, content_type: str = JSON) -> None:  # noqa: ARG002  files have none
        self._overwrite(uri, io.BytesIO(content))

    def upload(self, source: Path, uri: str) -> None:
        with _failures(uri), source.open("rb") as content:
            self._overwrite(uri, content)

    def _overwrite(self, uri: str, content: IO[bytes]) -> None:
        with self._written(uri, content) as (folder, unfinished, name):
            os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)

    def create(self, uri: str, content: bytes, content_type: str = JSON) -> bool:  # noqa: ARG002  files have none
        with self._written(uri, io.BytesIO(content)) as (folder, unfinished, name):
            try:
                # Fails if the name exists.
                os.link(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
        return True

    def replace(self, uri: str, content: bytes, content_type: str, version: str) -> bool:  # noqa: ARG002  as above
        """Writes the file if it still has that version. Returns False if it has been replaced or deleted since."""
        with (
            self._written(uri, io.BytesIO(content)) as (folder, unfinished, name),
            _opened(folder, ".", _FOLDER) as locked,
        ):
            # Until the descriptor is closed no other process compares and replaces a file of this folder.
            fcntl.flock(locked, fcntl.LOCK_EX)
            try:
                if _version(os.stat(name, dir_fd=folder)) != version:
                    return False
            except FileNotFoundError:
                return False
            os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True

    def download(self, uri: str, target: Path, generation: str | None) -> None:  # noqa: ARG002  files have none
        with _failures(uri):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file_path(uri), target)

    def delete(self, uri: str) -> None:
        with _failures(uri):
            file_path(uri).unlink(missing_ok=True)

    # --- folders --------------------------------------------------------------------------------------------------

    def names(self, uri: str, *, limit: int, longest: int) -> Sequence[str]:
        # Closed here: a listing above the limit would keep its folders open until the garbage collection.
        with _failures(uri), contextlib.closing(self._below(uri)) as names:
            return bounded(uri, names, limit=limit, longest=longest)

    def entries(self, uri: str) -> Iterator[Entry]:
        """Yields every file below the folder, ordered by name; nothing if the folder does not exist."""
        with _failures(uri):
            names = sorted(filter(None, self._below(uri)), key=PurePosixPath)
        for name in names:
            entry = self.stat(f"file://{file_path(uri) / name}")
            if entry is not None:
                yield entry

    def stat(self, uri: str) -> Entry | None:
        path = file_path(uri)
        with _failures(uri):
            facts = size_and_time(path)
            if facts is None:
                return None
            with path.open("rb") as stream:
                crc32c = crc32c_of(iter(lambda: stream.read(_PIECE), b""))
            return Entry(uri=uri, size=facts[0], updated=facts[1], crc32c=crc32c)

    def require_bucket(self, uri: str) -> None:
        pass

    def _below(self, uri: str) -> Generator[str]:
        """Yields the path of every regular file below the folder, unsorted, and an empty one for anything else: a
        million empty folders take as long to list."""
        with (
            _absence_passes(),
            self._parent(uri) as (parent, name),
            _opened(parent, name, _FOLDER | self._links) as folder,
        ):
            yield from self._walk(folder, "", 0)

    def _walk(self, folder: int, prefix: str, depth: int) -> Generator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                calls.current().left()
                listed = not entry.name.startswith(_UNLISTED) and self._is_file(entry)
                yield f"{prefix}{entry.name}" if listed else ""
                if (depth < _DEEPEST or not self._links) and entry.is_dir(follow_symlinks=False):
                    below = self._subfolder(folder, entry.name)
                    if below is None:
                        continue
                    try:
                        yield from self._walk(below, f"{prefix}{entry.name}/", depth + 1)
                    finally:
                        os.close(below)

    def _is_file(self, entry: os.DirEntry[str]) -> bool:
        """Whether it is a regular file. A link in a loop, or to a name below a file, leads to none."""
        with _absence_passes():
            return entry.is_file(follow_symlinks=not self._links)
        return False

    def _subfolder(self, folder: int, name: str) -> int | None:
        """Returns a descriptor; None if the folder has been deleted since it was listed.

        Also None for a folder on a trusted path that may not be read, such as ``lost+found`` at the top of a disk.
        """
        passed = () if self._links else (PermissionError,)
        with _absence_passes(), contextlib.suppress(*passed):
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        return None

    # --- paths ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _parent(self, uri: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yields a descriptor of the folder that holds the last name of the URI, and that name.

        Args:
            make: create missing folders.
        """
        path = file_path(uri)
        untrusted = self._boundary(path) if self._boundary else ()
        *folders, name = untrusted or (path.name or ".",)
        base = path.parents[len(folders)] if path.name else path
        if make:
            base.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            descriptor = os.open(base, _PARENT)
            stack.callback(os.close, descriptor)
            for folder in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=descriptor)
                descriptor = stack.enter_context(_opened(descriptor, folder, _PARENT | os.O_NOFOLLOW))
            yield descriptor, name

    @contextmanager
    def _written(self, uri: str, content: IO[bytes]) -> Iterator[tuple[int, str, str]]:
        """Yields the folder, the name of a new file in it with the content, and the name that is to replace.

        The new file is deleted at the end unless it was renamed.
        """
        unfinished = f"{_UNFINISHED}{token_hex(8)}"
        with (
            _failures(uri, writing=self._boundary is not None),
            self._parent(uri, make=True) as (folder, name),
        ):
            try:
                with os.fdopen(os.open(unfinished, _NEW, _READABLE, dir_fd=folder), "wb") as new:
                    # Readable for pods that run as another user, whatever the umask is.
                    os.fchmod(new.fileno(), _READABLE)
                    shutil.copyfileobj(content, new, _PIECE)
                calls.current().left()
                yield folder, unfinished, name
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(unfinished, dir_fd=folder)


def size_and_time(path: Path) -> tuple[int, datetime] | None:
    """Returns size in bytes and modification time; None if the path is not a regular file."""
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (facts.st_size, _modified(facts)) if stat.S_ISREG(facts.st_mode) else None


@contextmanager
def _failures(uri: str, *, writing: bool = False) -> Iterator[None]:
    """Raises errors of the system as a StorageError.

    Args:
        writing: the file need not exist, so ObjectMissing is not raised. Another file or a link may be in its way.
    """
    try:
        yield
    except OSError as error:
        # Relative to a descriptor's folder, or of a write, which names no file.
        error.filename = str(file_path(uri))
        text, detail = error.strerror or str(error), str(error)
        if not writing and isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            raise ObjectMissing(uri, text) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise StorageDenied(uri, f"{text} (as user id {os.getuid()})", detail) from error
        raise StorageUnavailable(uri, text, detail) from error


@contextmanager
def _absence_passes() -> Iterator[None]:
    """Leaves the block quietly if a path does not exist, is not a folder where one is needed, or is a symbolic link."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise


@contextmanager
def _opened(folder: int, name: str, flags: int) -> Iterator[int]:
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(descriptor: int, start: int, size: int) -> bytes:
    """Returns ``size`` bytes from offset ``start``, fewer only where the file ends."""
    # Joined once: StoredBytes copies exact bytes once, but a bytearray twice.
    pieces, end, call = list[bytes](), start + size, calls.current()
    while start < end and (piece := os.pread(descriptor, min(end - start, _PIECE), start)):
        pieces.append(piece)
        start += len(piece)
        call.left()
    return b"".join(pieces)


def _modified(facts: os.stat_result) -> datetime:
    return datetime.fromtimestamp(facts.st_mtime, UTC)


def _version(facts: os.stat_result) -> str:
    """Returns the file's version, which is unique because every write creates a new file and renames it."""
    return f"{facts.st_ino}.{facts.st_mtime_ns}.{facts.st_size}"
