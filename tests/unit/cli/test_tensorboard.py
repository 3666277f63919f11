"""``finetune tensorboard``: what TensorBoard gets to read, how it is started and ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from finetune_contract import RunFolder
from finetune_operator.artifacts.port import NAMES_LIMIT, RECORD_LIMIT, StorageUnavailable
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cli.commands import app
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results import tensorboard
from finetune_operator.cli.results.run_folder import JobRun
from finetune_operator.cli.results.tensorboard import EventFiles, show_tensorboard
from tests.unit.cli.exported import contents
from tests.unit.cli.test_run_folder import job

FINETUNE = Path(sys.executable).with_name("finetune")
EVENTS = "events.out.tfevents.1764000000.host"

#: A TensorBoard that reports what it was given, and waits to be ended.
FAKE = """#!{python}
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--logdir") + 1])
files = {{str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}}
print(json.dumps({{"arguments": sys.argv[3:], "files": files, "folder": str(folder)}}), flush=True)
if "{wait}":
    time.sleep(600)
sys.exit({code})
"""


class Files:
    """The files of this machine, with calls that fail on request."""

    def __init__(self) -> None:
        self.parts: list[int] = []
        self.called = asyncio.Event()
        """A part was read."""
        self.fails = False
        self.names: Sequence[str] = ()
        self._files = SharedStore()

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        raise NotImplementedError

    async def read_part(self, uri: str, *, start: int, size: int) -> bytes | None:
        self.parts.append(start)
        self.called.set()
        return await self._files.read_part(uri, start=start, size=size)

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        if self.fails:
            raise StorageUnavailable(uri, "no response")
        return await self._files.list(uri, limit=limit)

    async def write(self, uri: str, content: bytes) -> None:
        raise NotImplementedError


def run_at(folder: Path, **files: str) -> JobRun:
    """A run folder with these files of TensorBoard, or with one event file."""
    logs = folder / "train" / "tensorboard"
    logs.mkdir(parents=True)
    for name, content in (files or {EVENTS: folder.name}).items():
        (logs / name).write_text(content)
    return JobRun(name=folder.name, folder=RunFolder(f"file://{folder}"))


def is_gone(folder: str) -> bool:
    return not Path(folder).exists()


def fake(folder: Path, *, wait: bool = True, code: int = 0) -> Path:
    """Installs a TensorBoard in a folder."""
    folder.mkdir()
    program = folder / "tensorboard"
    program.write_text(FAKE.format(python=sys.executable, wait="yes" if wait else "", code=code))
    program.chmod(0o755)
    return program


async def test_only_event_files_are_copied_and_only_what_was_added(tmp_path: Path) -> None:
    run = run_at(tmp_path / "a", **{EVENTS: "12345", "projector_config.pbtxt": "evil", "x.tfevents~1": "no"})
    store = Files()
    source = EventFiles(run, tmp_path / "out", store)
    assert await source.update() == 1
    assert contents(tmp_path / "out") == {EVENTS: b"12345"}
    with (tmp_path / "a/train/tensorboard" / EVENTS).open("a") as stream:
        stream.write("678")
    (tmp_path / "a/train/tensorboard/sub").mkdir()
    (tmp_path / "a/train/tensorboard/sub" / EVENTS).write_text("x")
    assert await source.update() == 2
    assert contents(tmp_path / "out") == {EVENTS: b"12345678", f"sub/{EVENTS}": b"x"}
    assert store.parts == [0, 5, 0]


async def test_event_files_longer_than_a_part_are_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "_PART", 4)
    run = run_at(tmp_path / "a", **{EVENTS: "0123456789"})
    await EventFiles(run, tmp_path / "out", Files()).update()
    assert contents(tmp_path / "out") == {EVENTS: b"0123456789"}


async def test_event_files_are_bounded_in_size_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "_BYTES", 15)
    run = run_at(tmp_path / "a", **{EVENTS: "0123456789", f"{EVENTS}.1": "0123456789"})
    with pytest.raises(CliError, match="The event files of a have more than 15 B"):
        await EventFiles(run, tmp_path / "out", Files()).update()
    monkeypatch.setattr(tensorboard, "_FILES", 1)
    with pytest.raises(CliError, match="holds more than 1 files"):
        await EventFiles(run, tmp_path / "out2", Files()).update()


async def test_a_name_that_is_a_file_and_a_folder_is_an_error(tmp_path: Path) -> None:
    class Bucket(Files):
        async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
            return self.names

        async def read_part(self, uri: str, *, start: int, size: int) -> bytes | None:
            return b"x"

    for number, names in enumerate(
        (["a.tfevents", "a.tfevents/b.tfevents"], ["c.tfevents/d.tfevents", "c.tfevents"])
    ):
        bucket = Bucket()
        bucket.names = names
        source = EventFiles(run_at(tmp_path / f"run{number}"), tmp_path / f"out{number}", bucket)
        with pytest.raises(CliError, match=f"holds {names[1]}, of which a part is a file and a folder"):
            await source.update()


def test_no_module_of_the_caller_s_folder_is_executed(tmp_path: Path) -> None:
    packages, here, executed = tmp_path / "packages", tmp_path / "here", tmp_path / "executed"
    (packages / "tensorboard").mkdir(parents=True)
    (packages / "tensorboard" / "__init__.py").touch()
    report = "import numpy, os, sys; print('started', os.getcwd() == sys.argv[2])"
    (packages / "tensorboard" / "main.py").write_text(report)
    (packages / "numpy.py").touch()
    (here / "tensorboard").mkdir(parents=True)
    for name in ("tensorboard/__init__", "tensorboard/main", "numpy", "json"):
        (here / f"{name}.py").write_text(f"open({str(executed)!r}, 'w')")
    run_at(tmp_path / "a-0badcafe")
    done = subprocess.run(
        [FINETUNE, "tensorboard", "--run", f"file://{tmp_path}/a-0badcafe"],
        cwd=here,
        env={"PATH": str(tmp_path / "nothing"), "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "started True\n", "")
    assert not executed.exists()


async def shown(
    runs: Sequence[JobRun], program: Path, store: Files, write: Callable[[str], None] = print
) -> None:
    await show_tensorboard(runs, [str(program)], ["--port=1"], store, write)


async def test_several_jobs_are_several_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "copies").mkdir()
    runs = [run_at(tmp_path / "a"), run_at(tmp_path / "b"), run_at(tmp_path / "copies" / "a")]
    await shown(runs, fake(tmp_path / "bin", wait=False), Files())
    given: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert given["files"] == {f"a/{EVENTS}": "a", f"b/{EVENTS}": "b", f"a.2/{EVENTS}": "a"}
    assert given["arguments"] == ["--port=1"]
    assert is_gone(given["folder"])


async def test_a_failure_of_tensorboard_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="TensorBoard ended with exit code 3"):
        await shown([run_at(tmp_path / "a")], fake(tmp_path / "bin", wait=False, code=3), Files())
    with pytest.raises(CliError, match="does not start: No such file"):
        await shown([run_at(tmp_path / "b")], tmp_path / "none", Files())


async def test_a_job_without_metrics_is_named(tmp_path: Path) -> None:
    empty = JobRun(name="quickstart", folder=RunFolder(f"file://{tmp_path}/none"), job=job("queued"))
    with pytest.raises(CliError, match="quickstart has recorded no training metrics") as caught:
        await shown([empty], tmp_path / "none", Files())
    assert "It is Queued" in caught.value.fix


async def test_a_store_that_goes_away_is_reported_once_and_the_copies_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "_PACE", 0)
    run, store = run_at(tmp_path / "a"), Files()
    lines: list[str] = []
    reported = asyncio.Event()

    def write(line: str) -> None:
        lines.append(line)
        reported.set()

    showing = asyncio.create_task(shown([run], fake(tmp_path / "bin"), store, write))
    await store.called.wait()
    store.fails = True
    await reported.wait()
    store.fails = False
    store.called.clear()
    await store.called.wait()
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    assert len(lines) == 1
    assert "The metrics are not up to date: The store does not respond" in lines[0]


def test_ctrl_c_ends_tensorboard_and_deletes_the_copies(tmp_path: Path) -> None:
    run_at(tmp_path / "a-0badcafe")
    program = fake(tmp_path / "bin")
    uri = f"file://{tmp_path}/a-0badcafe"
    # In a group of its own, so that the signal reaches the command alone and it must end TensorBoard itself.
    with subprocess.Popen(
        [FINETUNE, "tensorboard", "--run", uri, "--port", "7", "--host", "::1"],
        env={"PATH": f"{program.parent}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        given = json.loads(process.stdout.readline())
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert given["arguments"] == ["--port=7", "--host=::1"]
    assert (process.returncode, errors) == (130, "")
    assert is_gone(given["folder"])


def test_without_tensorboard_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    done = CliRunner().invoke(app, ["tensorboard", "--run", "gs://a/b"])
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "Error: TensorBoard is not installed.",
        "Fix:   `pip install tensorboard`, and run the command again.",
    ]


def test_without_a_job_the_arguments_are_refused() -> None:
    assert CliRunner().invoke(app, ["tensorboard"]).exit_code == 2
