"""Shows what a fine-tuning has changed: answers to questions that were not trained on, before and after. Pure."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

type Sample = Mapping[str, Any]
"""A line of ``evaluate/samples.jsonl``."""

#: How each solution of GSM8K ends: a last line of its own with the number.
_SOLVED = re.compile(r"(?m)^#### *(-?[\d,]+(?:\.\d+)?)\s*\Z")
_LABEL = 26
_SIDES = ("baseline", "tuned")


def number_of(answer: str) -> str | None:
    """Returns the number in the last line of a solution in GSM8K's form; None for any other text."""
    found = _SOLVED.search(answer)
    return None if found is None else found[1].replace(",", "")


def compared(samples: Sequence[Sample], width: int) -> Iterator[str]:
    """Yields how many answers have the form of the data and its number, and one question with both answers.

    The question is the first one that only the tuned model solves, else the first one that only it answers in the form,
    else the first one of all.

    Args:
        samples: answers with references.
        width: columns of the output.
    """
    asked = [each for each in samples if each.get("reference")]
    if not asked:
        return
    form = {side: [number_of(each.get(side) or "") is not None for each in asked] for side in _SIDES}
    right = {side: [solves(each, side) for each in asked] for side in _SIDES}
    yield f"Answers to {len(asked)} questions that were not trained on"
    yield f"  {'':<{_LABEL}} {'before':>6} {'after':>6}"
    for label, found in (("end in a line #### NUMBER", form), ("and the number is right", right)):
        before, after = (sum(found[side]) for side in _SIDES)
        yield f"  {label:<{_LABEL}} {before:>6} {after:>6}"
    if not any(right["tuned"]):
        yield "  A model of this size learns the form of a solution in minutes, but not to calculate."
    gained = [
        next((at for at in range(len(asked)) if found["tuned"][at] and not found["baseline"][at]), None)
        for found in (right, form)
    ]
    shown = asked[next((at for at in gained if at is not None), 0)]
    yield ""
    yield "One of them"
    yield from textwrap.wrap(shown["prompt"], width - 2, initial_indent="  ", subsequent_indent="  ")
    yield f"  Expected: {number_of(shown['reference']) or shown['reference']}"
    yield ""
    yield from side_by_side(shown.get("baseline") or "", shown.get("tuned") or "", width)


def solves(sample: Sample, side: str) -> bool:
    """Whether the answer has the form of the data and the reference's number."""
    number = number_of(sample.get(side) or "")
    return number is not None and float(number) == float(number_of(sample["reference"]) or "nan")


def side_by_side(before: str, after: str, width: int) -> Iterator[str]:
    """Yields the two texts as columns of one table."""
    column = max(12, (width - 5) // 2)
    yield f"  {'before':<{column}} | after"
    for left, right in zip_longest(_wrapped(before, column), _wrapped(after, column), fillvalue=""):
        yield f"  {left:<{column}} | {right}".rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, width) or [""]]
    return ["".join(each for each in line if each.isprintable()) for line in lines]
