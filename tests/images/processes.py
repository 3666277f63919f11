"""Processes of containers as the node sees them."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def first_processes(program: str, text: str) -> list[int]:
    """Pids of the processes 1 of containers that run ``program`` with ``text`` in their environment."""
    return [pid for pid in _contained() if _runs(pid, program, text)]


def first_process(
    program: str, text: str, *, without: frozenset[int] = frozenset(), seconds: float = 120
) -> int:
    """The first of ``first_processes`` that is not in ``without``, as soon as there is one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in first_processes(program, text):
            if pid not in without:
                return pid
        time.sleep(0.01)
    raise AssertionError(f"no container runs {program} with {text} in its environment")


def until_gone(pid: int, *, seconds: float) -> float:
    """Seconds until the process has ended. Raises AssertionError if it has not after ``seconds``."""
    started = time.monotonic()
    while Path(f"/proc/{pid}").exists():
        passed = time.monotonic() - started
        assert passed < seconds, f"process {pid} still runs {seconds} s after the signal"
        time.sleep(0.01)
    return time.monotonic() - started


def cpu_seconds(pid: int) -> float:
    """CPU that the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _contained() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _inner_pids(folder)[1:] == ["1"]:
            yield int(folder.name)


def _inner_pids(folder: Path) -> list[str]:
    """The process's pid in each of its nested pid namespaces, outermost first."""
    try:
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])


def _runs(pid: int, program: str, text: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return program.encode() in command and text.encode() in environment
