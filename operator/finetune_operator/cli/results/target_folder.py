"""The local folder of a download. Nothing outside it is written, and no file in it that belongs to others.

A file has its final name only once its digest was compared; until then it is ``NAME.partial``.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from finetune_operator.cli import text
from finetune_operator.cli.errors import CliError
from finetune_operator.results.model_manifest import PARTIAL, ManifestFile

type ByteCount = Callable[[int], None]
"""Called with the number of bytes that were read; negative if they have to be read again."""

#: Bytes that are read and hashed at a time.
_CHUNK = 2**20
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@dataclass(slots=True)
class PartialFile:
    """How much of a file is there."""

    file: ManifestFile
    done: int = 0
    """Bytes of the partial file, from the start."""
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    """SHA-256 of these bytes."""


class TargetFolder:
    """A folder for the files of one export.

    Args:
        path: the folder; it may be a symbolic link itself.
        files: the export's files.
        force: whether to replace files of these names with other content, and to accept further files.
    """

    def __init__(self, path: Path, files: Sequence[ManifestFile], *, force: bool) -> None:
        self.path = path
        self._files = files
        self._force = force

    def missing(self, progress: ByteCount) -> list[PartialFile]:
        """Reads the files that are there, and returns those that are not complete.

        Raises CliError if the path is no folder, contains links at places of the export's files or, without ``force``,
        anything that is not of the export; and if the disk has no room for the rest.
        """
        if self.path.exists() and not self.path.is_dir():
            raise CliError(f"{self.path} is not a folder.", fix="Choose another folder with --to DIR.")
        for file in self._files:
            self._require_plain(file.path)
        if not self._force and (other := next(self._others(), None)) is not None:
            raise CliError(
                f"{self.path} contains {ascii(other)[1:-1]}, which is not a file of this export.",
                fix="Choose an empty folder with --to DIR. --force keeps such files, and replaces those with the names "
                "of the export's.",
            )
        missing = [
            _read(file, self._place_of_partial(file), progress)
            for file in self._files
            if not self._complete(file, progress)
        ]
        self._require_room(sum(each.file.size - each.done for each in missing))
        return missing

    @contextmanager
    def writing(self, file: ManifestFile) -> Iterator[BinaryIO]:
        """Opens the partial file for writing; creates it, and missing folders, if needed."""
        self._require_plain(file.path)
        place = self._place_of_partial(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | _NO_FOLLOW | _BINARY, 0o644)
        with os.fdopen(descriptor, "r+b") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise _not_plain(place)
            yield stream

    def finish(self, file: ManifestFile) -> None:
        """Gives a complete partial file its name."""
        self._place_of_partial(file).replace(self.path / file.path)

    def discard(self, file: ManifestFile) -> None:
        """Deletes the partial file."""
        self._place_of_partial(file).unlink(missing_ok=True)

    def _place_of_partial(self, file: ManifestFile) -> Path:
        return self.path / f"{file.path}{PARTIAL}"

    def _complete(self, file: ManifestFile, progress: ByteCount) -> bool:
        place = self.path / file.path
        if not place.exists():
            return False
        if place.stat().st_size == file.size:
            if _read(file, place, progress).digest.hexdigest() == file.sha256:
                return True
            progress(-file.size)
        if not self._force:
            raise CliError(
                f"{place} has other content than this export's {file.path}.",
                fix="Choose an empty folder with --to DIR, or replace such files with --force.",
            )
        return False

    def _require_room(self, needed: int) -> None:
        existing = next(
            each for each in (self.path.absolute(), *self.path.absolute().parents) if each.is_dir()
        )
        free = shutil.disk_usage(existing).free
        if free < needed:
            raise CliError(
                f"{self.path} needs {text.size(needed)} more, and its disk has {text.size(free)} free.",
                fix="Free space, or choose another disk with --to DIR.",
            )

    def _others(self) -> Iterator[str]:
        """Yields names of files and links in the folder that are not of the export."""
        known = {file.path for file in self._files}
        for folder, folders, names in os.walk(self.path):
            links = [each for each in folders if _is_link(Path(folder) / each)]
            for name in (*names, *links):
                relative = (Path(folder) / name).relative_to(self.path).as_posix()
                if relative.removesuffix(PARTIAL) not in known:
                    yield relative

    def _require_plain(self, name: str) -> None:
        """Raises CliError if the file, its partial file or a folder above them in this one is a link or a device."""
        *folders, last = name.split("/")
        place = self.path
        for folder in folders:
            place /= folder
            if _is_link(place) or (place.exists() and not place.is_dir()):
                raise _not_plain(place)
        for file in (place / last, place / f"{last}{PARTIAL}"):
            if _is_link(file) or (file.exists() and not file.is_file()):
                raise _not_plain(file)


def _read(file: ManifestFile, place: Path, progress: ByteCount) -> PartialFile:
    """Reads up to the file's size at ``place``, where it may be missing."""
    read = PartialFile(file)
    if place.exists():
        with place.open("rb") as stream:
            while chunk := stream.read(min(_CHUNK, file.size - read.done)):
                read.digest.update(chunk)
                read.done += len(chunk)
                progress(len(chunk))
    return read


def _is_link(place: Path) -> bool:
    return place.is_symlink() or place.is_junction()


def _not_plain(place: Path) -> CliError:
    return CliError(
        f"{place} is a link, or not a plain file or folder: a download writes to none of these.",
        fix="Delete it, or choose another folder with --to DIR.",
    )
