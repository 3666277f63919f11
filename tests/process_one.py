"""A child process that gets SIGTERM as process 1 of a container does: only where it has a handler."""

import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


def terminated(command: Sequence[str], *, seconds: float = 10) -> int:
    """Starts the command, sends SIGTERM as soon as it has a handler for it, and returns its exit code.

    A command that ends without ever having one returns its own code.
    """
    with subprocess.Popen(
        ["env", "--ignore-signal=TERM", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            if _handles_sigterm(process.pid):
                process.send_signal(signal.SIGTERM)
                break
            time.sleep(0.002)
        try:
            return process.wait(timeout=seconds)
        finally:
            process.kill()


def _handles_sigterm(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found.group(1), 16) & _SIGTERM_BIT)
