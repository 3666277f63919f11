"""Intervals for differences of means on the same rows, by resampling the rows (paired bootstrap). Pure.

The seed is fixed, so equal inputs give equal intervals. They are the expanded percentile intervals of Hesterberg (2015,
"What Teachers Should Know About the Bootstrap"): with few rows, the percentiles lie further outside, by the factor by
which Student's interval exceeds the normal one. How many rows count for that is Kish's effective number (1965, "Survey
Sampling"): fewer if few long rows have most of the tokens.

Rows with equal content say the same about the models, so they are summed and drawn together.

Resampling rows that all differ alike yields one value, an interval of width 0. Differences of scores therefore get two
more rows, one with +1 and one with -1, after Bonett and Price (2012, "Adjusted Wald Confidence Interval for a
Difference of Binomial Proportions Based on Paired Data").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
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
#: Fewer different rows have no interval: their spread is not known well enough.
FEWEST_ROWS = 10
#: If fewer different rows differ between the models, the interval is extended to 0: even if all of them differ in the
#: same direction, a sign test at 5 % finds no difference (2 · 0.5⁵ = 0.06), whereas resampling would.
FEWEST_DIFFERING = 6

#: Differences of scores that are 0 or 1, or 0.5 for a tie.
_STEPS = frozenset({-1.0, -0.5, 0.0, 0.5, 1.0})
#: Fewest degrees of freedom of Student's quantile, below which its expansion is not accurate.
_FEWEST_DEGREES = 3.0

type Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Differences of one metric between two models, by row."""

    differences: Sequence[float]
    """One model's value minus the other's; all finite."""
    weights: Sequence[float]
    """Weight of each row, above 0: its tokens for a mean per token, 1 for a mean per row."""
    contents: Sequence[Hashable] = ()
    """What identifies the content of each row: rows with equal content are one observation. Empty if all differ."""
    score: bool = False
    """Whether the values of both models are scores from 0 to 1."""

    @property
    def mean(self) -> float:
        """The difference of the two means."""
        return sum(self.differences) / sum(self.weights)

    @property
    def different(self) -> int:
        """Number of rows with different content."""
        return len(set(self.contents)) if self.contents else len(self.differences)

    @property
    def differing(self) -> int:
        """Number of rows with different content whose values differ between the models."""
        keys = self.contents or range(len(self.differences))
        return len({key for key, each in zip(keys, self.differences, strict=True) if each})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """What is drawn: sums of differences and weights of rows with equal content, or of groups of such rows."""

    differences: Sequence[float]
    weights: Sequence[float]

    @property
    def effective(self) -> float:
        """Number of units of equal weight whose mean would be as uncertain."""
        return sum(self.weights) ** 2 / sum(each * each for each in self.weights)


def intervals(columns: Sequence[Column]) -> list[Interval | None]:
    """Returns the interval of each column's mean; None for fewer than FEWEST_ROWS rows with different content."""
    found: list[Interval | None] = [None] * len(columns)
    units: dict[int, _Units] = {}
    by_number: defaultdict[int, list[int]] = defaultdict(list)
    for number, column in enumerate(columns):
        if column.different < FEWEST_ROWS:
            continue
        if column.differing:
            units[number] = _units(column)
            by_number[len(units[number].weights)].append(number)
        else:
            found[number] = 0.0, 0.0
    for numbers in by_number.values():
        # All columns of a size share their resamples, since drawing takes most of the time.
        for number, means in zip(numbers, _resampled([units[each] for each in numbers]), strict=True):
            found[number] = _interval(columns[number], means, units[number].effective)
    return found


def _units(column: Column) -> _Units:
    """Returns what is drawn for a column, at most MOST_UNITS."""
    sums: dict[Hashable, tuple[float, float]] = {}
    keys = column.contents or range(len(column.differences))
    for key, difference, weight in zip(keys, column.differences, column.weights, strict=True):
        before = sums.get(key, (0.0, 0.0))
        sums[key] = before[0] + difference, before[1] + weight
    differences, weights = [each for each, _ in sums.values()], [each for _, each in sums.values()]
    if column.score and _nearly_constant([a / b for a, b in sums.values()]):
        typical = sum(weights) / len(weights)
        differences, weights = [*differences, typical, -typical], [*weights, typical, typical]
    number = min(len(weights), MOST_UNITS)
    return _Units(differences=_grouped(differences, number), weights=_grouped(weights, number))


def _nearly_constant(differences: Sequence[float]) -> bool:
    """Whether differences of scores have so few values that resampling them may miss the others."""
    ((_, most),) = Counter(differences).most_common(1)
    return len(differences) - most < FEWEST_DIFFERING or _STEPS.issuperset(differences)


def _resampled(columns: Sequence[_Units]) -> list[list[float]]:
    """Returns the sorted means of each column's resamples. All columns have the same number of units."""
    random = Random(_SEED)  # noqa: S311  not for secrets
    units = len(columns[0].weights)
    means: list[list[float]] = [[] for _ in columns]
    for _ in range(RESAMPLES):
        chosen = itemgetter(*random.choices(range(units), k=units))
        for column, held in zip(columns, means, strict=True):
            held.append(sum(chosen(column.differences)) / sum(chosen(column.weights)))
    return [sorted(each) for each in means]


def _grouped(values: Sequence[float], units: int) -> Sequence[float]:
    """Returns the sums of ``units`` random groups of ``values``; the same groups for every list of the same length."""
    if len(values) <= units:
        return values
    order = list(range(len(values)))
    Random(_SEED).shuffle(order)  # noqa: S311
    return [sum(values[place] for place in order[unit::units]) for unit in range(units)]


def _interval(column: Column, means: Sequence[float], effective: float) -> Interval:
    tail = _tail(effective)
    low, high = _quantile(means, tail), _quantile(means, 1 - tail)
    if column.differing < FEWEST_DIFFERING:
        return min(low, 0.0), max(high, 0.0)
    return low, high


def _tail(units: float) -> float:
    """Returns the share of resamples outside either bound."""
    normal, degrees = NormalDist(), max(units - 1, _FEWEST_DEGREES)
    z = normal.inv_cdf((1 + CONFIDENCE) / 2)
    # Student's quantile after Abramowitz and Stegun 26.7.5; from 3 degrees of freedom on, its error is below 1 %.
    student = (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
    return normal.cdf(-student * math.sqrt(1 + 1 / degrees))


def _quantile(ascending: Sequence[float], share: float) -> float:
    """Returns a quantile by linear interpolation between order statistics."""
    place = share * (len(ascending) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])
