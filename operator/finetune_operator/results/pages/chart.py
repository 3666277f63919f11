"""Charts of series over a common x, as SVG. A pure function of the numbers: no script, no external resource."""

from collections.abc import Iterator, Sequence

from finetune_operator.results.pages.axis import Axis, axis, number_text
from finetune_operator.results.pages.markup import Markup, element
from finetune_operator.results.pages.series import Series

#: Size of the whole chart and its margins, in units of its view box; a unit is about a pixel.
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
        return _figure(title, element("p", "No values.", class_="empty"))
    across = axis([at for at, _ in points], whole=True)
    up = axis([value for _, value in points])
    drawing = element(
        "svg",
        element("title", _shortened(title)),
        element("desc", " ".join(_described(each, x, y) for each in series[:_STYLES])),
        *_axes(across, up, x, y),
        *(part for number, each in enumerate(series) for part in _line(each, number, across, up)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
    )
    return _figure(title, drawing, *([_legend(series)] if len(series) > 1 else []))


def _figure(title: str, *content: Markup) -> Markup:
    return element("figure", element("figcaption", title), *content, class_="chart")


def _axes(across: Axis, up: Axis, x: str, y: str) -> Iterator[Markup]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value, label in zip(up.ticks, up.labels, strict=True):
        at = _y(up, value)
        yield element("line", x1=_LEFT, x2=right, y1=at, y2=at, class_="grid")
        yield element("text", label, x=_LEFT - 6, y=at + 4, text_anchor="end")
    for value, label in zip(across.ticks, across.labels, strict=True):
        at = _x(across, value)
        # Keeps the label inside of the chart.
        anchor = "end" if at > right - 16 else "middle"
        yield element("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis")
        yield element("text", label, x=at, y=bottom + 18, text_anchor=anchor)
    yield element("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis")
    yield element("text", _shortened(x), x=right, y=_HEIGHT - 5, text_anchor="end", class_="name")
    yield element("text", _shortened(y), x=0, y=12, class_="name")


def _line(series: Series, number: int, across: Axis, up: Axis) -> Iterator[Markup]:
    runs = series.runs(across.low, across.high, _WIDTH - _LEFT - _RIGHT)
    marked = sum(map(len, runs)) <= _MARKED
    style = f"line line-{number % _STYLES + 1}"
    for run in runs:
        places = [(_x(across, at), _y(up, value)) for at, value in run]
        if len(places) > 1:
            path = " ".join(f"{at:.1f},{height:.1f}" for at, height in places)
            yield element("polyline", points=path, class_=style)
        if marked or len(places) == 1:
            for at, height in places:
                yield element("circle", cx=at, cy=height, r=2.5, class_=style)


def _legend(series: Sequence[Series]) -> Markup:
    entries = (
        element(
            "li",
            element(
                "svg",
                element("line", x1=0, x2=30, y1=5, y2=5, class_=f"line line-{number % _STYLES + 1}"),
                viewBox="0 0 30 10",
                width=30,
                height=10,
                aria_hidden="true",
            ),
            element("bdi", _shortened(each.name)),
        )
        for number, each in enumerate(series)
    )
    return element("ul", *entries, class_="legend")


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
