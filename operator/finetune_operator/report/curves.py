"""The charts of a training: losses, throughput, and what else was measured at each step."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from finetune_contract.method import PreferenceMethod
from finetune_operator.comparison import RunRecords
from finetune_operator.comparison.records import decimal_at, lookup, whole_at
from finetune_operator.report.metrics import TrainingMetrics
from finetune_operator.report.model import MetricCurve, NamedPoints, Throughput

#: Points of the throughput.
_WINDOWS = 200
#: Lines of one chart, and charts of the method's own metrics.
_MOST_LINES, _MOST_OWN = 9, 6
#: Columns that are no metrics of a method.
_KNOWN = frozenset(
    {
        "loss", "evaluation_loss", "evaluation_tokens", "perplexity", "gradient_norm", "learning_rate", "tokens",
        "seconds",
    }
)  # fmt: skip


def loss_curve(run: RunRecords, metrics: TrainingMetrics | None) -> MetricCurve | None:
    """Returns the chart of training and validation losses; without metrics.jsonl the thinned curve in the progress."""
    # Taken one after the other: the points of a column take ten times the memory of the column.
    measured = (line for line in _losses(metrics) if line.points) if metrics else iter(())
    shown = list(islice(measured, _MOST_LINES))
    if not shown and (thinned := _thinned(run)):
        shown = [_series("training loss", thinned)]
    if not shown:
        return None
    return MetricCurve(title="Loss", unit=_unit(run), series=shown)


def other_curves(metrics: TrainingMetrics | None) -> list[MetricCurve]:
    """Returns the charts of gradient norm, learning rate and the method's own metrics, as far as they were measured."""
    if metrics is None:
        return []
    own = [name for name in metrics.columns if name not in _KNOWN and "/" not in name]
    found = []
    for name, title in (
        ("gradient_norm", "Gradient norm"),
        ("learning_rate", "Learning rate"),
        *((name, name) for name in own[:_MOST_OWN]),
    ):
        line = _series(title, metrics.column(name).points())
        if line.points:
            found.append(MetricCurve(title=title, unit="", series=[line]))
    return found


def throughput(run: RunRecords, metrics: TrainingMetrics | None) -> Throughput | None:
    """Returns speed and memory of the training; None before anything was measured."""
    seconds = sorted(
        value for _, value in (metrics.column("seconds").finite() if metrics else ()) if value > 0
    )
    progress, status = run.progress, run.status
    found = Throughput(
        median_step_seconds=_percentile(seconds, 0.5) or (progress.step_time_p50 if progress else None),
        p95_step_seconds=_percentile(seconds, 0.95) or (progress.step_time_p95 if progress else None),
        slowest_step_seconds=seconds[-1] if seconds else None,
        tokens_per_second=_mean_rate(metrics) or (_finite(progress.tokens_per_second) if progress else None),
        mfu=_finite(progress.mfu) if progress else None,
        peak_memory_bytes=progress.peak_memory_bytes if progress else None,
        compilations=progress.compilations if progress else whole_at(status, "goodput", "compilations"),
        curve=_speed(metrics) if metrics else None,
    )
    measured = (found.median_step_seconds, found.tokens_per_second, found.peak_memory_bytes, found.curve)
    return found if any(each is not None for each in measured) else None


def _unit(run: RunRecords) -> str:
    if run.request is None:
        return "nats"
    return "nats per pair" if isinstance(run.request.method, PreferenceMethod) else "nats per token"


def _losses(metrics: TrainingMetrics) -> Iterator[NamedPoints]:
    yield _series("training loss", metrics.column("loss").points())
    yield _series("validation loss", metrics.column("evaluation_loss").points())
    for name, column in metrics.columns.items():
        if name.endswith("/loss"):
            yield _series(f"validation: {name.removesuffix('/loss')}", column.points())


def _thinned(run: RunRecords) -> list[tuple[int, float]]:
    if run.progress and run.progress.curve:
        return sorted(run.progress.curve)
    points = lookup(run.status, "progress", "curve", "points")
    found = []
    for point in points if isinstance(points, list) else ():
        step, value = whole_at(point, "step"), decimal_at(point, "value")
        if step is not None and value is not None:
            found.append((step, float(value)))
    return sorted(found)


def _series(name: str, points: Sequence[tuple[int, float]]) -> NamedPoints:
    others = [step for step, value in points if not math.isfinite(value)]
    return NamedPoints(
        name=name[:128],
        points=points,
        not_finite=len(others),
        first_not_finite=min(others, default=None),
    )


def _speed(metrics: TrainingMetrics) -> MetricCurve | None:
    """Returns tokens per second: sums over groups of consecutive steps, since single steps vary."""
    steps = _timed(metrics)
    if len(steps) < 2:
        return None
    groups = min(_WINDOWS, len(steps))
    points = []
    for group in range(groups):
        some = steps[group * len(steps) // groups : (group + 1) * len(steps) // groups]
        rate = sum(each[1] for each in some) / sum(each[2] for each in some)
        if math.isfinite(rate):
            points.append((some[-1][0], rate))
    if not points:
        return None
    each = -(-len(steps) // groups)
    unit = "trained tokens per second"
    line = NamedPoints(name=unit if each == 1 else f"{unit}, mean of {each} steps", points=points)
    return MetricCurve(title="Throughput", unit=unit, series=[line])


def _timed(metrics: TrainingMetrics) -> list[tuple[int, float, float]]:
    """Returns step, trained tokens and seconds of each step whose time contains nothing else."""
    tokens = dict(metrics.column("tokens").finite())
    return [
        (step, tokens[step], seconds)
        for step, seconds in metrics.column("seconds").finite()
        if seconds > 0 and tokens.get(step, -1) >= 0
    ]


def _mean_rate(metrics: TrainingMetrics | None) -> float | None:
    """Returns the tokens per second of all steps: the progress record has those of the last ones."""
    steps = _timed(metrics) if metrics else []
    return _finite(sum(each[1] for each in steps) / sum(each[2] for each in steps)) if steps else None


def _percentile(ascending: Sequence[float], share: float) -> float | None:
    if not ascending:
        return None
    return ascending[min(len(ascending) - 1, math.ceil(share * len(ascending)) - 1)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
