"""Charts of series over a common x, as SVG. A pure function of the numbers: no script, no external resource."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from finetune_operator.results.pages.axis import Axis, axis, number_text
from finetune_operator.results.pages.document import part
from finetune_operator.results.pages.series import Point, Series

#: Size of the whole chart and its margins, in units of its view box.
_WIDTH, _HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 26, 38
#: Points of a line up to which each is marked.
_MARKED = 24
#: Number of line styles; the style sheet has a color and a pattern for each of the classes ``line-1`` to this one.
_STYLES = 10
_MOST_TEXT = 64


def line_chart(series: Sequence[Series], *, title: str, x: str, y: str) -> Markup:
    """Returns a figure with a title, a chart and, of several series, a legend.

    Args:
        series: the lines; those beyond the tenth are drawn in the style of the first again.
        title: what the chart shows.
        x: name of the horizontal axis, which counts something: ``step``. Only whole numbers have ticks.
        y: name of the vertical axis, with its unit: ``tokens/s``.
    """
    points = [point for each in series for point in each.finite]
    if not points:
        return part("lines", title, None)
    across, up = axis([at for at, _ in points], whole=True), axis([value for _, value in points])
    lines = [
        (_shortened(each.name), number % _STYLES + 1, list(_runs(each, across, up)))
        for number, each in enumerate(series)
    ]
    chart = {
        "title": _shortened(title),
        "x": _shortened(x),
        "y": _shortened(y),
        "description": " ".join(_described(each, x, y) for each in series[:_STYLES]),
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _RIGHT,
        "bottom": _BOTTOM,
        "across": [(_x(across, at), label) for at, label in zip(across.ticks, across.labels, strict=True)],
        "up": [(_y(up, at), label) for at, label in zip(up.ticks, up.labels, strict=True)],
        "lines": lines,
    }
    return part("lines", title, chart)


def _runs(series: Series, across: Axis, up: Axis) -> Iterator[tuple[str, Sequence[Point]]]:
    """Yields the points of each part of a line as a path, empty for a single one, and the places that are marked."""
    runs = series.runs(across.low, across.high, _WIDTH - _LEFT - _RIGHT)
    marked = sum(map(len, runs)) <= _MARKED
    for run in runs:
        places = [(_x(across, at), _y(up, value)) for at, value in run]
        path = " ".join(f"{at:.1f},{height:.1f}" for at, height in places) if len(places) > 1 else ""
        yield path, places if marked or not path else ()


def _described(series: Series, x: str, y: str) -> str:
    """Returns what a line shows, for those who do not see it."""
    name, points = _shortened(series.name), series.finite
    if not points:
        return f"{name}: no values."
    if len(points) == 1:
        return f"{name}: {_shortened(y)} {number_text(points[0][1])} at {_shortened(x)} {number_text(points[0][0])}."
    low, high = (each(points, key=lambda point: point[1]) for each in (min, max))
    gaps = len(series.points) - len(points)
    return (
        f"{name}: {len(points):,} values of {_shortened(y)}, from {number_text(points[0][1])} at {_shortened(x)} "
        f"{number_text(points[0][0])} to {number_text(points[-1][1])} at {number_text(points[-1][0])}; "
        f"lowest {number_text(low[1])} at {number_text(low[0])}, highest {number_text(high[1])} at "
        f"{number_text(high[0])}{f'; {gaps:,} without a value' if gaps else ''}."
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _x(across: Axis, value: float) -> float:
    return _LEFT + across.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(up: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - up.place(value) * (_HEIGHT - _TOP - _BOTTOM)
