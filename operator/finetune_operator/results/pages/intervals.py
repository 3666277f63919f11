"""Differences and their intervals on one axis, as SVG."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from finetune_operator.results.pages.axis import Axis, axis, number_text
from finetune_operator.results.pages.markup import Markup, element

type Tone = Literal["good", "bad", "neutral"]

_WIDTH, _LEFT, _RIGHT = 420, 70, 14
_ROW, _TOP, _BOTTOM = 24, 6, 24
_MOST_NAME = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference from 0, with its interval if there is one."""

    name: str
    """Shown to the left, up to 9 characters: ``B - A``."""
    value: float
    interval: tuple[float, float] | None
    tone: Tone
    """Whether the difference is an improvement."""


def interval_chart(differences: Sequence[Difference], *, title: str) -> Markup:
    """Returns the differences one below the other, on an axis that contains 0; empty if none is finite."""
    drawn = [each for each in differences if all(map(math.isfinite, _numbers(each)))]
    if not drawn:
        return Markup()
    across = axis([0.0, *(number for each in drawn for number in _numbers(each))], ticks=4)
    height = _TOP + _ROW * len(drawn) + _BOTTOM
    return element(
        "svg",
        element("title", title),
        element("desc", " ".join(map(_described, drawn))),
        *_axis(across, height),
        *(part for number, each in enumerate(drawn) for part in _row(each, number, across)),
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        class_="intervals",
    )


def _numbers(difference: Difference) -> Sequence[float]:
    return [difference.value, *(difference.interval or ())]


def _axis(across: Axis, height: float) -> Iterator[Markup]:
    bottom = height - _BOTTOM
    for value, label in zip(across.ticks, across.labels, strict=True):
        at = _x(across, value)
        yield element("line", x1=at, x2=at, y1=_TOP, y2=bottom, class_="zero" if value == 0 else "grid")
        anchor = "end" if at > _WIDTH - _RIGHT - 16 else "middle"
        yield element("text", label, x=at, y=bottom + 16, text_anchor=anchor)


def _row(difference: Difference, number: int, across: Axis) -> Iterator[Markup]:
    middle = _TOP + _ROW * (number + 0.5)
    yield element("text", difference.name[:_MOST_NAME], x=0, y=middle + 4, class_="name")
    if difference.interval:
        low, high = (_x(across, each) for each in difference.interval)
        yield element("line", x1=low, x2=high, y1=middle, y2=middle, class_=f"interval {difference.tone}")
        for end in (low, high):
            yield element(
                "line", x1=end, x2=end, y1=middle - 5, y2=middle + 5, class_=f"interval {difference.tone}"
            )
    yield element(
        "circle", cx=_x(across, difference.value), cy=middle, r=4, class_=f"point {difference.tone}"
    )


def _described(difference: Difference) -> str:
    between = ""
    if difference.interval:
        low, high = map(number_text, difference.interval)
        between = f", 95 % interval from {low} to {high}"
    return f"{difference.name}: {number_text(difference.value)}{between}."


def _x(across: Axis, value: float) -> float:
    return _LEFT + across.place(value) * (_WIDTH - _LEFT - _RIGHT)
