"""Charts: what is drawn of any numbers, and the text alternative."""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from finetune_operator.results.pages import document
from finetune_operator.results.pages.axis import LARGEST, axis, number_text
from finetune_operator.results.pages.chart import line_chart
from finetune_operator.results.pages.intervals import Difference, interval_chart
from finetune_operator.results.pages.series import Series

NAN, INF = float("nan"), float("inf")
HOSTILE = "</title><script>alert(1)</script>\"'&\x00\x1b\ud800\u202e"

numbers = st.one_of(
    st.floats(), st.integers(-(10**6), 10**6).map(float), st.sampled_from([0.0, 1e300, -1e308, 5e-324])
)
points = st.lists(st.tuples(numbers, st.none() | numbers), max_size=60)


def parsed(markup: Markup) -> ET.Element:
    return ET.fromstring(markup)


def chart(*lines: Series) -> ET.Element:
    return parsed(line_chart(lines, title="Loss", x="step", y="loss"))


def series(*values: float | None, name: str = "train") -> Series:
    return Series(name=name, points=[(float(at), value) for at, value in enumerate(values)])


def drawn(figure: ET.Element) -> Iterator[list[tuple[float, float]]]:
    """The places of each line."""
    for line in figure.iter("polyline"):
        yield [(float(x), float(y)) for x, y in (each.split(",") for each in line.attrib["points"].split())]


def dots(figure: ET.Element) -> list[tuple[float, float]]:
    return [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in figure.iter("circle")]


def texts(figure: ET.Element) -> list[str]:
    return [each.text or "" for each in figure.iter("text")]


# --- axes


@given(st.lists(numbers, max_size=20), st.booleans())
def test_an_axis_holds_all_finite_values_and_has_few_round_ticks(values: list[float], whole: bool) -> None:
    found = axis(values, whole=whole)
    assert math.isfinite(found.high - found.low)
    assert found.low < found.high
    assert all(0 <= found.place(each) <= 1 for each in values if math.isfinite(each))
    assert all(
        found.low <= min(max(each, -LARGEST), LARGEST) <= found.high for each in values if math.isfinite(each)
    )
    assert 1 <= len(found.ticks) <= 7
    assert len(set(found.labels)) == len(found.ticks) == len(found.labels)
    rounding = 1e-9 * (found.high - found.low)
    assert all(found.low - rounding <= each <= found.high + rounding for each in found.ticks)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0, 1), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((1.62, 3.41), ["2.0", "2.5", "3.0"]),
        ((0, 100), ["0", "20", "40", "60", "80", "100"]),
        ((1, 4800), ["1,000", "2,000", "3,000", "4,000"]),
        ((-3e-6, 3e-6), ["-2e-6", "0", "2e-6"]),
        ((0, 6e9), ["0", "2e9", "4e9", "6e9"]),
        ((1000.25, 1000.75), ["1,000.3", "1,000.4", "1,000.5", "1,000.6", "1,000.7"]),
        ((5, 5), ["3", "4", "5", "6", "7"]),
        ((0, 0), ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
        ((), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((-1e308, INF, 1e308), ["-1e300", "-5e299", "0", "5e299", "1e300"]),
    ],
)
def test_ticks_are_round(values: tuple[float, ...], labels: list[str]) -> None:
    assert axis(values).labels == labels


def test_an_axis_that_counts_has_ticks_at_whole_numbers() -> None:
    assert axis([1, 3], whole=True).labels == ["1", "2", "3"]
    assert axis([1], whole=True).labels == ["1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "0"), (1.23456, "1.235"), (0.00012, "0.00012"), (1e-5, "1e-5"), (600.0, "600"),
     (12345.0, "12,345"), (-12345.6, "-12,346"), (1.5e9, "1.5e9"), (-1e308, "-1e308")],
)  # fmt: skip
def test_numbers_in_descriptions(value: float, text: str) -> None:
    assert number_text(value) == text


# --- lines


