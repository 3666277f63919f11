"""Copies of TensorBoard's event files, which grow while a job trains.

TensorBoard itself could read a bucket only with tensorflow or gcsfs in its environment; the copies need neither, and no
other file of a run folder reaches it.
"""

from pathlib import Path, PurePosixPath
from typing import BinaryIO

from finetune_operator.artifacts.port import ListingTooLarge, ObjectStore
from finetune_operator.cli import text
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.run_folder import JobRun, explained
from finetune_operator.results.model_manifest import is_safe

#: Files of one job, and bytes of all their event files. A training writes one file for each attempt, of some MB.
_FILES = 1000
_BYTES = 2**30
_PART = 4 * 2**20
_BY_HAND = "Copy the ones that you need, and run `tensorboard --logdir FOLDER`."


class EventFiles:
    """The event files of one run, and their copies.

    Args:
        run: the job's run folder.
        folder: local folder for the copies.
        store: the store that holds the run folder.
    """

    def __init__(self, run: JobRun, folder: Path, store: ObjectStore) -> None:
        self._run = run
        self._folder = folder
        self._store = store
        self._sizes: dict[str, int] = {}

    async def update(self) -> int:
        """Copies what was added since the last call, and returns the number of files. Raises CliError."""
        uri = self._run.folder.tensorboard
        with explained():
            try:
                names = await self._store.list(uri, limit=_FILES)
            except ListingTooLarge as error:
                raise CliError(
                    f"{uri} holds more than {_FILES:,} files: no training writes so many."
                ) from error
            for name in names:
                if "tfevents" in PurePosixPath(name).name and is_safe(name):
                    await self._append(f"{uri}/{name}", name)
        return len(self._sizes)

    async def _append(self, uri: str, name: str) -> None:
        self._sizes.setdefault(name, 0)
        with self._copy(name) as stream:
            while part := await self._store.read_part(uri, start=self._sizes[name], size=_PART):
                if sum(self._sizes.values()) + len(part) > _BYTES:
                    raise CliError(
                        f"The event files of {self._run.name} have more than {text.size(_BYTES)}.",
                        fix=_BY_HAND,
                    )
                stream.write(part)
                self._sizes[name] += len(part)
                if len(part) < _PART:
                    return

    def _copy(self, name: str) -> BinaryIO:
        """Opens the copy of a file to append to it. Raises CliError if the name cannot be one of a file here."""
        place = self._folder / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            return place.open("ab")
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            # Objects of a bucket can have such names.
            raise CliError(
                f"{self._run.folder.tensorboard} holds {name}, of which a part is a file and a folder.",
                fix=_BY_HAND,
            ) from error
