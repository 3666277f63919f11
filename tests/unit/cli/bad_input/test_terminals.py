"""Every command on a narrow terminal, into a closed pipe and a full disk; texts that would change a terminal."""

import io
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import Sample, Stage
from finetune_operator.cli.documents import read_documents
from tests.unit.cli.bad_input.rows import DONE, FAILED, ROWS, RUNNING, CommandRow
from tests.unit.cli.bad_input.runs import (
    COMMANDS,
    ESCAPE,
    FINETUNE,
    JOBS,
    PHASES,
    every,
    in_a_cluster,
    job,
    run,
)
from tests.unit.cli.stand_in import StandIn


@every
def test_a_terminal_of_forty_columns(
    row: CommandRow, folder: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = run(row.arguments(folder, server.kubeconfig))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    server.put("finetunejobs", job(RUNNING, folder))
    server.put("finetunejobs", job(FAILED, folder))
    narrow = run(row.arguments(folder, server.kubeconfig))
    assert narrow.code == wide.code == row.code, narrow
    # These show more on a terminal, or the time, or versions of objects.
    if row.command not in {"watch", "compare", "download", "costs", "report"} and "json" not in row.words:
        # Several jobs are watched at the same time, in any order.
        assert sorted(words_of(narrow.stdout)) == sorted(words_of(wide.stdout))


def words_of(text: str) -> list[str]:
    """The words of an output, whatever their color, without times that pass."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [word for word in plain.split() if not word.isdecimal()]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_on_a_terminal_of_forty_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = run([command, "--help"])
    assert done.code == 0
    assert done.stdout
    assert done.stderr == ""


@every
def test_a_pipe_that_closes_is_no_error(row: CommandRow, folder: Path, server: StandIn) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stdout = io.TextIOWrapper(io.FileIO(writer, "w"), "utf-8", write_through=True)
    done = run(row.arguments(folder, server.kubeconfig), stdout)
    stdout.detach().close()
    if row.command == "tensorboard":  # It prints nothing itself.
        return
    assert (done.code, "Traceback" in done.stderr, "Error" in done.stderr) == (1, False, False), done


@pytest.mark.parametrize("words", [("explain",), ("--help",)], ids=str)
def test_a_disk_that_is_full_is_an_error(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([FINETUNE, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


def test_a_pipe_whose_reader_has_gone_is_no_error_of_the_program() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [FINETUNE, "explain"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_symbols_that_a_terminal_does_not_know_are_replaced() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [FINETUNE, "plan", *ROWS[2].words[1:]], env=environment, capture_output=True, check=True
    )
    assert b"Traceback" not in done.stderr


def test_a_sample_has_no_control_characters(folder: Path, server: StandIn) -> None:
    hostile = Sample(prompt=ESCAPE, baseline=ESCAPE, tuned=ESCAPE, reference=None)
    (folder / DONE / "evaluate" / "samples.jsonl").write_text(hostile.to_json())
    done = run(["try", DONE, "hello", "--kubeconfig", str(server.kubeconfig)])
    assert "red" in done.stdout
    assert "\x1b" not in done.stdout


#: Commands to a terminal in 7 and 8 bits, the direction of text, a line that would overwrite another, a second line.
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u2066\x7f\r\x08\nred"
#: Members of a status that commands compare, or that lead to the run folder; schemas allow no other text there.
FIXED = {"phase", "stage", "jobSet", "runFolder", "uri", "digest", "status", "startTime", "completionTime"}


def hostile(value: Any, key: str = "") -> Any:
    """A status with HOSTILE in every text that a tenant or a program of a tenant may write, and in metrics' names."""
    if isinstance(value, dict):
        names = key in {"result", "baseline"}
        return {f"{name}{HOSTILE}" if names else name: hostile(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, key) for each in value]
    fixed = key in FIXED or not isinstance(value, str) or value in [*Stage, "Valid", "loss"]
    return value if fixed or re.fullmatch(r"[-0-9.:TZ]+(Mi)?", value) else f"{value}{HOSTILE}"


def harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


@in_a_cluster
def test_texts_of_a_status_do_not_change_the_terminal(row: CommandRow, folder: Path, server: StandIn) -> None:
    for name in PHASES:
        loaded = job(name, folder)
        server.put("finetunejobs", loaded | {"status": hostile(loaded["status"])})
    for log in (folder / DONE / "attempts").glob("*/log-tail.txt"):
        log.write_text(HOSTILE)
    done = run(row.arguments(folder, server.kubeconfig))
    assert harmless(done.stdout), done
    assert harmless(done.stderr), done


@pytest.mark.parametrize("words", [("status",), ("list", "-o", "wide"), ("resume",), ("suspend",)], ids=str)
@pytest.mark.parametrize("phase", [path.stem for path in sorted(JOBS.glob("*.yaml"))])
def test_texts_of_any_phase_do_not_change_the_terminal(
    words: tuple[str, ...], phase: str, folder: Path, server: StandIn
) -> None:
    loaded = yaml.safe_load((JOBS / f"{phase}.yaml").read_text())
    loaded["metadata"]["name"] = DONE
    server.put("finetunejobs", loaded | {"status": hostile(loaded["status"])})
    name = [] if words[0] == "list" else [DONE]
    done = run([*words, *name, "--kubeconfig", str(server.kubeconfig)])
    assert done.stdout or done.stderr
    assert harmless(done.stdout + done.stderr), done
    assert not re.search(r"^red", done.stdout + done.stderr, re.MULTILINE), "no text begins a line of its own"


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_an_object_that_is_printed_is_the_same_object(output: str, folder: Path, server: StandIn) -> None:
    loaded = job(DONE, folder)
    loaded["status"] = hostile(loaded["status"])
    server.put("finetunejobs", loaded)
    done = run(["status", DONE, "-o", output, "--kubeconfig", str(server.kubeconfig)])
    assert harmless(done.stdout)
    (document,) = read_documents(done.stdout)
    assert document.content == loaded
