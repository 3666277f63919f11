"""``file://`` for a cluster whose pods and operator share one machine."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from finetune_operator.artifacts.port import (
    NAME_LENGTH,
    NAMES_LIMIT,
    RECORD_LIMIT,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    TooLarge,
    TooManyNames,
)


class FileStore:
    """Implements :class:`finetune_operator.artifacts.port.Store`. A reader sees all of a write or nothing."""

    def __init__(self, *, deadline_seconds: float = 10) -> None:
        self._deadline = deadline_seconds

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        return await self._run(uri, lambda path: _read(uri, path, limit))

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        return await self._run(uri, lambda path: _list(uri, path, limit))

    async def write(self, uri: str, content: bytes) -> None:
        await self._run(uri, lambda path: _write(path, content))

    async def _run[T](self, uri: str, work: Callable[[Path], T]) -> T:
        path = _path(uri)
        try:
            async with asyncio.timeout(self._deadline):
                return await asyncio.to_thread(work, path)
        except StorageError:
            raise
        except PermissionError as error:
            raise StorageDenied(uri, f"{error.strerror} (as user id {os.getuid()})") from error
        except TimeoutError as error:
            raise StorageUnavailable(uri, f"no answer in {self._deadline:.0f} s") from error
        except OSError as error:
            raise StorageUnavailable(uri, error.strerror or str(error)) from error


def _path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise StorageError(uri, "a file URI is file:///absolute/path")
    return Path(unquote(parts.path))


def _read(uri: str, path: Path, limit: int) -> bytes | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            content = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    if len(content) > limit:
        raise TooLarge(uri, limit)
    return content


def _list(uri: str, folder: Path, limit: int) -> Sequence[str]:
    def fail(error: OSError) -> None:
        # A folder that vanishes while we walk is as if it had never been there; anything else must be known.
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    names = []
    for parent, _, files in os.walk(folder, onerror=fail):
        names += [
            (Path(parent) / name).relative_to(folder).as_posix()
            for name in files
            if not name.startswith(_TEMPORARY)
        ]
        if len(names) > limit:
            raise TooManyNames(uri, limit)
    return sorted(name for name in names if len(name) <= NAME_LENGTH)


_TEMPORARY = ".writing-"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp's 0600 would hide the file from pods that run as another user.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
