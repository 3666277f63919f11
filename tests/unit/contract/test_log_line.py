"""Lines of a trainer's log: JSON for Cloud Logging, text for people, and lines of other programs as they are."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract.log_line import log_line, readable

TIME = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)


@given(message=st.text(), logger=st.text(max_size=20))
def test_a_line_is_one_json_object_and_readable_again(message: str, logger: str) -> None:
    line = log_line(severity="ERROR", time=TIME, logger=logger, message=message, labels={"job": "demo"})
    assert "\n" not in line
    assert json.loads(line)["message"] == message
    assert readable(line) == f"2026-11-21 12:00:00,250 E {logger}: {message}"


@pytest.mark.parametrize(
    "line",
    [
        "plain",
        "",
        '{"severity": "ERROR", "message": "of another program"}',
        '{"severity": "ERROR", "time": "yesterday", "logger": "x", "message": "m"}',
        '{"severity": "ERROR", "time": 5, "logger": "x", "message": "m"}',
        '{"severity": "ERR',
        '{"severity": "", "x": ' + "[" * 100_000,
        '{"severity": "", "x": ' + "9" * 10_000 + "}",
        '{"other": 1}',
    ],
)
def test_any_other_line_stays_as_it_is(line: str) -> None:
    assert readable(line) == line


def test_a_termination_message_of_several_lines_is_readable() -> None:
    line = log_line(severity="INFO", time=TIME, logger="finetune_trainer", message="saved", labels={})
    assert readable(f"printed\n{line}\ncut {line[:20]}") == (
        f"printed\n2026-11-21 12:00:00,250 I finetune_trainer: saved\ncut {line[:20]}"
    )
