"""Object store for ``file://`` URIs, for a cluster whose pods and operator share one machine."""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from secrets import token_hex
from urllib.parse import unquote, urlsplit

from finetune_operator.artifacts.calls import StoreCall
from finetune_operator.artifacts.port import (
    NAME_LENGTH,
    ListingTooLarge,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StoredBytes,
)


class FileStore:
    """Implements :class:`.shared_store.BlockingStore`. Writes are atomic for readers.

    Only regular files are objects: pipes, devices and sockets are ignored. Pods write run folders and cache entries, so
    symbolic links in them are not followed; links in the path above belong to the platform and are followed.
    """

    seconds = 10.0

    def read(self, call: StoreCall, uri: str, limit: int) -> bytes | None:
        content = self.read_part(call, uri, 0, limit + 1)
        if content is not None and len(content) > limit:
            raise ObjectTooLarge(uri, limit)
        return content

    def read_part(self, call: StoreCall, uri: str, start: int, size: int) -> bytes | None:
        with _absence_passes(), _parent(uri) as (folder, name):
            return _read(folder, name, size, call, start)
        return None

    def list(self, call: StoreCall, uri: str, limit: int) -> Sequence[str]:
        names: list[str] = []
        with _absence_passes(), _parent(uri) as (parent, name), _opened(parent, name, _FOLDER) as folder:
            for seen, (path, regular) in enumerate(_walk(folder, "", call), start=1):
                # Folders count, too: a million empty ones take as long to list.
                if seen > limit:
                    raise ListingTooLarge(uri, limit)
                if regular and len(path) <= NAME_LENGTH:
                    names.append(path)
        return sorted(names)

    def write(self, call: StoreCall, uri: str, content: bytes) -> None:
        with _parent(uri, make=True) as (folder, name), _written(folder, content, call) as temporary:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    def create(self, call: StoreCall, uri: str, content: bytes) -> bool:
        with _parent(uri, make=True) as (folder, name), _written(folder, content, call) as temporary:
            try:
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
        return True

    def explained(self, uri: str, error: Exception) -> StorageError | None:
        match error:
            case PermissionError():
                return StorageDenied(uri, f"{error.strerror} (as user id {os.getuid()})")
            case OSError():
                return StorageUnavailable(uri, error.strerror or str(error))
        return None


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal must not become the controlling one.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: The platform's folder, and the part below it that pods write: a run folder or, in a cache, a converted model. The
#: first that matches. Exports have names of any depth, so there the name of the run folder is recognized by its uid.
_WRITTEN_BY_PODS = (
    re.compile(
        r"(.*?)/([^/]+-[0-9a-f]{8}/(?:attempts|evaluate|export|preflight|train|status\.json)(?:/.*)?)"
    ),
    re.compile(
        r"(.*)/([^/]+/(?:attempts|preflight|train)(?:/[^/]+){0,2}|[^/]+/status\.json|convert(?:/[^/]+){0,2})/?"
    ),
)
_TEMPORARY = ".writing-"
#: Levels of folders below the listed one; the contract has one. Each level holds a descriptor during the walk.
_DEEPEST = 16


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


def _parts(uri: str) -> tuple[str, Sequence[str]]:
    """Returns the folder that the platform has set up, and the names below it (at least one)."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise StorageError(uri, "a file URI is file:///absolute/path")
    written = next(filter(None, (each.fullmatch(path) for each in _WRITTEN_BY_PODS)), None)
    if written:
        return written[1] or "/", PurePosixPath(written[2]).parts
    whole = PurePosixPath(path)
    return str(whole.parent), (whole.name or ".",)


@contextmanager
def _opened(folder: int, name: str, flags: int) -> Iterator[int]:
    descriptor = os.open(name, flags, 0o644, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _parent(uri: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yields a descriptor of the folder that holds the last name of the URI, and that name.

    Args:
        make: create missing folders.
    """
    base, (*folders, name) = _parts(uri)
    if make:
        Path(base).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        for folder in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=descriptor)
            descriptor = stack.enter_context(_opened(descriptor, folder, _FOLDER))
        yield descriptor, name


def _read(folder: int, name: str, most: int, call: StoreCall, start: int) -> bytes | None:
    """Returns up to ``most`` bytes from offset ``start``, or None if the name is not a regular file."""
    with _opened(folder, name, _FILE) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        os.lseek(descriptor, start, os.SEEK_SET)
        content = bytearray()
        while len(content) < most and (chunk := os.read(descriptor, min(most - len(content), 2**16))):
            content += chunk
            call.left()
        return StoredBytes.of(bytes(content), datetime.fromtimestamp(found.st_mtime, UTC))


def _walk(folder: int, prefix: str, call: StoreCall, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yields the path of every entry below the folder, unsorted, and whether it is a regular file."""
    with os.scandir(folder) as entries:
        for entry in entries:
            call.left()
            path = f"{prefix}{entry.name}"
            yield path, entry.is_file(follow_symlinks=False) and not entry.name.startswith(_TEMPORARY)
            if depth < _DEEPEST and entry.is_dir(follow_symlinks=False):
                # The folder may have been deleted since it was listed.
                with _absence_passes(), _opened(folder, entry.name, _FOLDER) as below:
                    yield from _walk(below, f"{path}/", call, depth + 1)


@contextmanager
def _written(folder: int, content: bytes, call: StoreCall) -> Iterator[str]:
    """Yields the name of a new file with the content, which is deleted at the end unless it was renamed."""
    temporary = f"{_TEMPORARY}{token_hex(8)}"
    try:
        with _opened(folder, temporary, _NEW) as descriptor:
            # Readable for pods that run as another user, whatever the operator's umask is.
            os.fchmod(descriptor, 0o644)
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            call.left()
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
