"""Mixtures: every source contributes its share, in an order that depends only on the seed and the step."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_contract import DatasetSpec, SplitSpec
from finetune_trainer.data.batches import MixtureComponent, TrainBatches, permutation, shares
from finetune_trainer.data.dataset import (
    REPEATED,
    SourceSubset,
    assemble,
    first_occurrences,
    split_validation,
)
from finetune_trainer.data.layout import RaggedIndices, SequenceLayout
from finetune_trainer.data.prepare import PreparedSource, TextPreprocessor, prepare
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.template import Renderer
from tests.trainer.test_layout import examples
from tests.trainer.test_template import CHATML, tokenizer

weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)
mixtures = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), min_size=2, max_size=4)


def stream(parts: list[tuple[int, int]], *, seed: int = 7, shuffle: bool = True) -> TrainBatches:
    """Returns batches of two rows over ``parts``: the number of rows of each, and how many of them an epoch has."""
    total = sum(rows for rows, _ in parts)
    return TrainBatches(
        rows=examples([3] * total, 4, packing=False),
        parts=[MixtureComponent(rows=rows, shown=shown) for rows, shown in parts],
        batch_size=2,
        seed=seed,
        shuffle=shuffle,
    )


def part_of(row: int, parts: list[tuple[int, int]]) -> int:
    ends = np.cumsum([rows for rows, _ in parts])
    return int(np.searchsorted(ends, row, side="right"))


@given(weights, st.integers(0, 1000))
def test_shares_sum_to_the_total_and_are_the_weights_to_a_row(given: list[float], more: int) -> None:
    total = len(given) + more
    found = shares(total, given)
    assert sum(found) == total
    assert min(found) >= 1
    exact = [total * weight / sum(given) for weight in given]
    if min(exact) >= 1:
        assert all(abs(a - b) < 1 for a, b in zip(found, exact, strict=True))


@given(mixtures, st.integers(0, 2**40), st.booleans())
@settings(deadline=None)
def test_an_epoch_shows_of_every_source_what_is_its_share(
    parts: list[tuple[int, int]], seed: int, shuffle: bool
) -> None:
    made = stream(parts, seed=seed, shuffle=shuffle)
    assert made.epoch == sum(shown for _, shown in parts)
    for epoch in range(3):
        places = range(epoch * made.epoch, (epoch + 1) * made.epoch)
        counts = Counter(part_of(made.row(place), parts) for place in places)
        assert [counts[index] for index in range(len(parts))] == [shown for _, shown in parts]


@given(mixtures, st.integers(0, 2**40))
@settings(deadline=None)
def test_every_source_goes_through_all_of_its_rows_before_it_repeats_one(
    parts: list[tuple[int, int]], seed: int
) -> None:
    """The test covers the number of epochs after which each part has been shown a whole number of times."""
    made = stream(parts, seed=seed)
    epochs = int(np.lcm.reduce([rows for rows, _ in parts]))
    if epochs * made.epoch > 5000:
        return
    counts = Counter(made.row(place) for place in range(epochs * made.epoch))
    start = 0
    for rows, shown in parts:
        assert {counts[row] for row in range(start, start + rows)} == {epochs * shown // rows}
        start += rows


@given(mixtures, st.integers(0, 2**40), st.data())
@settings(deadline=None)
def test_a_step_has_the_same_rows_whenever_and_wherever_it_is_asked_for(
    parts: list[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    """A run that resumes at any step therefore continues with the same rows, and all hosts compute the same batch."""
    one_by_one = stream(parts, seed=seed)
    wanted = [[one_by_one.row(n) for n in one_by_one.numbers(step)] for step in range(20)]
    other = stream(parts, seed=seed)
    for step in data.draw(st.permutations(range(20))):
        assert [other.row(n) for n in other.numbers(step)] == wanted[step]


@given(st.integers(1, 40), st.integers(1, 40))
@settings(deadline=None)
def test_unshuffled_sources_take_turns_evenly(one: int, two: int) -> None:
    parts = [(one, one), (two, two)]
    made = stream(parts, shuffle=False)
    seen = 0
    for place in range(made.epoch):
        seen += part_of(made.row(place), parts) == 0
        assert abs(seen - (place + 1) * one / made.epoch) <= 1


def test_the_order_of_a_mixture_is_fixed_for_all_time() -> None:
    """The values are constants, because a run that resumes on another machine or with a newer numpy must continue with
    the same rows."""
    made = stream([(3, 6), (5, 2)], seed=42)
    assert [made.row(place) for place in range(16)] == [1, 0, 0, 2, 6, 2, 5, 1, 7, 2, 1, 2, 0, 4, 0, 1]
    assert permutation(5, 42, 0, 1).tolist() == [1, 0, 4, 2, 3]


def test_groups_that_are_joined_keep_their_members_apart() -> None:
    joined = RaggedIndices.joined(
        [RaggedIndices.single(2), RaggedIndices(numbers=np.array([1, 0, 2]), ends=np.array([2, 3]))]
    )
    assert list(joined) == [[0], [1], [3, 2], [4]]


# --- sources ----------------------------------------------------------------------------------------------------


def prepared(path: Path, answers: list[str], **fields: object) -> PreparedSource:
    """Returns a prepared source of questions and answers."""
    path.write_text("".join(json.dumps({"question": f"q{a}", "answer": a}) + "\n" for a in answers))
    source = {
        "path": f"spec.datasets.train[{path.stem}]",
        "name": path.stem,
        "uri": f"file://{path}",
        **fields,
    }
    renderer = Renderer(tokenizer(CHATML), train_on_prompt=False)
    spec = DatasetSpec.model_validate(source)
    return prepare(spec, TextPreprocessor(renderer=renderer, max_length=256), open_store(), path.parent)


def test_sources_without_weights_stand_one_after_the_other_and_are_packed_together(tmp_path: Path) -> None:
    sources = [prepared(tmp_path / f"{name}.jsonl", list("abc")) for name in ("one", "two")]
    joined = assemble(
        "train", [SourceSubset.all_of(source) for source in sources], SequenceLayout(length=256, packing=True)
    )
    assert len(joined.parts) == 1
    assert sorted(member for group in joined.rows.members for member in group) == list(range(6))
    assert len(joined.rows) < 6
    assert [report.rows for report in joined.reports] == [3, 3]
    apart = assemble("train", [SourceSubset.all_of(sources[1])], SequenceLayout(length=256, packing=False))
    assert joined.rows.tokens.read(3).ids.tolist() == apart.rows.tokens.read(0).ids.tolist()


@pytest.mark.parametrize("packing", [False, True])
def test_sources_with_weights_are_mixed_by_them_and_the_report_says_how_often_rows_are_seen(
    tmp_path: Path, packing: bool
) -> None:
    sources = [
        prepared(tmp_path / "few.jsonl", list("ab"), weight=3.0),
        prepared(tmp_path / "many.jsonl", list("abcdef"), weight=1.0),
    ]
    mixed = assemble(
        "train",
        [SourceSubset.all_of(source) for source in sources],
        SequenceLayout(length=40, packing=packing),
    )
    few, many = mixed.reports
    assert (few.sequences, many.sequences) == (2, 6)  # too long to share a row
    assert (few.epoch_sequences, many.epoch_sequences) == (6, 2)
    assert mixed.epoch == len(mixed.rows) == 8


@given(order=st.permutations(range(24)), fraction=st.floats(0.05, 0.9), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=20)
def test_rows_are_held_back_by_content_whatever_their_order(
    order: list[int], fraction: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("held")
    answers = [f"a{i // 2}" for i in range(24)]  # every row occurs twice
    split = SplitSpec(fraction=fraction, seed=seed)

    def sides(some: list[str]) -> tuple[Counter[int], Counter[int]]:
        source = prepared(folder / "a.jsonl", some)
        kept, held = split_validation([SourceSubset.all_of(source)], split)
        kept_content, held_content = (
            Counter(source.index.content[piece.chosen].tolist()) for (piece,) in (kept, held)
        )
        return kept_content, held_content

    kept, held = sides(answers)
    assert sum(kept.values()) + sum(held.values()) == 24
    assert not set(kept) & set(held)
    assert max(1, int(24 * fraction)) <= sum(held.values()) <= max(2, 24 * fraction + 1)
    assert sides([answers[i] for i in order]) == (kept, held)


def test_no_more_rows_are_held_back_than_are_measured(tmp_path: Path) -> None:
    answers = [f"a{i}" for i in range(40)]
    split = SplitSpec(fraction=0.5, seed=1, max_examples=3)

    def sides(some: list[str]) -> tuple[list[int], list[int], set[int]]:
        source = prepared(tmp_path / "a.jsonl", some)
        (kept,), (held,) = split_validation([SourceSubset.all_of(source)], split)
        content = {int(each) for each in source.index.content[held.chosen]}
        return kept.chosen.tolist(), held.chosen.tolist(), content

    kept, held, content = sides(answers)
    assert sorted(kept + held) == list(range(40))
    assert len(held) == 3
    assert max(held) >= 20  # chosen from the whole file
    assert sides(answers[::-1])[2] == content


def test_rows_of_one_content_count_each_towards_the_most(tmp_path: Path) -> None:
    source = prepared(tmp_path / "a.jsonl", [f"a{i // 4}" for i in range(24)])
    for most, held_back in ((9, 8), (4, 4), (2, 2)):
        split = SplitSpec(fraction=0.5, seed=1, max_examples=most)
        (kept,), (held,) = split_validation([SourceSubset.all_of(source)], split)
        assert len(held.chosen) == held_back
        contents = [set(source.index.content[each.chosen].tolist()) for each in (kept, held)]
        assert not contents[0] & contents[1]


def test_one_row_cannot_be_on_both_sides(tmp_path: Path) -> None:
    source = prepared(tmp_path / "a.jsonl", ["a", "a"])
    with pytest.raises(StageError, match="only rows with the same content") as caught:
        split_validation([SourceSubset.all_of(source)], SplitSpec(fraction=0.5, seed=1))
    assert caught.value.reason == "SplitImpossible"


def test_the_first_of_equal_rows_is_used_across_sources(tmp_path: Path) -> None:
    sources = [prepared(tmp_path / "a.jsonl", list("abca")), prepared(tmp_path / "b.jsonl", list("cdbd"))]
    one, two = first_occurrences([SourceSubset.all_of(source) for source in sources])
    assert [piece.chosen.tolist() for piece in (one, two)] == [[0, 1, 2], [1]]
    assert [piece.repeated.tolist() for piece in (one, two)] == [[3], [0, 2, 3]]
    kept, held = split_validation([one], SplitSpec(fraction=0.4, seed=1))
    assert sorted([*kept[0].chosen.tolist(), *held[0].chosen.tolist()]) == [0, 1, 2]
    made = assemble("train", [one, two], SequenceLayout(length=40, packing=False))
    assert [report.rows for report in made.reports] == [3, 1]
    assert [report.drop_reasons for report in made.reports] == [{REPEATED: 1}, {REPEATED: 3}]
    # the rows that are left out are part of the content's digest
    assert made.digest != assemble("train", [two, one], SequenceLayout(length=40, packing=False)).digest


def test_a_source_of_which_every_row_is_repeated_is_refused(tmp_path: Path) -> None:
    sources = [prepared(tmp_path / "a.jsonl", list("ab")), prepared(tmp_path / "b.jsonl", list("ba"))]
    with pytest.raises(StageError, match="every row equals a row of an earlier training source") as caught:
        first_occurrences([SourceSubset.all_of(source) for source in sources])
    assert caught.value.reason == "DatasetHasNothingToTrain"


@given(answers=st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=5), min_size=1, max_size=3))
@settings(deadline=None, max_examples=20)
def test_rows_used_once_have_different_contents(
    answers: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("once")
    sources = [prepared(folder / f"{number}.jsonl", some) for number, some in enumerate(answers)]
    try:
        pieces = first_occurrences([SourceSubset.all_of(source) for source in sources])
    except StageError:
        assert any(
            set(some) <= {a for before in answers[:n] for a in before} for n, some in enumerate(answers)
        )
        return
    contents = [piece.source.index.content[piece.chosen].tolist() for piece in pieces]
    flat = [content for some in contents for content in some]
    assert len(flat) == len(set(flat)) == len({answer for some in answers for answer in some})
