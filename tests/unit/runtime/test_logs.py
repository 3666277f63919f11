import io
import json
import logging
from collections.abc import Iterator

import pytest

from finetune_operator.runtime.logs import configure, current_job, redacted

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


def test_a_line_is_one_json_object_that_names_the_job(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    token = current_job.set("team/demo")
    logging.getLogger("finetune_operator.x").info("created %s", "demo-prep-1")
    current_job.reset(token)
    line = json.loads(stream.getvalue())
    assert line["job"] == "team/demo"
    assert line["message"] == "created demo-prep-1"
    assert line["level"] == "info"


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
