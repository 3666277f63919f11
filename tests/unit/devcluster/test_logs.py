"""The last lines of a log are found without reading all of it."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devcluster.agent import logs


@pytest.mark.parametrize(
    ("content", "lines", "tail"),
    [
        ("a\nb\nc\n", 1, "c\n"),
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 1, "c"),
        ("a\nb\n", 5, "a\nb\n"),
        ("a\nb\n", 0, ""),
        ("a\n\n\n", 2, "\n\n"),
        ("", 3, ""),
    ],
)
def test_tail(tmp_path: Path, content: str, lines: int, tail: str) -> None:
    file = tmp_path / "log"
    file.write_text(content)
    assert content[logs.tail_position(file, lines) :] == tail


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.text("ab", max_size=5)),
    wanted=st.integers(0, 8),
    block=st.integers(1, 7),
    ended=st.booleans(),
)
def test_tail_is_right_at_any_block_size(
    tmp_path: Path, rows: list[str], wanted: int, block: int, ended: bool
) -> None:
    content = "\n".join(rows) + ("\n" if ended and rows else "")
    file = tmp_path / "log"
    file.write_text(content)
    expected = "".join(content.splitlines(keepends=True)[-wanted:]) if wanted else ""
    assert content[logs.tail_position(file, wanted, block=block) :] == expected


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert logs.tail_position(tmp_path / "none", 3) == 0
