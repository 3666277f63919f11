"""What the demo shows of a fine-tuning: answers before and after, counted as they are."""

import json
from typing import Any

import pytest

from devcluster import before_after
from devcluster.layout import ROOT

SOLVED = "48/2 = <<48/2=24>>24 in May\n48+24 = <<48+24=72>>72 in all\n#### 72"


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (SOLVED, "72"),
        ("#### 1,234.50 ", "1234.50"),
        ("#### -3", "-3"),
        ("She sold 72 clips.", None),
        ("#### 72\nSo the answer is 72.", None),
        ("So #### 72", None),
        ("####", None),
        ("", None),
    ],
)
def test_only_a_last_line_of_its_own_has_the_form_of_the_data(answer: str, number: str | None) -> None:
    assert before_after.number_of(answer) == number


def sample(baseline: str | None, tuned: str | None, *, prompt: str = "How many?") -> dict[str, Any]:
    return {
        "dataset": "questions",
        "prompt": prompt,
        "baseline": baseline,
        "tuned": tuned,
        "reference": SOLVED,
    }


def shown(*samples: dict[str, Any], width: int = 80) -> list[str]:
    return list(before_after.compared(samples, width))


def test_the_counts_are_those_of_all_questions_and_the_gained_one_is_shown() -> None:
    lines = shown(
        sample("It is 72.", "#### 71", prompt="First?"),
        sample("#### 72", "#### 72", prompt="Second?"),
        sample("It is 72.", SOLVED, prompt="Third?"),
    )
    assert lines[:4] == [
        "Answers to 3 questions that were not trained on",
        "                             before  after",
        "  end in a line #### NUMBER       1      3",
        "  and the number is right         1      2",
    ]
    assert lines[4:8] == ["", "One of them", "  Third?", "  Expected: 72"]
    assert lines[-1].endswith("| #### 72")


def test_a_model_that_only_learned_the_form_is_not_praised_for_more() -> None:
    lines = shown(sample("It is 72.", "#### 71"))
    assert "  A model of this size learns the form of a solution in minutes, but not to calculate." in lines


def test_a_tuning_that_changed_nothing_shows_the_first_question() -> None:
    lines = shown(sample("It is 72.", "It is 71.", prompt="First?"), sample(None, None))
    assert "  end in a line #### NUMBER       0      0" in lines
    assert "  First?" in lines


def test_without_references_there_is_nothing_to_compare() -> None:
    assert shown({"prompt": "Hello?", "baseline": "a", "tuned": "b", "reference": None}) == []


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_columns_fit_the_terminal(width: int) -> None:
    long = "word " * 60 + "\x1b[31mred"
    lines = shown(sample(long, f"{long}\n\n{SOLVED}"), width=width)
    assert max(map(len, lines[5:])) <= width
    assert all(line.isprintable() for line in lines)


def test_each_row_of_the_data_ends_as_it_is_counted() -> None:
    for name, count in (("train", 102), ("test", 14)):
        rows = (ROOT / "examples/data/gsm8k" / f"{name}.jsonl").read_text().splitlines()
        assert len(rows) == count
        assert all(before_after.number_of(json.loads(row)["answer"]) for row in rows)
