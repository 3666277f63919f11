"""Ctrl-C at any moment of every command: exit code 130, no traceback, nothing half written."""

import copy
import os
import shutil
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


@every
def test_ctrl_c_at_any_moment(row: CommandRow, folder: Path, server: StandIn) -> None:
    arguments = row.arguments(folder, server.kubeconfig)
    manifest, target, objects = folder / "job.yaml", folder / "to", copy.deepcopy(server.api.objects)
    if row.command == "init":
        arguments += ["--output", str(manifest)]

    def profiled_anew(profile: Interrupted) -> Done:
        manifest.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        server.api.objects = copy.deepcopy(objects)
        return profiled(profile, arguments)

    profiled_anew(Interrupted(0))  # Imports what the command needs.
    count = Interrupted(0)
    assert profiled_anew(count).code == row.code
    whole = manifest.read_text() if manifest.exists() else ""
    files = {path.name for path in folder.iterdir()}
    for moment in range(MOMENTS):
        done = profiled_anew(Interrupted(1 + count.calls * moment // MOMENTS))
        assert (done.code, "Traceback" in done.stderr) == (130, False), (moment, done)
        # Nothing half written: no file or the whole one, and no temporary one.
        assert {path.name for path in folder.iterdir()} <= files
        if manifest.exists():
            assert manifest.read_text() == whole
        if (target / "manifest.json").exists():
            assert {path.name for path in target.iterdir()} == {name.split("/")[0] for name in FILES} | {
                "manifest.json"
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