def test_a_line_has_axes_with_names_and_a_description() -> None:
    figure = chart(series(3.0, 2.5, 1.5))
    assert [len(each) for each in drawn(figure)] == [3]
    assert {"step", "loss", "0", "1", "2", "1.5", "2.0"} <= set(texts(figure))
    (drawing,) = figure.iter("svg")
    assert drawing.attrib["role"] == "img"
    assert drawing.findtext("title") == "Loss"
    assert drawing.findtext("desc") == (
        "train: 3 values of loss, from 3 at step 0 to 1.5 at 2; lowest 1.5 at 2, highest 3 at 0."
    )
    assert figure.findtext("figcaption") == "Loss"
    assert figure.find("ul") is None, "one line needs no legend"


def test_several_lines_differ_in_style_and_have_a_legend() -> None:
    figure = chart(series(1, 2, name="a"), series(2, 1, name="b"))
    styles = [each.attrib["class"] for each in figure.iter("polyline")]
    assert styles == ["line line-1", "line line-2"]
    legend = figure.find("ul")
    assert legend is not None
    assert [each.findtext("bdi") for each in legend] == ["a", "b"]
    assert [line.attrib["class"] for line in legend.iter("line")] == styles


@pytest.mark.parametrize("gap", [None, NAN, INF, -INF])
def test_a_value_that_is_missing_or_not_finite_is_a_gap(gap: float | None) -> None:
    figure = chart(series(1, 2, gap, gap, 3, 2, gap, 1))
    assert [len(each) for each in drawn(figure)] == [2, 2]
    assert len(dots(figure)) == 5, "the last one alone is a dot, and few values are all marked"
    assert "3 without a value" in (figure.findtext("svg/desc") or "")


def test_one_value_is_a_dot() -> None:
    figure = chart(series(2.0))
    assert list(drawn(figure)) == []
    assert len(dots(figure)) == 1
    assert figure.findtext("svg/desc") == "train: loss 2 at step 0."


@pytest.mark.parametrize("lines", [(), (series(),), (series(NAN, None),)])
def test_without_values_the_figure_says_so(lines: tuple[Series, ...]) -> None:
    figure = chart(*lines)
    assert figure.findtext("p") == "No values."
    assert figure.find("svg") is None


def test_a_series_without_values_keeps_its_place_in_the_legend() -> None:
    figure = chart(series(NAN, name="a"), series(1, 2, name="b"))
    assert [each.attrib["class"] for each in figure.iter("polyline")] == ["line line-2"]
    assert (figure.findtext("svg/desc") or "").startswith("a: no values. b: 2 values")


@given(st.lists(points, min_size=1, max_size=3))
def test_any_numbers_give_a_chart_inside_of_its_frame(lines: list[list[tuple[float, float | None]]]) -> None:
    figure = chart(*(Series(name=f"s{at}", points=each) for at, each in enumerate(lines)))
    finite = any(math.isfinite(x) and y is not None and math.isfinite(y) for each in lines for x, y in each)
    assert (figure.find("svg") is not None) == finite
    for x, y in [*dots(figure), *(place for each in drawn(figure) for place in each)]:
        assert 0 <= x <= 420
        assert 0 <= y <= 240
    assert not re.search(r"\b(nan|inf)\b", ET.tostring(figure, encoding="unicode"))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(values: list[float], random: "st.random.Random") -> None:
    given_points = list(enumerate(map(float, values)))
    shuffled = random.sample(given_points, len(given_points))
    assert line_chart([Series(name="a", points=shuffled)], title="t", x="x", y="y") == line_chart(
        [Series(name="a", points=given_points)], title="t", x="x", y="y"
    )


