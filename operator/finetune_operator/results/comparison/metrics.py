"""Compares metrics: by row where there are values of single rows, else by means alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from finetune_operator.results.comparison.bootstrap import (
    FEWEST_DIFFERING,
    FEWEST_ROWS,
    Column,
    Interval,
    intervals,
)
from finetune_operator.results.comparison.model import (
    Contrast,
    Direction,
    MetricComparison,
    MetricValue,
    Verdict,
)
from finetune_operator.results.comparison.pairing import CommonRows
from finetune_operator.results.comparison.row_metrics import (
    MetricRows,
    mean,
    metric_rows,
    row_metrics,
)
from finetune_operator.results.comparison.settings import (
    direction_of,
    why_not_comparable,
)
from finetune_operator.results.records import RunRecords

type Model = Literal["baseline", "tuned"]
type Columns = dict[tuple[str, bool], Column | str]
"""Differences, or why there are none, by label of the run, and whether from the base model."""


def metric_comparisons(
    runs: Mapping[str, RunRecords], common: CommonRows, measured: Sequence[str], *, reference: str
) -> list[MetricComparison]:
    """Compares all metrics of evaluated runs with those of the reference.

    Args:
        runs: the evaluated runs by label.
        common: the rows that all runs in ``measured`` have.
        measured: labels of the runs with rows, in the order of ``common.rows``; the others have means alone.
        reference: label of the reference. If it is not among ``runs``, there are no differences from it.
    """
    tables = [metric_rows(metric, common, measured) for metric in row_metrics(common)]
    columns = [_columns(table, runs, reference) for table in tables]
    bounds = iter(
        intervals([each for found in columns for each in found.values() if isinstance(each, Column)])
    )

    def by_means(name: str, label: str) -> MetricValue:
        return _value_of_means(name, runs, label, reference, same_rows=common.complete)

    comparisons = []
    for table, differences in zip(tables, columns, strict=True):
        name = table.metric.name
        contrasts = {
            key: _contrast(column, next(bounds), direction_of(name))
            if isinstance(column, Column)
            else Contrast(verdict=Verdict.NOT_COMPARABLE, reason=column)
            for key, column in differences.items()
        }
        by_row = {
            label: MetricValue(
                job=label,
                value=mean(table.tuned.get(label, ())),
                baseline=mean(table.baseline.get(label, ())),
                from_reference=contrasts.get((label, False)),
                from_baseline=contrasts.get((label, True)),
            )
            for label in measured
        }
        comparisons.append(
            MetricComparison(
                name=name,
                kind=table.metric.kind,
                direction=direction_of(name),
                rows=table.rows,
                different_rows=table.different,
                values=[by_row.get(label) or by_means(name, label) for label in runs],
            )
        )
    # Perplexity is the exponential of the loss, and has its verdict.
    covered = {each.name for each in comparisons} | {"perplexity"}
    names = dict.fromkeys(name for run in runs.values() for name in _means(run, "tuned"))
    comparisons += [
        MetricComparison(
            name=name,
            kind=None,
            direction=direction_of(name),
            rows=None,
            different_rows=None,
            values=[by_means(name, label) for label in runs],
        )
        for name in names
        if name not in covered
    ]
    return comparisons


def _columns(table: MetricRows, runs: Mapping[str, RunRecords], reference: str) -> Columns:
    """Returns the differences of each run from the reference, and from its base model."""
    found: Columns = {}
    for label in table.tuned:
        if label in table.baseline:
            found[label, True] = table.from_baseline(label)
        if label == reference or reference not in table.tuned:
            continue
        why = why_not_comparable(
            runs[reference],
            runs[label],
            table.metric.name,
            pairs=table.pairs,
            benchmark=table.metric.kind == "Benchmark",
        )
        found[label, False] = why or table.from_reference(reference, label)
    return found


def _contrast(differences: Column, interval: Interval | None, direction: Direction) -> Contrast:
    difference, differing = differences.mean, differences.differing
    reason = None
    if interval is None:
        equal = differences.different < len(differences.differences)
        reason = f"an interval needs {FEWEST_ROWS} {'different ' if equal else ''}rows"
    elif 0 < differing < FEWEST_DIFFERING:
        reason = f"only {differing} row{'s differ' if differing > 1 else ' differs'}"
    return Contrast(
        verdict=_verdict(difference, differing, interval, direction),
        difference=difference,
        interval=interval,
        smallest=(interval[1] - interval[0]) / 2 if interval and differing else None,
        reason=reason,
    )


def _verdict(difference: float, differing: int, interval: Interval | None, direction: Direction) -> Verdict:
    if interval is None:
        return Verdict.TOO_FEW_ROWS
    if not differing:
        return Verdict.IDENTICAL
    if interval[0] <= 0 <= interval[1]:
        return Verdict.NO_DIFFERENCE
    if direction is Direction.UNKNOWN:
        return Verdict.HIGHER if difference > 0 else Verdict.LOWER
    return Verdict.BETTER if (difference < 0) == (direction is Direction.LOWER) else Verdict.WORSE


def _value_of_means(
    name: str, runs: Mapping[str, RunRecords], label: str, reference: str, *, same_rows: bool
) -> MetricValue:
    """Returns a metric of a run as it is recorded."""
    tuned, base = _means(runs[label], "tuned").get(name), _means(runs[label], "baseline").get(name)
    contrast = None
    if label != reference and reference in runs:
        contrast = _difference(_means(runs[reference], "tuned").get(name), tuned)
        why = _why_not(name, runs[reference], runs[label], same_rows=same_rows)
        if contrast and why:
            contrast = Contrast(verdict=Verdict.NOT_COMPARABLE, reason=why)
    return MetricValue(
        job=label,
        value=tuned,
        baseline=base,
        from_reference=contrast,
        from_baseline=_difference(base, tuned),
    )


def _means(run: RunRecords, model: Model) -> Mapping[str, float]:
    return run.evaluation.metrics(model) if run.evaluation else {}


def _why_not(name: str, first: RunRecords, second: RunRecords, *, same_rows: bool) -> str | None:
    """Returns why the recorded means of two runs are not comparable; None if they are."""
    prefix = name.rpartition("/")[0]
    accuracy = f"{prefix}/reward_accuracy" if prefix else "reward_accuracy"
    benchmarks = {each.name for each in first.request.evaluation.benchmarks} if first.request else set()
    why = why_not_comparable(
        first,
        second,
        name,
        pairs=accuracy in _means(first, "tuned") or accuracy in _means(second, "tuned"),
        benchmark=prefix.partition("/")[0] in benchmarks,
    )
    return why if why or same_rows else "the means are over different rows"


def _difference(before: float | None, after: float | None) -> Contrast | None:
    if before is None or after is None:
        return None
    difference = after - before
    if not math.isfinite(difference):
        return Contrast(verdict=Verdict.NOT_COMPARABLE, reason="a value is not a finite number")
    reason = "there are no values of single rows"
    return Contrast(verdict=Verdict.NO_INTERVAL, difference=difference, reason=reason)
