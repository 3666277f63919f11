"""Ctrl-C at any moment of every command: exit code 130, no traceback, nothing half written."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.bad_input.rows import ROWS, CommandRow
from tests.unit.cli.bad_input.runs import FINETUNE, in_a_cluster, run
from tests.unit.cli.exported import FILES
from tests.unit.cli.stand_in import StandIn


@in_a_cluster
def test_ctrl_c_while_the_server_is_silent(row: CommandRow, folder: Path, server: StandIn) -> None:
    server.interrupts = True
    done = run(row.arguments(folder, server.kubeconfig))
    assert done.code == 130, done
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


#: Interrupts the process at a call of a function of the product.
AT_CALL = """
import os, signal, sys
left = int(os.environ["INTERRUPT_AT"])
def profile(frame, event, _argument):
    global left
    if event == "call" and "finetune_operator" in frame.f_code.co_filename:
        left -= 1
        if not left:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)
sys.setprofile(profile)
"""
#: Numbers of calls after which a command is interrupted. The longest commands make some thousands.
CALLS = (20, 700, 2000)
#: The rows of commands that write a file, read a cluster, or read a run folder; the last one of each command.
INTERRUPTED = [
    each for each in ROWS if each.command in ("init", "plan", "download", "list", "costs", "report")
]
LAST = list({each.command: each for each in INTERRUPTED}.values())
OTHERS = [pytest.param(each, marks=pytest.mark.thorough) for each in INTERRUPTED if each not in LAST]


@pytest.mark.parametrize("row", [*LAST, *OTHERS], ids=str)
def test_ctrl_c_at_any_moment(row: CommandRow, folder: Path, server: StandIn, tmp_path: Path) -> None:
    arguments = row.arguments(folder, server.kubeconfig)
    manifest, target = folder / "job.yaml", folder / "to"
    if row.command == "init":
        arguments += ["--output", str(manifest)]
    program = tmp_path / "program"
    program.mkdir()
    (program / "sitecustomize.py").write_text(AT_CALL)
    before, codes = {path.name for path in folder.iterdir()}, []
    for calls in CALLS:
        manifest.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        done = subprocess.run(
            [FINETUNE, *arguments],
            env=os.environ | {"PYTHONPATH": str(program), "INTERRUPT_AT": str(calls)},
            capture_output=True,
            text=True,
            check=False,
        )
        codes.append(done.returncode)
        assert "Traceback" not in done.stderr, (calls, done)
        # Nothing half written: no file or the whole one, and no temporary one.
        assert {path.name for path in folder.iterdir()} <= before | {manifest.name, target.name}
        if manifest.exists():
            assert yaml.safe_load(manifest.read_text())["kind"] == "FineTuneJob"
        if (target / "manifest.json").exists():
            assert {path.name for path in target.iterdir()} == {name.split("/")[0] for name in FILES} | {
                "manifest.json"
            }
    # The later moments may come after the end of the command.
    assert codes[0] in (130, -signal.SIGINT), codes
    assert set(codes) <= {130, -signal.SIGINT, row.code}, codes


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
        "finetune_operator.cli.connect.options",
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
