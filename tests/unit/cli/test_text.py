"""Numbers and times in words."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.cli import text
from finetune_operator.cli.printing import item_text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 05 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert text.duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(3412, "3,412"), (601088, "601,088"), (134_515_008, "135 M"), (8.03e9, "8.03 B"), (2e12, "2 T")],
)
def test_count(number: float, words: str) -> None:
    assert text.count(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB"), (2**50, "1024.0 TiB")],
)
def test_size(number: float, words: str) -> None:
    assert text.size(number) == words


@pytest.mark.parametrize(
    ("done", "total", "words"),
    [
        (0, 100, "0 of 100 B"),
        (512, 1536, "0.5 of 1.5 KiB"),
        (1.9 * 2**30, 6.2 * 2**30, "1.9 of 6.2 GiB"),
        (2**20, 2**30, "0.0 of 1.0 GiB"),
        (2**50, 2**50, "1024.0 of 1024.0 TiB"),
    ],
)
def test_a_part_of_a_size_has_the_unit_of_the_whole(done: float, total: float, words: str) -> None:
    assert text.part_of_size(done, total) == words


@given(done=st.floats(-10, 1e9), total=st.floats(0.001, 1e9))
def test_a_bar_has_one_width_whatever_the_numbers(done: float, total: float) -> None:
    assert len(text.bar(done, total)) == 24


def test_a_bar_without_a_total_is_empty() -> None:
    assert text.bar(3, 0) == ""


def test_time_runs_until_the_end_or_until_now() -> None:
    at = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert text.elapsed(None, None, at) is None
    assert text.elapsed("yesterday", None, at) is None
    assert text.elapsed("2026-01-01T00:00:00Z", None, at).total_seconds() == 60  # type: ignore[union-attr]
    assert text.elapsed("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z", at).total_seconds() == 9  # type: ignore[union-attr]


def test_a_metric_that_is_no_number_is_shown_as_it_is() -> None:
    assert text.number("NaN") == "nan"
    assert text.number("n/a") == "n/a"
    assert text.number("0.02134") == "0.021"


def test_printed_objects_have_no_managed_fields_as_those_of_kubectl() -> None:
    metadata = {"name": "c", "managedFields": [{"manager": "d"}]}
    for output in ("json", "yaml"):
        shown = item_text({"apiVersion": "a/v1", "kind": "B", "metadata": metadata}, output)
        assert "name" in shown
        assert "manage" not in shown
    assert "managedFields" in metadata
