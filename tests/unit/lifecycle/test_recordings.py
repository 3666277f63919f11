from dataclasses import replace

import pytest

from tests.unit.lifecycle import recordings

pytestmark = pytest.mark.slow
PAIRS = 24


def recorded() -> list[tuple[recordings.Object, recordings.Object]]:
    pairs: list[tuple[recordings.Object, recordings.Object]] = []
    recordings.record(PAIRS, pairs.append)
    return pairs


def test_a_recording_is_reproducible_and_replays_to_the_same_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs, again = recorded(), recorded()
    assert len(pairs) == PAIRS
    assert again == pairs
    assert [recordings.replayed(world) for world, _ in pairs] == [decision for _, decision in pairs]

    decide = recordings.decide
    monkeypatch.setattr(
        recordings, "decide", lambda observation: replace(decide(observation), requeue_after=7.5)
    )
    assert all(recordings.replayed(world) != decision for world, decision in pairs)