@given(st.integers(0, 2**32), st.integers(3000, 9000), st.floats(0, 0.3))
def test_decimation_keeps_extremes_and_bounds_the_points(seed: int, number: int, missing: float) -> None:
    from random import Random

    draw = Random(seed)
    given_points = [
        (float(at), None if draw.random() < missing else draw.gauss(0, 1)) for at in range(number)
    ]
    line = Series(name="a", points=given_points)
    runs = line.runs(0.0, float(number - 1), 350)
    kept = [point for run in runs for point in run]
    finite = line.finite
    by_value = [y for _, y in finite]
    assert len(kept) <= 4 * 351
    assert len(runs) <= 351
    assert {min(by_value), max(by_value)} <= {y for _, y in kept}
    assert kept[0] == finite[0]
    assert kept[-1] == finite[-1]
    assert kept == sorted(kept)


def test_a_gap_between_columns_remains_after_decimation() -> None:
    values = [1.0] * 5000 + [None] * 5000 + [2.0] * 5000
    assert len(series(*values).runs(0, 14999, 350)) == 2


def test_texts_are_escaped_cleaned_and_shortened() -> None:
    markup = line_chart(
        [series(1, 2, name=HOSTILE), series(1, 2, name="x" * 500)], title=HOSTILE, x=HOSTILE, y=HOSTILE
    )
    assert "<script" not in markup
    assert not re.search(r"[\x00-\x08\x1b\ud800-\udfff\u202e]", markup)
    markup.encode()
    assert len(markup) < 8000
    figure = parsed(markup)
    assert figure.findtext("figcaption") == "</title><script>alert(1)</script>\"'&"


# --- bars


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> ET.Element:
    return parsed(document._environment().get_template("macros.html.j2").module.bars(title, rows))  # type: ignore[attr-defined]


def test_bars_are_a_table_and_the_longest_has_the_full_width() -> None:
    figure = bars("Time", [("Train", 30.0, "30 min"), (HOSTILE, 15.0, "<b>"), ("none", 0, "0")])
    assert [each.attrib["width"] for each in figure.iter("rect")] == ["100", "50", "0"]
    assert [row.findtext("th/bdi") for row in figure.iter("tr")][1] == "</title><script>alert(1)</script>\"'&"


@given(st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=10))
def test_any_amounts_give_bars_inside_of_their_cells(values: list[float]) -> None:
    widths = [
        float(each.attrib["width"]) for each in bars("t", [("a", each, "t") for each in values]).iter("rect")
    ]
    assert len(widths) == len(values)
    assert all(0 <= each <= 100 for each in widths)


def test_no_bars() -> None:
    assert bars("Time", []).findtext("p") == "No values."


# --- intervals


def test_differences_with_intervals_around_zero() -> None:
    figure = parsed(
        interval_chart(
            [
                Difference(name="B - A", value=0.03, interval=(-0.05, 0.11), tone="neutral"),
                Difference(name="C - A", value=-0.2, interval=None, tone="bad"),
            ],
            title="accuracy",
        )
    )
    zero = next(each for each in figure.iter("line") if each.attrib["class"] == "zero")
    (first, second) = figure.iter("circle")
    (whole, *_) = (each for each in figure.iter("line") if each.attrib["class"] == "interval neutral")
    assert (
        float(whole.attrib["x1"])
        < float(zero.attrib["x1"])
        < float(first.attrib["cx"])
        < float(whole.attrib["x2"])
    )
    assert float(second.attrib["cx"]) < float(zero.attrib["x1"])
    assert second.attrib["class"] == "point bad"
    assert figure.findtext("desc") == "B - A: 0.03, 95 % interval from -0.05 to 0.11. C - A: -0.2."


@given(numbers, st.none() | st.tuples(numbers, numbers))
def test_any_difference_is_drawn_inside_or_not_at_all(
    value: float, interval: tuple[float, float] | None
) -> None:
    markup = interval_chart([Difference(name="a", value=value, interval=interval, tone="good")], title="t")
    assert bool(markup) == all(map(math.isfinite, [value, *(interval or ())]))
    if markup:
        assert all(0 <= x <= 420 for x, _ in dots(parsed(markup)))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_number_that_is_not_finite_has_a_text(value: float) -> None:
    assert number_text(value) == str(value)
