"""Ctrl-C at any moment of every command: exit code 130, no traceback, nothing half written."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.bad_input.rows import ROWS, CommandRow
from tests.unit.cli.bad_input.runs import FINETUNE, Done, every, in_a_cluster, run
from tests.unit.cli.exported import FILES
from tests.unit.cli.stand_in import StandIn


@in_a_cluster
def test_ctrl_c_while_the_server_is_silent(row: CommandRow, folder: Path, server: StandIn) -> None:
    server.interrupts = True
    done = run(row.arguments(folder, server.kubeconfig))
    assert done.code == 130, done
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


class Interrupted:
    """Raises KeyboardInterrupt at the call number ``at`` of a function of the product; counts them all."""

    def __init__(self, at: int) -> None:
        self.calls = 0
        self._at = at

    def __call__(self, frame: Any, event: str, _argument: object) -> None:
        if event == "call" and "finetune_operator" in frame.f_code.co_filename:
            self.calls += 1
            if self.calls == self._at:
                sys.setprofile(None)
                raise KeyboardInterrupt


#: Moments of a command at which it is interrupted.
MOMENTS = 8


@pytest.mark.parametrize("moment", range(MOMENTS))
@every
def test_ctrl_c_at_any_moment(row: CommandRow, moment: int, folder: Path, server: StandIn) -> None:
    arguments = row.arguments(folder, server.kubeconfig)
    if row.command == "init":
        arguments += ["--output", str(folder / "job.yaml"), "--force"]
    count = Interrupted(0)
    before = copy.deepcopy(server.api.objects)
    whole = profiled(count, arguments)
    assert whole.code == row.code, whole
    files = {path.name for path in folder.iterdir()}
    content = (folder / "job.yaml").read_text() if row.command == "init" else ""
    (folder / "job.yaml").unlink(missing_ok=True)
    for file in (folder / "to").rglob("manifest.json"):
        file.unlink()
    server.api.objects = before
    done = profiled(Interrupted(1 + count.calls * moment // MOMENTS), arguments)
    assert done.code == 130, done
    assert "Traceback" not in done.stderr
    # Nothing half written: no file or the whole one, and no temporary one.
    assert {path.name for path in folder.iterdir()} <= files
    if (folder / "job.yaml").exists():
        assert (folder / "job.yaml").read_text() == content
    if (folder / "to" / "manifest.json").exists():
        assert {path.name for path in (folder / "to").iterdir()} == {
            "manifest.json",
            *(n.split("/")[0] for n in FILES),
        }


def profiled(profile: Interrupted, arguments: list[str]) -> Done:
    sys.setprofile(profile)
    try:
        return run(arguments)
    finally:
        sys.setprofile(None)


#: Interrupts the process at the import of a module.
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "module",
    [
        "typer",
        "finetune_operator.cli.commands",
        "finetune_operator.cli.options",
        "pydantic",
        "finetune_operator.api",
    ],
)
def test_ctrl_c_while_modules_are_imported(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    done = subprocess.run(
        [FINETUNE, "validate", "-f", ROWS[3].words[2]],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "INTERRUPT_AT": module},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (130, -signal.SIGINT), done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
