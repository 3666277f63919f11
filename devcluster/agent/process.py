"""Starts a container's process: as a separate program, or forked from the warm server."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from devcluster.identity import ProcessIdentity, end

#: Folders of a pod that hold data of its processes.
POD_FOLDERS = ("volumes", "home", "tmp")
#: Number of past pods whose logs outlive a restart of the agent.
KEPT_PODS = 200


class StartError(Exception):
    """The program can't be started; the message is a container runtime's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start: a program with its whole environment; standard output and error are appended to ``log``."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    image: str


class Process(Protocol):
    """A started container process, leader of its own process group."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Waits for the end and returns the exit code, 128 + n after signal n."""

    def signal(self, number: int) -> None:
        """Signals the leader alone, as a kubelet signals a container's first process. Does nothing if it is gone."""


class ColdProcess:
    """A program started by the agent itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, launch: Launch) -> "ColdProcess":
        """Starts the program. Raises StartError."""
        name = launch.argv[0]
        program = shutil.which(name, path=launch.env.get("PATH", os.defpath))
        if program is None:
            raise StartError(f'exec: "{name}": executable file not found in $PATH')
        try:
            with launch.log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *launch.argv,
                    executable=program,
                    env=launch.env,
                    cwd=launch.cwd,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise StartError(f'exec: "{name}": {error.strerror}') from error
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return shell_code(await self._process.wait())

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def shell_code(returncode: int) -> int:
    """The exit code as pod statuses show it: 128 + n in place of Python's -n for signal n."""
    return 128 - returncode if returncode < 0 else returncode


def kill_process_group(leader: int) -> None:
    """Kills what a container's first process left behind, as the end of a container's pid namespace would."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def remember(folder: Path, name: str, pid: int) -> None:
    """Records the process's identity on disk, for a later agent."""
    if identity := ProcessIdentity.of(pid):
        (folder / f"{name}.process").write_text(json.dumps(asdict(identity)))


def forget(folder: Path, name: str) -> None:
    (folder / f"{name}.process").unlink(missing_ok=True)


def was_oom_killed(folder: Path, name: str) -> bool:
    """Whether the container ended by an out-of-memory kill: a file says so, as no cgroup limits a container here."""
    return (folder / f"{name}.oom").exists()


def clear_volumes(folder: Path) -> None:
    """Deletes a pod's volumes with the pod; its logs stay for inspection."""
    for name in POD_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def clean_up_old_pods(pods: Path) -> None:
    """Deletes volumes of an earlier agent's pods, none of which runs now, and the oldest pods' logs."""
    folders = sorted(pods.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders:
        clear_volumes(folder)
    for folder in folders[KEPT_PODS:]:
        shutil.rmtree(folder, ignore_errors=True)


def kill_orphaned_processes(pods: Path) -> int:
    """Kills the processes that an earlier agent started and could not end; returns their number."""
    files = list(pods.glob("*/*.process"))
    found = [ProcessIdentity(**json.loads(file.read_text())) for file in files]
    alive = [identity for identity in found if identity.lives()]
    end(alive, grace=0)
    for file in files:
        file.unlink()
    return len(alive)
