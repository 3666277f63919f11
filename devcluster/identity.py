"""Identifies processes: a pid alone may belong to another process after a reboot or a wrap-around."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A unique process: pid, its start in clock ticks since boot, and the boot."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The process that has ``pid`` now; None if there is none, or only its zombie."""
        try:
            # the command's name may hold spaces and parentheses; fields count from the last one
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else cls(pid=pid, start=int(fields[19]), boot=_boot())

    def lives(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def signal_group(self, number: int) -> None:
        """Signals the process group that it leads, if it still lives."""
        if self.lives():
            _kill_group(self.pid, number)


def end(processes: Iterable[ProcessIdentity], *, grace: float) -> None:
    """Ends the recorded processes that still live.

    Sends SIGTERM to each process group, and SIGKILL to those that live after ``grace`` seconds.
    """
    waiting = [process for process in processes if process.lives()]
    for process in waiting:
        process.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (waiting := [process for process in waiting if process.lives()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in waiting:
        process.signal_group(signal.SIGKILL)


def _kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def memory(pid: int) -> int:
    """Resident bytes of one process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
