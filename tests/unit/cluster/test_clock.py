"""The API server's clock: reported in whole seconds, known more precisely, and independent of the machine's."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.cluster.clock import ServerClock

BEGIN = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
WRONG = BEGIN + timedelta(days=400)


def date(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


def test_until_the_server_has_spoken_the_machine_is_believed() -> None:
    clock = ServerClock(lambda: WRONG)
    assert clock.now() == WRONG
    clock.observe_date(None)
    clock.observe_date("yesterday")
    assert clock.now() == WRONG


@given(
    st.lists(st.floats(0, 1e5), min_size=1),
    st.floats(0, 0.999),
)
def test_it_is_right_within_a_second_and_never_goes_back(pauses: list[float], fraction: float) -> None:
    passed = 0.0
    clock = ServerClock(lambda: WRONG, clock=lambda: passed)
    begin, last = BEGIN + timedelta(seconds=fraction), BEGIN - timedelta(seconds=1)
    for pause in pauses:
        passed += pause
        server = begin + timedelta(seconds=passed)
        clock.observe_date(date(server))
        assert abs(clock.now() - server) < timedelta(seconds=1.001)
        assert clock.now() >= last - timedelta(microseconds=10)
        last = clock.now()


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_step_of_the_servers_own_clock_is_followed(step: timedelta) -> None:
    clock = ServerClock(lambda: WRONG, clock=lambda: 0.0)
    clock.observe_date(date(BEGIN))
    clock.observe_date(date(BEGIN + step))
    assert abs(clock.now() - (BEGIN + step)) <= timedelta(seconds=1)
