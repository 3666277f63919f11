"""``finetune cancel`` asks at a terminal, unless given ``--yes``; Ctrl-C and the end of the input interrupt it."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.fake_api import FakeApi, serve

JOB = Path(__file__).parent / "jobs" / "running.yaml"
PROGRAM = [sys.executable, "-m", "finetune_operator.cli.main", "cancel", "quickstart", "-n", "team-a"]


@pytest.fixture
async def kubeconfig(api: FakeApi, tmp_path: Path) -> AsyncIterator[Path]:
    await api.put("finetunejobs", yaml.safe_load(JOB.read_text()))
    async with serve(api) as configuration:
        path = tmp_path / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": configuration.host}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "users": [{"name": "test", "user": {"token": "none"}}],
                }
            )
        )
        yield path


def answered(kubeconfig: Path, answer: bytes | signal.Signals, *options: str) -> tuple[int, str, str]:
    """Runs the command at a terminal of its own; returns exit code, stdout, and what the terminal shows."""
    terminal, side = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *options],
        stdin=side,
        stderr=side,
        stdout=subprocess.PIPE,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        start_new_session=True,
    ) as program:
        os.close(side)
        shown = b""
        while chunk := _read(terminal):
            shown += chunk
            if shown.endswith(b"[y/N] "):
                if isinstance(answer, signal.Signals):
                    _interrupt(program, answer)
                else:
                    os.write(terminal, answer)
        assert program.stdout is not None
        printed = program.stdout.read().decode()
    os.close(terminal)
    return program.returncode, printed, shown.decode()


def _interrupt(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Sends the signal until the program ends: one that arrives just before it waits for input may be ignored."""
    while program.poll() is None:
        program.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            program.wait(0.5)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # no process has the terminal any more
        return b""


async def run(kubeconfig: Path, answer: bytes | signal.Signals, *options: str) -> tuple[int, str, str]:
    return await asyncio.to_thread(answered, kubeconfig, answer, *options)


@pytest.mark.parametrize(
    ("answer", "code", "edits"),
    [
        (b"y\n", 0, 1),
        (b"YES\n", 0, 1),
        (b"n\n", 1, 0),
        (b"\n", 1, 0),
        (b"\x04", 130, 0),
        (signal.SIGINT, 130, 0),
    ],
    ids=["y", "yes", "no", "nothing", "end of input", "Ctrl-C"],
)
async def test_the_answer_decides(
    api: FakeApi, kubeconfig: Path, answer: bytes | signal.Signals, code: int, edits: int
) -> None:
    returned, printed, shown = await run(kubeconfig, answer)
    assert (returned, len(api.edits)) == (code, edits), shown
    assert "quickstart (Running): Train saves a checkpoint and stops, its slice is freed" in shown
    assert "Cancel the job? [y/N]" in shown
    assert ("cancelled" in printed) == bool(edits)
    assert "Traceback" not in shown


async def test_yes_asks_nothing(api: FakeApi, kubeconfig: Path) -> None:
    returned, printed, shown = await run(kubeconfig, b"", "--yes")
    assert (returned, len(api.edits), shown) == (0, 1, "")
    assert "finetunejob.tpu-finetune.dev/quickstart cancelled" in printed


async def test_a_script_is_not_asked(api: FakeApi, kubeconfig: Path) -> None:
    done = await asyncio.create_subprocess_exec(
        *PROGRAM,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
    )
    printed, errors = await done.communicate()
    assert (done.returncode, errors, len(api.edits)) == (0, b"", 1)
    assert b"cancelled" in printed
