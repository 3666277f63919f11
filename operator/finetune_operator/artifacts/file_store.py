"""``file://`` for a cluster whose pods and operator share one machine."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from finetune_operator.artifacts.port import StorageDenied, StorageError, StorageUnavailable


class FileStore:
    """Implements :class:`finetune_operator.artifacts.port.Store`. A reader sees all of a write or nothing."""

    def __init__(self, *, deadline_seconds: float = 10) -> None:
        self._deadline = deadline_seconds

    async def read(self, uri: str) -> bytes | None:
        return await self._run(uri, _read)

    async def list(self, uri: str) -> Sequence[str]:
        return await self._run(uri, _list)

    async def write(self, uri: str, content: bytes) -> None:
        await self._run(uri, lambda path: _write(path, content))

    async def _run[T](self, uri: str, work: Callable[[Path], T]) -> T:
        path = _path(uri)
        try:
            async with asyncio.timeout(self._deadline):
                return await asyncio.to_thread(work, path)
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


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _list(folder: Path) -> Sequence[str]:
    def fail(error: OSError) -> None:
        # A folder that vanishes while we walk is as if it had never been there; anything else must be known.
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    names = [
        (Path(parent) / name).relative_to(folder).as_posix()
        for parent, _, files in os.walk(folder, onerror=fail)
        for name in files
        if not name.startswith(_TEMPORARY)
    ]
    return sorted(names)


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
