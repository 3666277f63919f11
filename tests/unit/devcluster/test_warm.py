"""A stage forked from the warm server is like a fresh process."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devcluster.agent.process import Launch
from devcluster.agent.warm import WarmServer

TRAINER = """
import os, signal, sys, json, time, tempfile
READY = 0
def preload():
    global READY
    READY = os.getpid()
    tempfile.gettempdir()
def run():
    mode = sys.argv[1] if len(sys.argv) > 1 else "show"
    if mode == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        print("waiting", flush=True)
        while True:
            time.sleep(0.02)
    if mode == "die":
        raise RuntimeError("out of luck")
    if mode == "sleep":
        print("sleeping", flush=True)
        time.sleep(600)
    print(json.dumps({
        "forked": READY != os.getpid() and READY == os.getppid(),
        "leader": os.getpgid(0) == os.getpid() == os.getsid(0),
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "temporary": tempfile.gettempdir(),
        "terminable": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "children": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        "interrupt": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
        "input": sys.stdin.read(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }))
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WarmServer]:
    package = tmp_path / "site" / "finetune_trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "commands").mkdir()
    (package / "commands" / "main.py").write_text(TRAINER)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site"), "SECRET": "server"}
    warm = WarmServer(image="trainer:1", environment=environment, log=tmp_path / "server.log")
    running = asyncio.create_task(warm.run(programs))
    await warm.ready.wait()
    yield warm
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def launch(folder: Path, *arguments: str, image: str = "trainer:1", **environment: str) -> Launch:
    (folder / "tmp").mkdir(exist_ok=True)
    return Launch(
        argv=["finetune-stage", *arguments],
        env={
            "PATH": "/usr/bin",
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": str(folder / "site"),
            **environment,
        },
        cwd=folder,
        log=folder / "stage.log",
        image=image,
    )


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ended(pid: int) -> None:
    """Returns when no such process runs."""
    while running(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def logged(folder: Path, word: str) -> None:
    """Returns when the stage has written ``word``."""
    while not (folder / "stage.log").exists() or word not in (folder / "stage.log").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_fork_looks_like_a_fresh_process(server: WarmServer, tmp_path: Path) -> None:
    wanted = launch(tmp_path, GREETING="hello")
    process = await server.start(wanted)
    assert await process.wait() == 0
    shown = json.loads((tmp_path / "stage.log").read_text())
    assert shown.pop("environment") == dict(wanted.env)
    # standard input, output, error, and the folder being listed
    assert shown.pop("descriptors") == 4
    assert shown == {
        "forked": True,
        "leader": True,
        "cwd": str(tmp_path),
        "temporary": str(tmp_path / "tmp"),
        "terminable": True,
        "children": True,
        "interrupt": True,
        "input": "",
    }


async def test_a_fork_hears_signals_and_its_code_is_reported(server: WarmServer, tmp_path: Path) -> None:
    process = await server.start(launch(tmp_path, "wait"))
    await logged(tmp_path, "waiting")
    process.signal(signal.SIGTERM)
    assert await process.wait() == 75


async def test_a_killed_fork_ends_with_128_plus_the_signal(server: WarmServer, tmp_path: Path) -> None:
    process = await server.start(launch(tmp_path, "sleep"))
    process.signal(signal.SIGKILL)
    assert await process.wait() == 137


async def test_an_error_of_the_program_is_its_own(server: WarmServer, tmp_path: Path) -> None:
    process = await server.start(launch(tmp_path, "die"))
    assert await process.wait() == 1
    assert "RuntimeError: out of luck" in (tmp_path / "stage.log").read_text()
    assert await (await server.start(launch(tmp_path))).wait() == 0


async def test_forks_end_with_their_server(server: WarmServer, tmp_path: Path) -> None:
    process = await server.start(launch(tmp_path, "sleep"))
    await logged(tmp_path, "sleeping")
    os.kill(parent_of(process.pid), signal.SIGKILL)
    assert await process.wait() == 137
    await ended(process.pid)
    assert server.fits(launch(tmp_path)) == "the warm server is not ready"


async def test_only_what_a_fork_can_stand_in_for_is_forked(server: WarmServer, tmp_path: Path) -> None:
    assert server.fits(launch(tmp_path)) is None
    assert server.fits(launch(tmp_path, HF_TOKEN="t", JAX_PLATFORMS="cpu")) is None
    assert server.fits(launch(tmp_path, HF_HOME="/other")) == "its HF_HOME differs from the warm server's"
    assert server.fits(launch(tmp_path, image="other:1")) == "another program"
