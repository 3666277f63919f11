"""The measurements of each training step (``train/metrics.jsonl``), as columns."""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from finetune_operator.comparison.json_lines import numbered_lines

#: Number of different metrics; others are left out. A method has at most 16, and a job 8 validation sets.
_MOST_METRICS = 64
#: Length of a line in bytes, and of a metric's name in characters.
_LINE_BYTES, _NAME = 8 * 2**10, 128
_MOST_STEP = 2**53


@dataclass(slots=True)
class MetricColumn:
    """One metric: its values, which may be NaN or infinite, and their steps, in the order of the steps."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def append(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetrics:
    """The columns by the names of their metrics: ``loss``, ``evaluation_loss``, ``seconds``, ``reward_margin`` …"""

    columns: dict[str, MetricColumn]
    rejected: int = 0
    """Number of lines that are not valid."""
    first_fault: str = ""
    """Number of the first of them and what is wrong with it; empty if there is none."""

    def column(self, name: str) -> MetricColumn:
        """Returns a column; an empty one if nothing of that name was measured."""
        return self.columns.get(name) or MetricColumn()


def training_metrics(content: bytes, *, most_lines: int) -> TrainingMetrics:
    """Parses metrics.jsonl: objects with ``step`` and numbers by name. Other values in them are ignored.

    Raises:
        ValueError: there are more than ``most_lines`` lines.
    """
    if content.count(b"\n") > most_lines:
        raise ValueError(f"more than {most_lines:,} lines")
    columns: dict[str, MetricColumn] = {}
    rejected, first_fault = 0, ""
    for number, line in numbered_lines(content, _LINE_BYTES):
        try:
            step, values = _parsed(line)
        except ValueError as error:
            rejected += 1
            first_fault = first_fault or f"line {number}: {str(error)[:128]}"
            continue
        for name, value in values:
            column = columns.get(name)
            if column is None:
                if len(columns) == _MOST_METRICS or len(name) > _NAME:
                    continue
                column = columns[name] = MetricColumn()
            column.append(step, value)
    ordered = {name: column.ordered() for name, column in columns.items()}
    return TrainingMetrics(columns=ordered, rejected=rejected, first_fault=first_fault)


def _parsed(line: bytes | None) -> tuple[int, Iterator[tuple[str, float]]]:
    if line is None:
        raise ValueError(f"longer than {_LINE_BYTES:,} bytes")
    # The trainer writes NaN and Infinity as Python does.
    document: Any = from_json(line, allow_inf_nan=True)
    step = document.get("step") if isinstance(document, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _MOST_STEP:
        raise ValueError("it has no step")
    found = ((name, _number(each)) for name, each in document.items() if name != "step")
    return step, ((name, value) for name, value in found if value is not None)


def _number(value: object) -> float | None:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        # An integer of hundreds of digits is no measurement, and no float.
        return float(value) if abs(value) <= _MOST_STEP else None
    return None
