"""When checkpoints are saved: by steps or by the first process's clock, and at the same steps in all processes."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_trainer.training.saving import CheckpointSavePolicy


class Clock:
    """A clock that advances only when a step is done."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def saves(times: CheckpointSavePolicy, clock: Clock, seconds: list[float], start: int = 0) -> Iterator[int]:
    for step, took in enumerate(seconds, start=start + 1):
        clock.now += took
        if times.decide(step):
            yield step


@pytest.mark.parametrize(
    ("every_steps", "every_seconds", "seconds", "expected"),
    [
        (4, None, [1.0] * 10, [4, 8]),
        (4, 100, [1.0] * 10, [4, 8]),
        (100, 10, [4.0] * 10, [3, 6, 9]),
        (5, 10, [4.0] * 10, [3, 5, 8, 10]),  # a save by steps restarts the interval
        # after a step of unusual length (such as an evaluation), the clock is read when half of the planned time has
        # passed
        (100, 10, [1.0, 1.0, 60.0, 1.0, 1.0], [5]),
        (100, 60, [50.0] + [0.5] * 30, [21]),  # the first step includes compilation
    ],
)
def test_steps_or_time_whichever_comes_first(
    every_steps: int, every_seconds: int | None, seconds: list[float], expected: list[int]
) -> None:
    clock = Clock()
    times = CheckpointSavePolicy(
        every_steps=every_steps, every_seconds=every_seconds, first_says=lambda number: number, clock=clock
    )
    assert list(saves(times, clock, seconds)) == expected


def test_a_resumed_training_counts_from_where_it_begins() -> None:
    clock = Clock()
    times = CheckpointSavePolicy(
        every_steps=1000, every_seconds=10, first_says=lambda number: number, clock=clock
    )
    assert list(saves(times, clock, [1.0] * 12, start=70)) == [80]


def test_far_from_a_save_the_processes_seldom_wait_for_each_other() -> None:
    clock, asked = Clock(), []

    def first_says(number: int) -> int:
        asked.append(number)
        return number

    times = CheckpointSavePolicy(every_steps=10**6, every_seconds=600, first_says=first_says, clock=clock)
    assert list(saves(times, clock, [0.25] * 4800)) == [2400, 4800]
    assert len(asked) < 40


@given(
    seconds=st.lists(st.floats(0.01, 30), min_size=1, max_size=200),
    lag=st.floats(0, 100),
    drift=st.floats(0.5, 2),
    every_steps=st.integers(1, 50),
    every_seconds=st.integers(1, 60),
)
def test_all_processes_save_the_same_steps_whatever_their_clocks_say(
    seconds: list[float], lag: float, drift: float, every_steps: int, every_seconds: int
) -> None:
    said: list[int] = []

    def speak(number: int) -> int:
        said.append(number)
        return number

    clocks = Clock(), Clock()
    first = CheckpointSavePolicy(
        every_steps=every_steps, every_seconds=every_seconds, first_says=speak, clock=clocks[0]
    )
    saved = list(saves(first, clocks[0], seconds))
    words = iter(said)
    second = CheckpointSavePolicy(
        every_steps=every_steps,
        every_seconds=every_seconds,
        first_says=lambda _: next(words),
        clock=clocks[1],
    )
    clocks[1].now += lag
    assert list(saves(second, clocks[1], [took * drift for took in seconds])) == saved
    assert list(words) == []  # both have asked the same number of times


@given(seconds=st.lists(st.floats(0.01, 30), min_size=1, max_size=200), every_seconds=st.integers(1, 60))
def test_at_an_even_pace_no_save_is_late_by_more_than_a_step(
    seconds: list[float], every_seconds: int
) -> None:
    clock, last = Clock(), 1000.0
    pace = seconds[0]
    times = CheckpointSavePolicy(
        every_steps=10**6, every_seconds=every_seconds, first_says=lambda n: n, clock=clock
    )
    for _ in saves(times, clock, [pace] * len(seconds)):
        assert every_seconds <= clock.now - last + 1e-6
        assert clock.now - last < every_seconds + pace + 1e-6
        last = clock.now
