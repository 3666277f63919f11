"""Starting a container's process: as a program of its own, or forked from the warm server."""

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

#: Folders of a pod's own that hold data of its processes.
POD_FOLDERS = ("volumes", "home", "tmp")
#: Logs of this many past pods outlive a restart of the agent.
KEPT_PODS = 200


class StartError(Exception):
    """The program can't be started at all; the message is what a container runtime would say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start: a program with its whole environment; output of both kinds goes to the end of ``log``."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    image: str


class Process(Protocol):
    """A started container process, leader of a process group of its own."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """The exit code, 128 + n after signal n."""

    def signal(self, number: int) -> None:
        """To the leader alone, as a kubelet signals a container's first process. Nothing happens when it is gone."""


class ColdProcess:
    """A program started by the agent itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, launch: Launch) -> "ColdProcess":
        """Raises StartError."""
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
    """Python's -n for signal n as 128 + n, which is what pod statuses show."""
    return 128 - returncode if returncode < 0 else returncode


def kill_process_group(leader: int) -> None:
    """Kills what a container's first process left behind, as the end of a container's pid namespace would."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def remember(folder: Path, name: str, pid: int) -> None:
    """Keeps the process's identity on disk, for an agent that comes after this one."""
    if identity := ProcessIdentity.of(pid):
        (folder / f"{name}.process").write_text(json.dumps(asdict(identity)))


def forget(folder: Path, name: str) -> None:
    (folder / f"{name}.process").unlink(missing_ok=True)


def simulate_oom_kill(folder: Path, name: str) -> None:
    """Plays the kernel that ends a container for the memory it used: no cgroup limits it here. It is killed, and a file
    in the pod's folder says why, as the cgroup's ``memory.events`` does."""
    (folder / f"{name}.oom").touch()
    ProcessIdentity(**json.loads((folder / f"{name}.process").read_text())).signal_group(signal.SIGKILL)


def was_oom_killed(folder: Path, name: str) -> bool:
    """Whether that is how the container ended."""
    return (folder / f"{name}.oom").exists()


def clear_volumes(folder: Path) -> None:
    """A pod's volumes go with it; its logs stay for a person who wonders."""
    for name in POD_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def clean_up_old_pods(pods: Path) -> None:
    """Volumes of pods that an earlier agent had, none of which runs now, and the oldest pods' logs."""
    folders = sorted(pods.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders:
        clear_volumes(folder)
    for folder in folders[KEPT_PODS:]:
        shutil.rmtree(folder, ignore_errors=True)


def kill_orphaned_processes(pods: Path) -> int:
    """Ends the processes that an earlier agent started and could not end; their number."""
    files = list(pods.glob("*/*.process"))
    found = [ProcessIdentity(**json.loads(file.read_text())) for file in files]
    alive = [identity for identity in found if identity.lives()]
    end(alive, grace=0)
    for file in files:
        file.unlink()
    return len(alive)
