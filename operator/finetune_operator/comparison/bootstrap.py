"""Intervals for differences of means on the same rows, by resampling the rows (paired bootstrap). Pure.

The seed is fixed, so equal inputs give equal intervals. They are the expanded percentile intervals of Hesterberg (2015,
"What Teachers Should Know About the Bootstrap"): with few rows, the percentiles lie further outside, by the factor by
which Student's interval exceeds the normal one.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from statistics import NormalDist

#: Confidence of the intervals.
CONFIDENCE = 0.95
RESAMPLES = 2000
_SEED = 20_151_127
#: More rows are divided at random into so many groups of equal size, which are resampled instead of rows. The variance
#: of the mean follows from the groups' sums as well as from the rows; with 1,000 groups the estimate of its root has a
#: standard error of 2 %, that of 2,000 resamples is 1.6 %.
MOST_UNITS = 1000
#: Fewer rows have no interval: their spread is not known well enough.
FEWEST_ROWS = 10
#: If fewer rows differ, the interval is extended to 0: even if all of them differ in the same direction, a sign test at
#: 5 % finds no difference (2 · 0.5⁵ = 0.06), whereas resampling would.
FEWEST_DIFFERING = 6

type Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Differences of one metric between two models, by row."""

    differences: Sequence[float]
    """One model's value minus the other's; all finite."""
    weights: Sequence[float]
    """Weight of each row, above 0: its tokens for a mean per token, 1 for a mean per row."""

    @property
    def mean(self) -> float:
        """The difference of the two means."""
        return sum(self.differences) / sum(self.weights)

    @property
    def differing(self) -> int:
        """Number of rows with different values."""
        return sum(1 for each in self.differences if each)


def intervals(columns: Sequence[Column]) -> list[Interval | None]:
    """Returns the interval of each column's mean; None for fewer than FEWEST_ROWS rows."""
    found: list[Interval | None] = [None] * len(columns)
    by_units: defaultdict[int, list[int]] = defaultdict(list)
    for number, column in enumerate(columns):
        if len(column.differences) < FEWEST_ROWS:
            continue
        if column.differing:
            by_units[min(len(column.differences), MOST_UNITS)].append(number)
        else:
            found[number] = 0.0, 0.0
    for units, numbers in by_units.items():
        # All columns of a size share their resamples, since drawing takes most of the time.
        for number, means in zip(
            numbers, _resampled([columns[each] for each in numbers], units), strict=True
        ):
            found[number] = _interval(columns[number], means, units)
    return found


def _resampled(columns: Sequence[Column], units: int) -> list[list[float]]:
    """Returns the sorted means of each column's resamples."""
    random = Random(_SEED)  # noqa: S311  not for secrets
    sums = [(_grouped(each.differences, units), _grouped(each.weights, units)) for each in columns]
    means: list[list[float]] = [[] for _ in columns]
    for _ in range(RESAMPLES):
        chosen = itemgetter(*random.choices(range(units), k=units))
        for (differences, weights), held in zip(sums, means, strict=True):
            held.append(sum(chosen(differences)) / sum(chosen(weights)))
    return [sorted(each) for each in means]


def _grouped(values: Sequence[float], units: int) -> Sequence[float]:
    """Returns the sums of ``units`` random groups of ``values``; the same groups for every list of the same length."""
    if len(values) <= units:
        return values
    order = list(range(len(values)))
    Random(_SEED).shuffle(order)  # noqa: S311
    return [sum(values[place] for place in order[unit::units]) for unit in range(units)]


def _interval(column: Column, means: Sequence[float], units: int) -> Interval:
    tail = _tail(units)
    low, high = _quantile(means, tail), _quantile(means, 1 - tail)
    if column.differing < FEWEST_DIFFERING:
        return min(low, 0.0), max(high, 0.0)
    return low, high


def _tail(units: int) -> float:
    """Returns the share of resamples outside either bound."""
    normal, degrees = NormalDist(), units - 1
    z = normal.inv_cdf((1 + CONFIDENCE) / 2)
    # Student's quantile after Abramowitz and Stegun 26.7.5; from 9 degrees of freedom on, its error is below 0.2 %.
    student = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return normal.cdf(-student * math.sqrt(units / degrees))


def _quantile(ascending: Sequence[float], share: float) -> float:
    """Returns a quantile by linear interpolation between order statistics."""
    place = share * (len(ascending) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])
