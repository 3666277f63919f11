"""The scores of answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import GateSpec
from finetune_trainer.evaluation.gates import evaluate_gates
from finetune_trainer.evaluation.scores import exact_match, rouge_l, row_scores, token_f1, without_reasoning

GSM8K = "She sells 16 - 3 = 13 eggs.\n13 * 2 = $26\n#### 26"


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Paris", "paris.", 1),
        ("The  Eiffel Tower!", "eiffel tower", 1),
        ("Paris, France", "Paris", 0),
        ("", "Paris", 0),
        ("so the answer is\n#### 26", GSM8K, 1),
        ("13 eggs at $2 make $26.00.", GSM8K, 1),
        ("26 dollars for 13 eggs", GSM8K, 0),
        ("#### 25\nwait\n#### 26", GSM8K, 1),
        ("no idea", GSM8K, 0),
        ("It is 1,234,567", "#### 1234567", 1),
        ("It is -5", "#### 5", 0),
        ("#### Tuesday", "#### tuesday.", 1),
    ],
)
def test_an_exact_match(answer: str, reference: str, expected: float) -> None:
    assert exact_match(answer, reference) == expected


@pytest.mark.parametrize(
    ("text", "opened", "answer"),
    [
        ("4", False, "4"),
        ("<think>\n\n</think>\n\n4", False, "4"),
        ("<think>\n2 + 2\n</think>\n\n4", False, "4"),
        ("2 + 2 is\n</think>\n\n4", True, "4"),
        ("<think>\nso 5\n</think>\nno\n<think>\n4</think> 4", False, "4"),
        ("<think>\nhmm, 5, or", False, ""),
        ("hmm, 5, or", True, ""),
        ("<think>a</think>b<think>c", False, ""),
        ("", False, ""),
        (" as it stands ", False, " as it stands "),
    ],
)
def test_what_a_model_reasons_is_not_its_answer(text: str, opened: bool, answer: str) -> None:
    assert without_reasoning(text, opened=opened) == answer


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        # f1_score of squad evaluate-v1.1.py for the same pairs
        ("the cat sat on the mat", "a cat sat", 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("Denver Broncos", "the Denver Broncos", 1),
        ("red red blue", "red blue blue", 2 / 3),
        ("Carolina", "Denver", 0),
        ("", "", 1),
        ("", "Denver", 0),
    ],
)
def test_the_f1_of_words(answer: str, reference: str, expected: float) -> None:
    assert token_f1(answer, reference) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        # rouge_score 0.1.2, RougeScorer(["rougeL"]), for the same pairs
        ("The quick brown dog jumps on the log.", "The quick brown fox jumps over the log", 0.75),
        ("police kill the gunman", "police killed the gunman", 0.75),
        ("the gunman police killed", "police killed the gunman", 0.5),
        ("", "something", 0.0),
        ("Überall gleich", "überall, gleich!", 1.0),
    ],
)
def test_the_longest_common_subsequence(answer: str, reference: str, expected: float) -> None:
    assert rouge_l(answer, reference) == pytest.approx(expected)


@given(st.text(max_size=40), st.text(max_size=40))
def test_scores_lie_between_0_and_1_and_do_not_care_for_the_order(left: str, right: str) -> None:
    assert 0 <= token_f1(left, right) == token_f1(right, left) <= 1
    assert exact_match(left, left) == 1
    assert token_f1(left, left) == 1
    assert token_f1(left, right) >= (exact_match(left, right) if "####" not in right else 0)


def test_each_row_has_the_scores_that_were_asked_for() -> None:
    found = row_scores(["Loss", "ExactMatch", "TokenF1"], ["Paris", "Rome now"], ["paris", "Rome"])
    assert found == {"exact_match": [1.0, 0.0], "token_f1": [1.0, pytest.approx(2 / 3)]}


@pytest.mark.parametrize(
    ("gate", "threshold", "passed"),
    [
        ({"metric": "faq/exact_match", "op": "GreaterOrEqual", "value": 0.5}, 0.5, True),
        ({"metric": "faq/exact_match", "op": "GreaterOrEqual", "value": 0.51}, 0.51, False),
        ({"metric": "loss", "op": "LessOrEqual", "delta_from_baseline": -0.5}, 1.5, True),
        ({"metric": "loss", "op": "LessOrEqual", "delta_from_baseline": -0.75}, 1.25, False),
        ({"metric": "nan", "op": "LessOrEqual", "value": 9.0}, 9.0, False),
        ({"metric": "nowhere", "op": "LessOrEqual", "value": 9.0}, 9.0, False),
        ({"metric": "faq/exact_match", "op": "GreaterOrEqual", "delta_from_baseline": 0.0}, None, False),
    ],
)
def test_a_gate(gate: dict[str, object], threshold: float | None, passed: bool) -> None:
    tuned = {"loss": 1.5, "faq/exact_match": 0.5, "nan": float("nan")}
    (result,) = evaluate_gates([GateSpec.model_validate(gate)], {"loss": 2.0}, tuned)
    assert (result.threshold, result.passed) == (threshold, passed)
