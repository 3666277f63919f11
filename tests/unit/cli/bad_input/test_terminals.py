"""Every command on a narrow terminal, into a closed pipe and a full disk; texts that would change a terminal."""

import io
import os
import re
import subprocess
from pathlib import Path

import pytest

from finetune_contract import Sample
from tests.unit.cli.bad_input.rows import DONE, FAILED, ROWS, RUNNING, CommandRow
from tests.unit.cli.bad_input.runs import COMMANDS, ESCAPE, FINETUNE, every, job, run
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
    if row.command not in {"watch", "compare", "download", "costs"} and "json" not in row.words:
        assert words_of(narrow.stdout) == words_of(wide.stdout)


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
    stdout.detach()
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


@pytest.mark.parametrize(
    "words", [("status",), ("watch",), ("list", "-o", "wide"), ("wait",), ("logs",)], ids=str
)
def test_texts_of_a_status_do_not_change_the_terminal(
    words: tuple[str, ...], folder: Path, server: StandIn
) -> None:
    hostile = job(DONE, folder)
    status = hostile["status"]
    status["summary"] = f"{ESCAPE}\r\n"
    status["resolved"]["model"]["source"] = ESCAPE
    status["artifacts"][0]["type"] = ESCAPE
    status["stages"][1]["cache"] = {"result": "Miss", "missBecause": [ESCAPE]}
    server.put("finetunejobs", hostile)
    (folder / DONE / "attempts" / "export-1" / "log-tail.txt").write_text(f"{ESCAPE}\n")
    name = [] if words[0] == "list" else [DONE]
    done = run([*words, *name, "--kubeconfig", str(server.kubeconfig)])
    assert done.code == 0, done
    assert "red" in done.stdout
    assert "\x1b" not in done.stdout
