import io
import json
import logging
from collections.abc import Iterator

import pytest

from finetune_operator.reconcile.keys import JobKey, PlanKey, ProfileKey
from finetune_operator.runtime.logs import configure, current_key, redacted

# An invented value in the form of a token.
JWT = ".".join(("eyJhbGciOiJSUzI1NiJ9", "eyJzdWIiOiJ4In0", "c2lnbmF0dXJl"))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"Authorization: Bearer {JWT}", "Authorization: Bearer [redacted]"),
        (f"token={JWT} rest", "token=[redacted] rest"),
        ("hf_" + "abcdefghij" + " was refused", "[redacted] was refused"),
        ("https://user:hunter2@host/x", "https://user:[redacted]@host/x"),
        ("ya29." + "A0ARrdaM-x", "[redacted]"),
        ("gs://bucket/model: 403", "gs://bucket/model: 403"),
        ("https://127.0.0.1:6443/apis", "https://127.0.0.1:6443/apis"),
    ],
)
def test_credentials_never_reach_a_log(text: str, clean: str) -> None:
    assert redacted(text) == clean


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    made = io.StringIO()
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)


LABELS = "logging.googleapis.com/labels"


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        (JobKey("team", "demo"), {"namespace": "team", "job": "demo"}),
        (PlanKey("team", "demo", "uid"), {"namespace": "team", "job": "demo"}),
        (ProfileKey("team"), None),
        (None, None),
    ],
)
def test_a_line_is_an_entry_of_cloud_logging_that_names_the_job(
    stream: io.StringIO, key: object, labels: object
) -> None:
    configure("info", "json", stream)
    token = current_key.set(key)
    logging.getLogger("finetune_operator.x").warning("wait for %s", "demo-prep-1")
    current_key.reset(token)
    line = json.loads(stream.getvalue())
    assert line["message"] == "wait for demo-prep-1"
    assert line["severity"] == "WARNING"
    assert line.get("key") == (str(key) if key else None)
    assert line.get(LABELS) == labels


def test_labels_name_stage_and_attempt_where_the_line_is_about_one(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    logging.getLogger("finetune_operator.x").info("created", extra={"stage": "Train", "attempt": 2})
    assert json.loads(stream.getvalue())[LABELS] == {"stage": "Train", "attempt": "2"}


def test_severities_are_those_of_cloud_logging(stream: io.StringIO) -> None:
    configure("debug", "json", stream)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logging.getLogger("finetune_operator.x").log(level, "line")
    severities = [json.loads(line)["severity"] for line in stream.getvalue().splitlines()]
    assert severities == ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def test_logs_go_to_stdout(capsys: pytest.CaptureFixture[str], stream: io.StringIO) -> None:
    configure("info", "json")
    logging.getLogger("finetune_operator.x").info("here")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["message"] == "here"
    assert captured.err == ""


def test_a_traceback_stays_in_its_line_and_is_redacted(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    try:
        raise ValueError(f"Bearer {JWT}")
    except ValueError:
        logging.getLogger("finetune_operator.x").exception("broken")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: Bearer [redacted]" in json.loads(line)["message"]


def test_libraries_speak_from_warnings_on(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("trouble")
    assert "chatter" not in stream.getvalue()
    assert "trouble" in stream.getvalue()
