"""The charts of a training: losses, throughput, and what else was measured at each step."""

from collections.abc import Iterator, Sequence
from itertools import islice

from finetune_contract.method import PreferenceMethod
from finetune_operator.results.comparison.throughput import rates
from finetune_operator.results.pages.series import Series
from finetune_operator.results.records import RunRecords, decimal_at, list_at, whole_at
from finetune_operator.results.report.model import MetricCurve
from finetune_operator.results.training_metrics import TrainingMetrics

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


def loss_curve(run: RunRecords) -> MetricCurve | None:
    """Returns the chart of training and validation losses; without metrics.jsonl the thinned curve in the progress."""
    # Taken one after the other: the points of a column take ten times the memory of the column.
    measured = (line for line in _losses(run.metrics) if line.points)
    shown = list(islice(measured, _MOST_LINES))
    if not shown and (thinned := _thinned(run)):
        shown = [_series("training loss", thinned)]
    if not shown:
        return None
    pairs = run.request is not None and isinstance(run.request.method, PreferenceMethod)
    unit = "nats" if run.request is None else "nats per pair" if pairs else "nats per token"
    return MetricCurve(title="Loss", unit=unit, series=shown)


def other_curves(metrics: TrainingMetrics) -> Iterator[MetricCurve]:
    """Yields the charts of throughput, gradient norm, learning rate and the method's own metrics, as far as they were
    measured."""
    yield from _speed(metrics)
    own = [name for name in metrics.names if name not in _KNOWN and "/" not in name]
    for name, title in (
        ("gradient_norm", "Gradient norm"),
        ("learning_rate", "Learning rate"),
        *((name, name) for name in own[:_MOST_OWN]),
    ):
        line = _series(title, metrics.column(name).points())
        if line.points:
            yield MetricCurve(title=title, unit="", series=[line])


def _losses(metrics: TrainingMetrics) -> Iterator[Series]:
    yield _series("training loss", metrics.column("loss").points())
    yield _series("validation loss", metrics.column("evaluation_loss").points())
    for name in metrics.names:
        if name.endswith("/loss"):
            yield _series(f"validation: {name.removesuffix('/loss')}", metrics.column(name).points())


def _thinned(run: RunRecords) -> list[tuple[int, float]]:
    if run.progress and run.progress.curve:
        return sorted(run.progress.curve)
    found = []
    for point in list_at(run.status, "progress", "curve", "points"):
        step, value = whole_at(point, "step"), decimal_at(point, "value")
        if step is not None and value is not None:
            found.append((step, float(value)))
    return sorted(found)


def _series(name: str, points: Sequence[tuple[int, float]]) -> Series:
    return Series(name=name[:128], points=points)


def _speed(metrics: TrainingMetrics) -> Iterator[MetricCurve]:
    steps, points = rates(metrics, _WINDOWS)
    unit = "trained tokens per second"
    line = Series(name=unit if steps == 1 else f"{unit}, mean of {steps} steps", points=points)
    if points:
        yield MetricCurve(title="Throughput", unit=unit, series=[line])
