"""The points of a series as a chart draws them: without values that are not finite, and no more than it can show."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

type Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Named values over x."""

    name: str
    points: Sequence[tuple[float, float | None]]
    """(x, y) in any order. A y that is None or not finite is a gap; a point whose x is not finite is ignored."""

    @property
    def finite(self) -> list[Point]:
        """The points with a value, ascending by x."""
        return [(x, y) for x, y in self._ordered if y is not None and math.isfinite(y)]

    @property
    def not_finite(self) -> list[float]:
        """The x of each value that is NaN or infinite, ascending."""
        return sorted(x for x, y in self.points if y is not None and not math.isfinite(y))

    @property
    def _ordered(self) -> list[tuple[float, float | None]]:
        return sorted((each for each in self.points if math.isfinite(each[0])), key=lambda each: each[0])

    def runs(self, low: float, high: float, columns: int) -> list[list[Point]]:
        """Returns the consecutive points between gaps, of each column of a chart at most four.

        A column keeps its first, smallest, largest and last value. Gaps inside of a column are left out if it has more
        than four values, since they are narrower than a line.

        Args:
            low: x at the left edge.
            high: x at the right edge, larger than ``low``.
            columns: number of columns.
        """
        found: list[list[Point]] = [[]]
        width = (high - low) / columns
        for _, column in groupby(
            self._ordered, key=lambda each: math.floor((min(max(each[0], low), high) - low) / width)
        ):
            for point in _thinned(list(column)):
                if point is None:
                    if found[-1]:
                        found.append([])
                else:
                    found[-1].append(point)
        return [each for each in found if each]


def _thinned(column: Sequence[tuple[float, float | None]]) -> Iterator[Point | None]:
    """Yields the points of one column that are drawn; None for a gap."""
    points = [(x, y) if y is not None and math.isfinite(y) else None for x, y in column]
    values = [each for each in points if each is not None]
    if len(values) <= 4:
        # Consecutive gaps are one.
        yield from (point for point, _ in groupby(points))
        return
    kept = {
        0,
        min(range(len(values)), key=lambda at: values[at][1]),
        max(range(len(values)), key=lambda at: values[at][1]),
        len(values) - 1,
    }
    if points[0] is None:
        yield None
    yield from (values[at] for at in sorted(kept))
    if points[-1] is None:
        yield None
