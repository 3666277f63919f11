"""Answers to common prompts, and the words in which they differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import Sample
from finetune_operator.results.comparison.answers import answers_compared, word_changes
from finetune_operator.results.comparison.model import ChangeKind
from tests.unit.comparison.runs import samples

texts = st.text(st.sampled_from("ab \n"), max_size=60)


@given(texts, texts)
def test_the_changes_contain_all_words_of_both_answers_in_order(first: str, second: str) -> None:
    changes = word_changes(first, second)
    assert changes is not None
    kept = [each for each in changes if each.kind is not ChangeKind.REMOVED]
    assert "".join(each.text for each in kept) == second
    before = [each for each in changes if each.kind is not ChangeKind.ADDED]
    assert " ".join(each.text for each in before).split() == first.split()


def test_equal_words_are_not_changed() -> None:
    changes = word_changes("Open Settings, then Security.", "Open Settings and choose Security.")
    assert changes is not None
    assert [(each.kind.value, each.text.strip()) for each in changes] == [
        ("Same", "Open"),
        ("Removed", "Settings, then"),
        ("Added", "Settings and choose"),
        ("Same", "Security."),
    ]


@pytest.mark.parametrize("words", ["a b ", "a "])
def test_long_answers_are_shown_without_marks(words: str) -> None:
    assert word_changes(words * 400, "c d " * 10) is None


def test_prompts_that_all_have_are_compared_and_those_with_different_answers_shown() -> None:
    found = answers_compared(
        {
            "A": samples("yes", "same", "old", "alone"),
            "B": [*samples("no", "same", "new"), Sample(prompt="another", tuned="x")],
            "C": [],
        },
        limit=1,
    )
    assert found is not None
    assert (found.jobs, found.prompts, found.equal) == (["A", "B"], 3, 1)
    (shown,) = found.shown
    assert [(each.job, each.text) for each in shown.answers] == [("A", "yes"), ("B", "no")]
    assert (shown.baseline, shown.reference) == ("I do not know.", "Open Settings, then Security.")


def test_a_prompt_that_occurs_twice_corresponds_in_order() -> None:
    def twice(*answers: str) -> list[Sample]:
        return [Sample(prompt="p", tuned=each) for each in answers]

    found = answers_compared({"A": twice("1", "2"), "B": twice("1", "3")}, limit=5)
    assert found is not None
    assert (found.prompts, found.equal) == (2, 1)
    assert [each.text for each in found.shown[0].answers] == ["2", "3"]


def test_prompts_of_different_datasets_are_different() -> None:
    ours, theirs = Sample(prompt="p", tuned="x"), Sample(dataset="faq", prompt="p", tuned="y")
    found = answers_compared({"A": [ours], "B": [theirs]}, limit=5)
    assert found is not None
    assert found.prompts == 0


def test_answers_of_one_run_alone_are_not_compared() -> None:
    assert answers_compared({"A": samples("yes"), "B": []}, limit=3) is None
