"""Runs commands in the process of the test, with all that the table of commands needs: jobs, run folders, programs."""

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from finetune_contract import RunFolder
from finetune_operator.cli.commands import app
from tests.unit.cli.bad_input.rows import DONE, FAILED, OTHER, QUICKSTART, ROWS, RUNNING
from tests.unit.cli.exported import FILES, sha256, write_run
from tests.unit.cli.test_compare import written
from tests.unit.comparison.runs import rows, samples

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
JOBS = Path(__file__).parents[1] / "jobs"
#: The jobs of the rows, with the phase of each.
PHASES = {DONE: "succeeded", OTHER: "succeeded", RUNNING: "running", FAILED: "failed"}
FINETUNE = Path(sys.executable).with_name("finetune")
ESCAPE = "\x1b[2J\x1b[31mred"

every = pytest.mark.parametrize("row", ROWS, ids=str)
in_a_cluster = pytest.mark.parametrize("row", [row for row in ROWS if row.cluster], ids=str)
of_a_job = pytest.mark.parametrize("row", [row for row in ROWS if row.job], ids=str)
of_a_store = pytest.mark.parametrize("row", [row for row in ROWS if row.store], ids=str)


@dataclass(frozen=True)
class Done:
    """What a command has done."""

    code: int
    stdout: str
    stderr: str


def run(arguments: list[str], stdout: io.TextIOWrapper | None = None) -> Done:
    """Runs the program in this process. An exception that would be a traceback fails the test."""
    out, err = stdout or io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO())
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            app(arguments, prog_name="finetune")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        else:
            code = 0
    return Done(code, "" if stdout else _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


def refused(done: Done, *told: str, code: int = 1) -> None:
    """Asserts that the command failed with one error, and at most one remedy."""
    lines = done.stderr.splitlines()
    assert done.code == code, done
    assert [line.split()[0] for line in lines] in (["Error:"], ["Error:", "Fix:"]), done
    assert "Traceback" not in done.stderr
    for words in told:
        assert words in done.stderr, done


def run_folders(folder: Path) -> Path:
    """Writes the run folders of two jobs, with all records that commands read, and an empty ledger."""
    (folder / "ledger").mkdir()
    for number, name in enumerate((DONE, OTHER)):
        place = folder / name
        written(place, rows(20, seed=number), evaluation_samples=samples("yes", "no"))
        write_run(place, {"model": FILES})
        for uri in (RunFolder(f"file://{place}").log_tail(stage, 1, 0) for stage in ("train", "export")):
            file = Path(uri.removeprefix("file://"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("step 1\nstep 2\n")
        events = place / "train" / "tensorboard" / "events.out.tfevents.1764000000.host"
        events.parent.mkdir(parents=True)
        events.write_bytes(b"events")
    return folder


def job(name: str, folder: Path) -> dict[str, Any]:
    """Returns the job of that name; its run folder is in ``folder`` if it has ended."""
    phase = PHASES[name]
    loaded: dict[str, Any] = yaml.safe_load((JOBS / f"{phase}.yaml").read_text())
    quickstart: dict[str, Any] = yaml.safe_load(Path(QUICKSTART).read_text())
    loaded["metadata"]["name"] = name
    loaded["spec"] = quickstart["spec"]
    if phase == "succeeded":
        uri = f"file://{folder / name}"
        loaded["status"]["resolved"]["runFolder"] = uri
        (artifact,) = loaded["status"]["artifacts"]
        manifest = (folder / name / "export" / "model" / "manifest.json").read_bytes()
        artifact |= {"uri": f"{uri}/export/model", "digest": f"sha256:{sha256(manifest)}"}
    return loaded
