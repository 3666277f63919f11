"""Differences and their intervals on one axis, as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from finetune_operator.results.pages.axis import Axis, axis, number_text
from finetune_operator.results.pages.document import part

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
    bottom = _TOP + _ROW * len(drawn)
    chart = {
        "description": " ".join(map(_described, drawn)),
        "width": _WIDTH,
        "height": bottom + _BOTTOM,
        "top": _TOP,
        "right": _WIDTH - _RIGHT,
        "bottom": bottom,
        "ticks": [(_x(across, at), at, label) for at, label in zip(across.ticks, across.labels, strict=True)],
        "rows": [
            (
                each.name[:_MOST_NAME],
                _TOP + _ROW * (number + 0.5),
                _x(across, each.value),
                [_x(across, end) for end in each.interval or ()],
                each.tone,
            )
            for number, each in enumerate(drawn)
        ],
    }
    return part("intervals", title, chart)


def _numbers(difference: Difference) -> Sequence[float]:
    return [difference.value, *(difference.interval or ())]


def _described(difference: Difference) -> str:
    between = ""
    if difference.interval:
        low, high = map(number_text, difference.interval)
        between = f", 95 % interval from {low} to {high}"
    return f"{difference.name}: {number_text(difference.value)}{between}."


def _x(across: Axis, value: float) -> float:
    return _LEFT + across.place(value) * (_WIDTH - _LEFT - _RIGHT)
