"""What a stage's own code and libraries write to its log."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetune_contract.log_line import readable
from finetune_trainer.process.logs import LogLineFormatter, OnceEach
from finetune_trainer.process.redaction import Redactor
from tests.trainer.requests import request

SECRET = 'hf_"quoted"\\secret'
LABELS = {"namespace": "team-a", "job": "demo", "stage": "Train", "attempt": "2"}


def test_a_library_s_warning_is_logged_once_for_each_text() -> None:
    passed = OnceEach()

    def said(message: str, *arguments: object) -> bool:
        return passed.filter(logging.LogRecord("gcsfs", logging.WARNING, "", 1, message, arguments, None))

    assert [said("kind of %s?", "a"), said("kind of %s?", "a"), said("kind of %s?", "b")] == [
        True,
        False,
        True,
    ]
    assert [said("kind of %s?", number) for number in range(2000)] == [True] * 2000


def formatted(message: str, **fields: object) -> str:
    form = LogLineFormatter(Redactor({"HF_TOKEN": SECRET}), LABELS)
    record = logging.makeLogRecord({"name": "absl", "levelno": 30, "levelname": "WARNING", "created": 0.5})
    record.__dict__ |= {"msg": message, **fields}
    return form.format(record)


def test_a_record_is_one_line_that_cloud_logging_reads_and_people_read_as_text() -> None:
    line = formatted("a lone \ud800 surrogate\nand a second line")
    assert "\n" not in line
    assert json.loads(line) == {
        "severity": "WARNING",
        "time": "1970-01-01T00:00:00.500+00:00",
        "logger": "absl",
        "message": "a lone \\ud800 surrogate\nand a second line",
        "logging.googleapis.com/labels": LABELS,
    }
    assert readable(line).startswith("1970-01-01 00:00:00,500 W absl: a lone")


def test_a_secret_is_redacted_before_it_is_escaped() -> None:
    try:
        raise ValueError(SECRET)
    except ValueError:
        line = formatted(f"token {SECRET}", exc_info=sys.exc_info())
    message = json.loads(line)["message"]
    assert message.startswith("token [redacted]\nTraceback")
    assert message.endswith("ValueError: [redacted]")


#: Runs in a process of its own, since it replaces the process's streams.
PROGRAM = """
import logging, os, sys
from pathlib import Path
from finetune_contract import StageRequest
from finetune_trainer.process import logs
from finetune_trainer.stages.attempt import LogTail
from finetune_trainer.process.redaction import Redactor
redact = Redactor(os.environ)
tail = LogTail(redact)
for stream in (sys.stdout, sys.stderr):
    tail.follow(stream)
logs.configure(StageRequest.model_validate_json(Path(sys.argv[1]).read_text()), os.environ, redact)
logging.getLogger("jax").warning("slow\\nvery")
os.write(2, b"native\\n")
print("printed")
tail.settle()
Path(sys.argv[2]).write_text(tail.text())
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_kept_log_is_text_in_either_form(tmp_path: Path, form: str) -> None:
    (tmp_path / "request").write_text(request(tmp_path, "Preflight").to_json())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "request"), str(tmp_path / "kept")],
        env={**os.environ, "FINETUNE_LOG_FORMAT": form},
        capture_output=True,
        text=True,
        check=True,
    )
    kept = (tmp_path / "kept").read_text().splitlines()
    assert sorted(line.partition("W jax: ")[2] or line for line in kept)[-4:] == [
        "native",
        "printed",
        "slow",
        "very",
    ]
    assert "native" in done.stderr.splitlines()
    assert "printed" in done.stdout.splitlines()
    entries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["severity"] for each in entries] == (["INFO", "WARNING"] if form == "json" else [])
    for each in entries:
        assert each["logging.googleapis.com/labels"]["stage"] == "Preflight"
    assert ("W jax: slow" in done.stderr) is (form == "text")
