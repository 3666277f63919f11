"""``finetune tensorboard``: TensorBoard on the training metrics of jobs, also while they train."""

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli import status_view
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.event_files import EventFiles
from finetune_operator.cli.run_folder import JobRun

#: Seconds between two copies of what a training has added. TensorBoard reads its folder every 5 s.
_PACE = 15.0
#: Seconds in which TensorBoard must end.
_PATIENCE = 5.0


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
        fix=f"It is {status_view.phase_of(run.job)}; `finetune watch {run.name}` shows when it trains.",
    )
