"""Rows and batches: no example is lost or duplicated, on any machine and after any restart."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_trainer.data.batches import EvaluationBatches, TrainBatches, steps_for
from finetune_trainer.data.examples import TokenFile
from finetune_trainer.data.layout import SequenceLayout, SequenceRows, pack
from finetune_trainer.tokens.encoding import TokenizedExample

FOLDER = tempfile.TemporaryDirectory()


def examples(lengths: list[int], length: int, *, packing: bool) -> SequenceRows:
    """Example i contains the ids 100*i, 100*i + 1, …; its second half is trained."""
    file = TokenFile(Path(tempfile.mkdtemp(dir=FOLDER.name)) / "tokens")
    for index, size in enumerate(lengths):
        ids = np.arange(size, dtype=np.int32) + 100 * index
        file.append(TokenizedExample(ids=ids, trained=np.arange(size) >= size // 2))
    file.finish()
    return SequenceRows(
        tokens=file,
        members=SequenceLayout(length=length, packing=packing).groups(file.lengths()),
        length=length,
    )


@given(st.lists(st.integers(1, 40), max_size=200), st.integers(40, 64))
def test_packing_loses_and_doubles_nothing_and_never_overfills(sizes: list[int], capacity: int) -> None:
    bins = pack(sizes, capacity)
    assert sorted(i for members in bins for i in members) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in members) <= capacity for members in bins)
    # Best fit decreasing never needs more than 11/9 of the optimal number, plus one.
    least = -(-sum(sizes) // capacity)
    assert len(bins) <= max(1, 2 * least) or not sizes


@given(st.lists(st.integers(2, 12), min_size=1, max_size=30), st.booleans())
@settings(deadline=None)
def test_a_row_holds_its_examples_shifted_by_one_and_kept_apart(lengths: list[int], packing: bool) -> None:
    rows = examples(lengths, 12, packing=packing)
    seen: list[int] = []
    for number in range(len(rows)):
        row = {key: value[0] for key, value in rows.batch([number], 1).items()}
        for segment, member in enumerate(rows.members[number], start=1):
            here = row["inputs_segmentation"] == segment
            size = lengths[member] - 1
            assert here.sum() == size
            assert row["inputs"][here].tolist() == [100 * member + i for i in range(size)]
            assert row["targets"][here].tolist() == [100 * member + i + 1 for i in range(size)]
            assert row["inputs_position"][here].tolist() == list(range(size))
            trained = row["targets_segmentation"][here] != 0
            assert trained.tolist() == [i + 1 >= lengths[member] // 2 for i in range(size)]
            seen.append(member)
        outside = row["inputs_segmentation"] == 0
        assert not row["targets_segmentation"][outside].any()
    assert sorted(seen) == list(range(len(lengths)))


@given(rows=st.integers(1, 20), size=st.integers(1, 8), seed=st.integers(0, 2**40), epochs=st.integers(1, 3))
@settings(deadline=None)
def test_every_epoch_shows_every_row_once_across_batches(
    rows: int, size: int, seed: int, epochs: int
) -> None:
    batches = TrainBatches(
        rows=examples([3] * rows, 4, packing=False), batch_size=size, seed=seed, shuffle=True
    )
    steps = steps_for(rows, epochs, size)
    shown = [int(row[0]) // 100 for step in range(steps) for row in batches.batch(step)["inputs"]]
    for epoch in range(epochs):
        assert sorted(shown[epoch * rows : (epoch + 1) * rows]) == list(range(rows))
    assert len(shown) - epochs * rows < size


def test_a_step_asked_for_alone_is_the_step_reached_one_by_one() -> None:
    def made() -> TrainBatches:
        return TrainBatches(rows=examples([5] * 7, 6, packing=False), batch_size=3, seed=42, shuffle=True)

    one_by_one = made()
    for step in range(12):
        np.testing.assert_array_equal(one_by_one.batch(step)["inputs"], made().batch(step)["inputs"])


def test_the_order_is_fixed_for_all_time() -> None:
    """The values are constants, because a run that resumes on another machine or with a newer numpy must continue with
    the same rows."""
    batches = TrainBatches(rows=examples([2] * 10, 2, packing=False), batch_size=10, seed=42, shuffle=True)
    first, second = ([int(row[0]) // 100 for row in batches.batch(step)["inputs"]] for step in (0, 1))
    assert first == [0, 1, 4, 2, 6, 8, 5, 9, 7, 3]
    assert second == [7, 3, 4, 2, 5, 9, 6, 8, 0, 1]


def test_without_shuffling_rows_come_in_their_order() -> None:
    batches = TrainBatches(rows=examples([2] * 4, 2, packing=False), batch_size=2, seed=1, shuffle=False)
    assert [[int(row[0]) // 100 for row in batches.batch(step)["inputs"]] for step in range(3)] == [
        [0, 1],
        [2, 3],
        [0, 1],
    ]


def test_evaluation_shows_every_row_once_and_fills_up_with_rows_of_no_weight() -> None:
    found = list(EvaluationBatches(rows=examples([4] * 5, 4, packing=False), batch_size=2))
    assert [int(row[0]) // 100 for batch in found for row in batch["inputs"]][:5] == [0, 1, 2, 3, 4]
    assert not found[-1]["targets_segmentation"][1].any()
    assert all(batch["inputs"].shape == (2, 4) for batch in found)


def test_steps_are_counted_without_rounding_errors() -> None:
    assert steps_for(30, 0.1, 3) == 1
    assert steps_for(400, 1.0, 8) == 50
    assert steps_for(401, 1.0, 8) == 51
    assert steps_for(10, 3.0, 4) == 8
    assert steps_for(1, 0.1, 8) == 1
