"""Intervals of differences on the same rows: their coverage, and what they say about few rows."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.results.comparison import bootstrap
from finetune_operator.results.comparison.bootstrap import FEWEST_ROWS, Column, intervals

TRIALS = 300
#: Three standard errors of the share of 300 intervals that contain the truth: 3 · √(0.95 · 0.05 / 300).
TOLERANCE = 0.038


def column(differences: list[float], weights: list[float] | None = None) -> Column:
    return Column(differences=differences, weights=weights or [1.0] * len(differences))


def losses(random: Random, rows: int, effect: float) -> Column:
    """Sums over tokens, of rows of very different length, with a difference per token of ``effect``."""
    weights = [float(random.randint(5, 60)) for _ in range(rows)]
    return column([weight * random.gauss(effect, 0.3) for weight in weights], weights)


def matches(random: Random, rows: int, effect: float) -> Column:
    """Scores of 0 and 1 of two models that agree on seven of ten rows."""
    return column(
        [
            float(random.choices((-1, 0, 1), (0.15 - effect / 2, 0.7, 0.15 + effect / 2))[0])
            for _ in range(rows)
        ]
    )


def skewed(random: Random, rows: int, effect: float) -> Column:
    """Differences with a long tail: an exponential distribution with the mean ``effect``."""
    return column([random.expovariate(1.0) - 1.0 + effect for _ in range(rows)])


@pytest.mark.parametrize("draw", [losses, matches])
@pytest.mark.parametrize("rows", [15, pytest.param(50, marks=pytest.mark.thorough)])
def test_about_95_of_100_intervals_contain_the_true_difference(draw: object, rows: int) -> None:
    random = Random(rows)
    columns = [draw(random, rows, 0.1) for _ in range(TRIALS)]  # type: ignore[operator]
    inside = sum(low <= 0.1 <= high for low, high in filter(None, intervals(columns)))
    assert inside / TRIALS == pytest.approx(0.95, abs=TOLERANCE)


@pytest.mark.thorough
def test_intervals_of_skewed_differences_cover_somewhat_less() -> None:
    random = Random(1)
    columns = [skewed(random, 40, 0.1) for _ in range(TRIALS)]
    inside = sum(low <= 0.1 <= high for low, high in filter(None, intervals(columns)))
    assert 0.90 <= inside / TRIALS <= 0.97


@pytest.mark.thorough
def test_groups_of_rows_give_intervals_of_the_same_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MOST_UNITS", 40)
    random = Random(2)
    columns = [losses(random, 500, 0.1) for _ in range(TRIALS)]
    inside = sum(low <= 0.1 <= high for low, high in filter(None, intervals(columns)))
    assert inside / TRIALS == pytest.approx(0.95, abs=TOLERANCE)


def test_groups_of_rows_give_intervals_of_the_same_width(monkeypatch: pytest.MonkeyPatch) -> None:
    found = losses(Random(3), 900, 0.0)
    (rows,) = intervals([found])
    monkeypatch.setattr(bootstrap, "MOST_UNITS", 300)
    (groups,) = intervals([found])
    assert rows is not None
    assert groups is not None
    assert groups[1] - groups[0] == pytest.approx(rows[1] - rows[0], rel=0.15)


def repeated(found: Column, times: int) -> Column:
    """The same rows, each ``times`` times."""
    contents = [at for at in range(len(found.weights)) for _ in range(times)]
    return Column(
        differences=[found.differences[at] for at in contents],
        weights=[found.weights[at] for at in contents],
        contents=contents,
        score=found.score,
    )


@pytest.mark.parametrize("score", [False, True])
@pytest.mark.parametrize("draw", [losses, matches])
def test_equal_rows_do_not_narrow_an_interval(draw: object, score: bool) -> None:
    found = draw(Random(7), 12, 0.1)  # type: ignore[operator]
    once = Column(differences=found.differences, weights=found.weights, score=score)
    (expected,), (interval,) = intervals([once]), intervals([repeated(once, 5)])
    assert interval == pytest.approx(expected)


def test_limits_count_different_rows() -> None:
    assert intervals([repeated(column([1.0] * (FEWEST_ROWS - 1)), 5)]) == [None]
    (interval,) = intervals([repeated(column([1.0] * 5 + [0.0] * 20), 5)])
    assert interval is not None
    assert interval[0] == 0


@pytest.mark.parametrize(("rows", "share"), [(10, 0.97), (20, 0.97), (20, 0.9), (50, 0.98)])
def test_intervals_of_scores_that_nearly_all_differ_contain_the_true_difference(
    rows: int, share: float
) -> None:
    """A base model that answers nothing correctly, and a tuned one that answers nearly everything correctly. Resampling
    alone gives an interval of width 0 in up to 74 of 100 samples."""
    random, trials = Random(rows), 100
    columns = [
        Column(
            differences=[float(random.random() < share) for _ in range(rows)],
            weights=[1.0] * rows,
            score=True,
        )
        for _ in range(trials)
    ]
    found = [each for each in intervals(columns) if each is not None]
    assert sum(low <= share <= high for low, high in found) >= 0.93 * trials
    assert all(low < high for low, high in found)


def test_an_interval_of_scores_that_vary_is_that_of_the_rows_alone() -> None:
    random = Random(6)
    differences = [random.uniform(-0.5, 0.6) for _ in range(40)]
    scores = Column(differences=differences, weights=[1.0] * 40, score=True)
    assert intervals([scores]) == intervals([column(differences)])


def test_intervals_of_losses_in_few_rows_of_very_different_length_cover() -> None:
    """Lognormal lengths: few rows have most of the tokens, so fewer rows count."""
    random, columns = Random(8), []
    for _ in range(TRIALS):
        weights = [max(1.0, round(random.lognormvariate(4, 1.5))) for _ in range(20)]
        columns.append(column([each * random.gauss(0, 0.1) for each in weights], weights))
    missed = sum(not low <= 0 <= high for low, high in filter(None, intervals(columns)))
    assert missed / TRIALS <= 0.06


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=50), st.integers(1, 60))
def test_groups_hold_every_row_once(values: list[float], units: int) -> None:
    grouped = bootstrap._grouped(values, units)
    assert len(grouped) == min(len(values), units)
    assert sum(grouped) == pytest.approx(sum(values), abs=1e-9)


@pytest.mark.parametrize("rows", [1, 2, 5, FEWEST_ROWS - 1])
def test_few_rows_have_no_interval(rows: int) -> None:
    assert intervals([column([0.5] * rows)]) == [None]


def test_equal_rows_have_the_interval_0() -> None:
    assert intervals([column([0.0] * 50)]) == [(0.0, 0.0)]


@pytest.mark.parametrize(("differing", "shows"), [(1, False), (5, False), (6, True), (50, True)])
def test_a_difference_needs_six_rows_that_differ(differing: int, shows: bool) -> None:
    """Five rows in the same direction occur by chance in 6 of 100 comparisons of equal models."""
    (interval,) = intervals([column([1.0] * differing + [0.0] * (200 - differing))])
    assert interval is not None
    assert (interval[0] > 0) is shows
    assert interval[1] > 0


@given(st.lists(st.floats(-5, 5), min_size=FEWEST_ROWS, max_size=40))
def test_the_interval_of_the_opposite_difference_is_the_opposite_interval(values: list[float]) -> None:
    there, back = intervals([column(values), column([-each for each in values])])
    assert there is not None
    assert back is not None
    assert back == pytest.approx((-there[1], -there[0]), abs=1e-9)


def test_an_interval_does_not_depend_on_other_columns_and_is_the_same_in_each_run() -> None:
    random = Random(4)
    columns = [losses(random, rows, 0.1) for rows in (30, 30, 70)]
    together = intervals(columns)
    assert together == [interval for each in columns for interval in intervals([each])]
    assert intervals(columns) == together


def test_an_interval_is_narrower_with_more_rows() -> None:
    widths = [
        high - low
        for low, high in filter(None, intervals([matches(Random(5), rows, 0.0) for rows in (20, 80, 320)]))
    ]
    assert widths[0] > 1.5 * widths[1] > 1.5 * 1.5 * widths[2]
