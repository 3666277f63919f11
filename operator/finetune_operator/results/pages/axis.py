"""Axes with round ticks."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Values beyond it are drawn at the edge of the chart, so that no difference of two values overflows.
LARGEST = 1e300
#: Spread of values, relative to the largest, below which they are drawn as one constant.
_CONSTANT = 1e-9
_SMALLEST_SPREAD = 1e-290


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The range of an axis and its ticks. Both ends of the range are finite, and the second one is larger."""

    low: float
    high: float
    ticks: Sequence[float]
    """Round values inside the range, ascending; at least one."""
    labels: Sequence[str]
    """One for each tick."""

    def place(self, value: float) -> float:
        """Returns the value's place on the axis, from 0 to 1."""
        return (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


def axis(values: Iterable[float], *, ticks: int = 5, whole: bool = False) -> Axis:
    """Returns an axis that holds all finite values.

    Args:
        values: any numbers; those that are not finite are ignored.
        ticks: the most ticks.
        whole: whether only whole numbers get a tick.
    """
    held = [min(max(each, -LARGEST), LARGEST) for each in values if math.isfinite(each)] or [0.0, 1.0]
    low, high = _spread(min(held), max(held))
    step = _step((high - low) / ticks)
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step), math.floor(high / step)
    if whole and first > last:
        low, high = math.floor(low), math.ceil(high)
        first, last = low, high
    places = [number * step for number in range(first, last + 1)]
    return Axis(low=low, high=high, ticks=places, labels=[_label(each, step) for each in places])


def number_text(value: float) -> str:
    """Returns a value with about four digits: ``0.0123``, ``12,345``, ``1.5e9``; ``nan`` and ``inf`` of others."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:,.4g}" if value else "0"
    if abs(value) < 1e7 and abs(value) >= 1:
        return f"{value:,.0f}"
    return _scientific(f"{value:.3e}")


def _spread(low: float, high: float) -> tuple[float, float]:
    """Returns the range, wider if it is as good as empty."""
    largest = max(abs(low), abs(high))
    if high - low > max(largest * _CONSTANT, _SMALLEST_SPREAD):
        return low, high
    margin = largest / 2 if largest > _SMALLEST_SPREAD else 1.0
    return low - margin, high + margin


def _step(least: float) -> float:
    """Returns the smallest of 1, 2 and 5 times a power of ten that is at least ``least``."""
    # A power of a float would be wrong in its last digit.
    power = float(f"1e{math.floor(math.log10(least))}")
    return next(each * power for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-12))


def _label(value: float, step: float) -> str:
    """Returns a tick's value with the digits that tell it from the next tick."""
    exponent = math.floor(math.log10(step) + 1e-9)
    size = max(abs(value), step)
    if 1e-4 <= size < 1e7:
        return f"{value:,.{max(0, -exponent)}f}"
    if value == 0:
        return "0"
    digits = max(0, math.floor(math.log10(abs(value))) - exponent)
    return _scientific(f"{value:.{digits}e}")


def _scientific(text: str) -> str:
    """Shortens ``1.500e+09`` to ``1.5e9``."""
    number, _, power = text.partition("e")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}e{int(power)}"
