"""Months are those of UTC, wherever a moment was written."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.ledger.month import Month


@pytest.mark.parametrize(
    ("moment", "month"),
    [
        (datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC), "2026-11"),
        (datetime(2026, 12, 1, tzinfo=UTC), "2026-12"),
        (datetime(2026, 12, 1, 0, 30, tzinfo=timezone(timedelta(hours=1))), "2026-11"),
        (datetime(2026, 11, 30, 23, tzinfo=timezone(timedelta(hours=-8))), "2026-12"),
        (date(2027, 1, 1), "2027-01"),
    ],
)
def test_a_moment_is_in_the_month_of_utc(moment: date, month: str) -> None:
    assert str(Month.of(moment)) == month


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_months_follow_each_other_without_gap(moment: datetime) -> None:
    month = Month.of(moment)
    assert month.begin <= moment < month.end
    assert Month.of(month.end) > month
    assert Month.of(month.end - timedelta(microseconds=1)) == month
    assert Month.of(month.end).previous == month
    assert Month.of(month.first) == month
