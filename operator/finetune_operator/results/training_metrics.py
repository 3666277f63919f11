"""The measurements of each training step (``train/metrics.jsonl``), as columns."""

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

#: Number of different metrics; others are left out. A method has at most 16, and a job 8 validation sets.
_MOST_METRICS = 64
#: Length of a metric's name in characters.
_NAME = 128
_MOST_STEP = 2**53


@dataclass(slots=True)
class MetricColumn:
    """One metric: its values, which may be NaN or infinite, and their steps."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def points(self) -> list[tuple[int, float]]:
        """Returns step and value of each measurement."""
        return list(zip(self.steps, self.values, strict=True))

    def finite(self) -> list[tuple[int, float]]:
        """Returns step and value of each measurement that is a finite number."""
        return [point for point in self.points() if math.isfinite(point[1])]

    def ordered(self) -> "MetricColumn":
        """Returns the column with ascending steps; of several values at one step the last."""
        if all(a < b for a, b in zip(self.steps, self.steps[1:], strict=False)):
            return self
        latest = dict(zip(self.steps, self.values, strict=True))
        steps = sorted(latest)
        return MetricColumn(array("q", steps), array("d", (latest[step] for step in steps)))


class TrainingMetrics:
    """The columns by the names of their metrics: ``loss``, ``evaluation_loss``, ``seconds``, ``reward_margin`` …"""

    def __init__(self) -> None:
        self._columns: dict[str, MetricColumn] = {}

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def column(self, name: str) -> MetricColumn:
        """Returns a column in the order of the steps; an empty one if nothing of that name was measured."""
        return self._columns.get(name, MetricColumn()).ordered()

    def take(self, line: bytes) -> None:
        """Adds the numbers of a line, an object with ``step`` and numbers by name. Other values in it are ignored.

        Raises:
            ValueError: the line is none.
        """
        # The trainer writes NaN and Infinity as Python does.
        document: Any = from_json(line, allow_inf_nan=True)
        step = document.get("step") if isinstance(document, dict) else None
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _MOST_STEP:
            raise ValueError("it has no step")
        for name, value in document.items():
            if name == "step" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            # An integer of hundreds of digits is no measurement, and no float.
            if isinstance(value, int) and abs(value) > _MOST_STEP:
                continue
            if name not in self._columns and (len(self._columns) == _MOST_METRICS or len(name) > _NAME):
                continue
            column = self._columns.setdefault(name, MetricColumn())
            column.steps.append(step)
            column.values.append(value)
