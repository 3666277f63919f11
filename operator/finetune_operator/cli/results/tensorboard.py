"""``finetune tensorboard``: TensorBoard on the training metrics of jobs, also while they train."""

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import BinaryIO

from finetune_operator.artifacts.port import ListingTooLarge, ObjectStore
from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.store import explained
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results.run_folder import JobRun
from finetune_operator.results.model_manifest import is_safe

#: Seconds between two copies of what a training has added. TensorBoard reads its folder every 5 s.
_PACE = 15.0
#: Seconds in which TensorBoard must end.
_PATIENCE = 5.0
#: Files of one job, and bytes of all their event files. A training writes one file for each attempt, of some MB.
_FILES = 1000
_BYTES = 2**30
_PART = 4 * 2**20
_BY_HAND = "Copy the ones that you need, and run `tensorboard --logdir FOLDER`."


class EventFiles:
    """Copies of the event files of one run in a local folder.

    TensorBoard itself could read a bucket only with tensorflow or gcsfs in its environment; the copies need neither.
    No other file of a run folder reaches it.
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


def tensorboard_program() -> list[str]:
    """Returns the command that runs TensorBoard: that on PATH, or else that of this environment. Raises CliError."""
    if (program := shutil.which("tensorboard")) is not None:
        return [str(Path(program).absolute())]  # It runs in another folder.
    if importlib.util.find_spec("tensorboard") is not None:
        # -P: a module in the caller's folder, which may be a tenant's export, is not imported.
        return [sys.executable, "-P", "-m", "tensorboard.main"]
    raise CliError(
        "TensorBoard is not installed.", fix="`pip install tensorboard`, and run the command again."
    )


async def show_tensorboard(
    runs: Sequence[JobRun],
    program: Sequence[str],
    options: Sequence[str],
    store: ObjectStore,
    write: Callable[[str], None],
) -> None:
    """Runs TensorBoard on the jobs' metrics, one run for each, until it ends.

    The copies are in a temporary folder, which is deleted at the end. ``write`` reports a store that does not respond;
    the copies continue when it does. Raises CliError if a job has no metrics yet, and if TensorBoard fails.
    """
    with TemporaryDirectory(prefix="finetune-tensorboard-", ignore_cleanup_errors=True) as folder:
        names = [run.name for run in runs]
        # Two copies of a run folder have the same name.
        places = [f"{name}.{i}" if name in names[:i] else name for i, name in enumerate(names)]
        sources = [
            EventFiles(run, Path(folder) / place, store) for run, place in zip(runs, places, strict=True)
        ]
        for run, source in zip(runs, sources, strict=True):
            if not await source.update():
                raise _no_metrics(run)
        try:
            process = await asyncio.create_subprocess_exec(*program, "--logdir", folder, *options, cwd=folder)
        except OSError as error:
            raise CliError(f"{program[0]} does not start: {error.strerror}") from error
        following = asyncio.create_task(_follow(sources, write))
        try:
            code = await process.wait()
        finally:
            following.cancel()
            await asyncio.wait([following])
            await _end(process)
    if code:
        raise CliError(f"TensorBoard ended with exit code {code}; its own message is above.")


async def _follow(sources: Sequence[EventFiles], write: Callable[[str], None]) -> None:
    problem = ""
    while True:
        await asyncio.sleep(_PACE)
        try:
            for source in sources:
                await source.update()
        except (CliError, OSError) as error:
            if str(error) != problem:
                write(f"The metrics are not up to date: {error}")
            problem = str(error)
        else:
            problem = ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process, which Ctrl-C may have reached already."""
    for stop in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PATIENCE)


def _no_metrics(run: JobRun) -> CliError:
    where = f"{run.name} has recorded no training metrics: {run.folder.tensorboard} is empty."
    if run.job is None:
        return CliError(where)
    return CliError(
        where,
        fix=f"It is {job_status.phase_of(run.job)}; `finetune watch {run.name}` shows when it trains.",
    )
