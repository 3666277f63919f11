"""Folders and files by address, ``gs://`` and ``file://`` alike.

Failures are ``StageError``: 66 missing, 77 denied, 69 unreachable after five minutes of retries. A single file is
always replaced as a whole; of a folder, the files named as ``last`` are uploaded last, so that their presence means
that the folder is complete.
"""

import fnmatch
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.storage.base import Backend, Current, Entry, missing
from finetune_trainer.storage.gcs import GcsBackend
from finetune_trainer.storage.local import LocalBackend
from finetune_trainer.storage.uri import fixed_prefix, has_wildcard, join, name_of, parse

__all__ = ["Current", "Entry", "Store", "has_wildcard", "join", "local_path", "name_of", "open_store"]

_PARALLEL = 8


def open_store() -> "Store":
    """The store for real use; connects to a bucket only when one is named."""
    return Store(local=LocalBackend(), gcs=GcsBackend())


def local_path(uri: str) -> Path | None:
    """The path behind a ``file://`` address, None for a bucket."""
    address = parse(uri)
    return address if isinstance(address, Path) else None


class Store:
    """Thread safe."""

    def __init__(self, *, local: Backend, gcs: Backend) -> None:
        self._local = local
        self._gcs = gcs

    def _of(self, uri: str) -> Backend:
        return self._local if isinstance(parse(uri), Path) else self._gcs

    # --- single files ---------------------------------------------------------------------------------------------

    def read(self, uri: str) -> bytes:
        return self._of(uri).read(uri)

    def read_or_none(self, uri: str) -> bytes | None:
        """None when the file is not there. One request in both cases."""
        try:
            return self.read(uri)
        except StageError as error:
            if error.code is ExitCode.INPUT_MISSING:
                return None
            raise

    def read_current(self, uri: str, *, limit: int) -> Current | None:
        """Content and version of a file that others may have written; None when it is not there. Content of more than
        ``limit`` bytes is not read."""
        return self._of(uri).read_current(uri, limit)

    def write(self, uri: str, data: bytes | str, *, content_type: str = "application/json") -> None:
        """Replaces the file as a whole: a reader sees the old or the new one."""
        self._of(uri).write(uri, data.encode() if isinstance(data, str) else data, content_type)

    def create(self, uri: str, data: bytes | str, *, content_type: str = "application/json") -> bool:
        """Writes only where nothing lies yet; False when another was first."""
        return self._of(uri).create(uri, data.encode() if isinstance(data, str) else data, content_type)

    def replace(
        self, uri: str, data: bytes | str, *, version: str, content_type: str = "application/json"
    ) -> bool:
        """Replaces the file as a whole, only where it is of that ``version`` (``read_current``); False where it is
        another one by now, or gone."""
        return self._of(uri).replace(
            uri, data.encode() if isinstance(data, str) else data, content_type, version
        )

    def stat(self, uri: str) -> Entry | None:
        return self._of(uri).stat(uri)

    def exists(self, uri: str) -> bool:
        return self.stat(uri) is not None

    def fetch_file(self, uri: str, target: Path, *, generation: str | None = None) -> Path:
        """``generation``: that of an entry in a bucket. Raises 66 where the object is another one by now."""
        self._of(uri).download(uri, target, generation)
        return target

    def upload_file(self, source: Path, uri: str) -> None:
        self._of(uri).upload(source, uri)

    def delete(self, uri: str) -> None:
        """Removes one file; fine when it is gone already."""
        self._of(uri).delete(uri)

    # --- folders --------------------------------------------------------------------------------------------------

    def entries(self, uri: str) -> Iterator[Entry]:
        """Every file below the folder, in the order of their names; nothing for a folder that is not there."""
        return self._of(uri).entries(uri.rstrip("/"))

    def glob(self, pattern: str) -> list[Entry]:
        """Files that match; ``*`` and ``?`` stop at slashes, a pattern without wildcards names one file."""
        if not has_wildcard(pattern):
            entry = self.stat(pattern)
            return [] if entry is None else [entry]
        wanted = pattern.split("/")
        return [
            entry for entry in self.entries(fixed_prefix(pattern)) if _matches(entry.uri.split("/"), wanted)
        ]

    def fetch_folder(self, uri: str, scratch: Path, *, include: Sequence[str] = ("*",)) -> Path:
        """A local folder with the files (whose names below ``uri`` match ``include``): a ``file://`` folder itself,
        else a copy in ``scratch``. Raises 66 when nothing is there."""
        local = local_path(uri)
        if local is not None:
            if not local.is_dir():
                raise missing(uri)
            return local
        prefix = uri.rstrip("/") + "/"
        names = [entry.uri.removeprefix(prefix) for entry in self.entries(uri)]
        wanted = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in include)]
        if not wanted:
            raise missing(uri)
        scratch.mkdir(parents=True, exist_ok=True)
        _in_parallel(partial(self.fetch_file, prefix + name, scratch / name) for name in wanted)
        return scratch

    def upload_folder(self, source: Path, uri: str, *, last: Sequence[str] = ()) -> None:
        """Uploads every file below ``source``; those in ``last`` after all others, in that order."""
        names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
        _in_parallel(
            partial(self.upload_file, source / name, join(uri, name))
            for name in names
            if name not in set(last)
        )
        for name in last:
            if (source / name).is_file():
                self.upload_file(source / name, join(uri, name))

    def delete_folder(self, uri: str, *, first: Sequence[str] = ()) -> None:
        """Removes every file below ``uri``; those in ``first`` before all others, so that no reader takes the rest
        for a whole folder."""
        for name in first:
            self._of(uri).delete(join(uri, name))
        _in_parallel([partial(self.delete, entry.uri) for entry in self.entries(uri)])
        local = local_path(uri)
        if local is not None:
            shutil.rmtree(local, ignore_errors=True)  # only empty folders are left


def _matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _in_parallel(calls: Iterable[Callable[[], object]]) -> None:
    """Runs the calls on a few threads; raises the first error."""
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()
