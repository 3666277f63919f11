"""Horizontal bars, one for each named amount: a table whose cells are bars, so that it reads well without them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from finetune_operator.results.pages.markup import Markup, element


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A named amount."""

    name: str
    value: float | None
    """Length of the bar. None, or not finite, for an unknown amount; a negative one has no bar."""
    text: str
    """The amount with its unit, as it is printed."""


def bar_chart(bars: Sequence[Bar], *, title: str) -> Markup:
    """Returns a figure with a title and one row per bar. The longest bar has the full width."""
    largest = max((_length(each) for each in bars), default=0.0)
    rows = (
        element(
            "tr",
            element("th", element("bdi", each.name), scope="row"),
            element("td", _drawn(_length(each) / largest if largest else 0.0), class_="bar"),
            element("td", element("bdi", each.text), class_="number"),
        )
        for each in bars
    )
    content = (
        element("table", element("tbody", *rows), class_="bars")
        if bars
        else element("p", "No values.", class_="empty")
    )
    return element("figure", element("figcaption", title), content, class_="chart")


def _length(bar: Bar) -> float:
    return max(0.0, bar.value) if bar.value is not None and math.isfinite(bar.value) else 0.0


def _drawn(share: float) -> Markup:
    drawn = element("rect", x=0, y=0, width=100 * share, height=10)
    return element("svg", drawn, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")
