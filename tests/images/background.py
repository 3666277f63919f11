"""Commands, and programs in the background."""

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path


def run(*argv: str | Path, check: bool = True, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of the command. Raises AssertionError with its output if it fails."""
    done = subprocess.run(
        [str(each) for each in argv],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | dict(environment or {}),
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, argv))}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Processes:
    """Programs in the background, each with a log of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def start(self, name: str, argv: Sequence[str | Path]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(each) for each in argv], stdout=log, stderr=log, start_new_session=True
            )
        self._stack.callback(_end, process)


def answers(url: str) -> bool:
    """Whether the server says so with a status of success."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def until(holds: Callable[[], bool], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(AssertionError):
            if holds():
                return
        time.sleep(0.1)
    raise AssertionError(f"{what} does not answer after {seconds:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
