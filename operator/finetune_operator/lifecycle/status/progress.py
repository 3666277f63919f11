"""``status.progress`` and ``status.goodput``, from the progress record of the training."""

import math
from collections.abc import Sequence

from finetune_contract import Progress, TrainOutcome
from finetune_operator.api.numbers import decimal, mebibytes
from finetune_operator.api.status_resolved import SecondsRange
from finetune_operator.api.status_stages import (
    Curve,
    CurvePoint,
    GoodputSeconds,
    GoodputStatus,
    MetricPoint,
    ProgressStatus,
    StartupSeconds,
    StepTime,
)
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.attempts.wait_times import WaitTimes

#: Higher numbers are no step counts; a larger integer does not fit into a float.
_MOST_STEPS = 2**53
_BARS = "▁▂▃▄▅▆▇█"


def progress_status(
    progress: Progress | None,
    outcome: TrainOutcome | None,
    previous: ProgressStatus | None,
    *,
    pace: float,
    moved: bool,
) -> ProgressStatus | None:
    """Returns ``status.progress``: ``previous`` itself if it is too early for a new report.

    Args:
        progress: the trainer's newest record.
        outcome: the outcome of the finished training, which has no time left.
        previous: ``status.progress`` as it is.
        pace: seconds between two reports while nothing but the step changes.
        moved: whether stage, attempt or conditions have changed, so that the status is written anyway.
    """
    if progress is None:
        return previous if outcome is None else None
    if (
        previous
        and not moved
        and previous.last_update_time is not None
        and progress.step != progress.total_steps
        and 0 <= (progress.updated - previous.last_update_time).total_seconds() < pace
    ):
        return previous
    eta = _eta(progress) if outcome is None else None
    return ProgressStatus.model_construct(
        step=progress.step,
        total_steps=progress.total_steps,
        step_text=f"{progress.step}/{progress.total_steps}",
        percent=100 * progress.step // max(1, progress.total_steps),
        eta_seconds=eta,
        eta_text=eta_text(eta.low, eta.high) if eta else None,
        step_time_milliseconds=_step_time(progress),
        tokens_per_second=None if progress.tokens_per_second is None else decimal(progress.tokens_per_second),
        mfu_percent=None if progress.mfu is None else decimal(100 * progress.mfu),
        peak_hbm=None if progress.peak_memory_bytes is None else mebibytes(progress.peak_memory_bytes),
        metrics=_metrics(progress),
        curve=_curve(progress),
        last_update_time=whole_second(progress.updated),
    )


def goodput_status(progress: Progress | None, waits: WaitTimes) -> GoodputStatus | None:
    """Returns ``status.goodput`` over all attempts of Train; None before the training has measured anything."""
    if progress is None:
        return None
    measured = progress.seconds
    # Keys of the progress record, by the names in the status.
    imports, data, weights, compilation, first_step = (
        measured.get(name, 0.0) for name in ("startup", "data", "restore", "compile", "first_step")
    )
    productive, evaluation, recomputed = (
        measured.get(name, 0.0) for name in ("productive", "evaluate", "recomputed")
    )
    startup = imports + data + weights + compilation + first_step
    spent = (startup, productive, evaluation, recomputed)
    parts = (*spent, imports, data, weights, compilation, first_step)
    if not math.isfinite(sum(spent)) or sum(spent) <= 0 or min(parts) < 0:
        return None
    whole = sum((waits.queued, waits.provisioning, *spent))
    return GoodputStatus.model_construct(
        percent=f"{100 * (productive / whole):.1f}",
        seconds=GoodputSeconds.model_construct(
            queued=round(waits.queued),
            provisioning=round(waits.provisioning),
            startup=round(startup),
            productive=round(productive),
            evaluation=round(evaluation),
            recomputed=round(recomputed),
        ),
        startup=StartupSeconds.model_construct(
            pods=round(waits.pods),
            imports=round(imports),
            data=round(data),
            weights=round(weights),
            compilation=round(compilation),
            first_step=round(first_step),
        ),
        compilations=progress.compilations,
    )


def eta_text(low: int, high: int) -> str:
    """Returns ``18-24m``, ``40-55s`` or ``2-3h``; one number if both are equal."""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if high >= 2 * size or size == 1:
            first, last = low // size, -(-high // size)
            return f"{last}{unit}" if first == last else f"{first}-{last}{unit}"
    raise AssertionError("seconds always fit")


def sparkline(values: Sequence[float]) -> str:
    """Returns the course of the values in one line, from lowest to highest."""
    low, high = min(values), max(values)
    # Halved, because the difference of two floats may not be finite.
    span = high / 2 - low / 2
    return "".join(
        _BARS[round((value / 2 - low / 2) / span * (len(_BARS) - 1)) if span else 0] for value in values
    )


def _step_time(progress: Progress) -> StepTime | None:
    p50, p95 = _whole(progress.step_time_p50, 1000), _whole(progress.step_time_p95, 1000)
    return None if p50 is None or p95 is None else StepTime.model_construct(p50=p50, p95=p95)


def _eta(progress: Progress) -> SecondsRange | None:
    left = progress.total_steps - progress.step
    if not 0 < left < _MOST_STEPS:
        return None
    low, high = _whole(progress.step_time_p50, left, up=True), _whole(progress.step_time_p95, left, up=True)
    return None if low is None or high is None else SecondsRange.model_construct(low=low, high=max(low, high))


def _curve(progress: Progress) -> Curve | None:
    points = [(step, loss) for step, loss in progress.curve if math.isfinite(loss)]
    if not points:
        return None
    return Curve.model_construct(
        metric="loss",
        sparkline=sparkline([loss for _, loss in points]),
        points=tuple(CurvePoint.model_construct(step=step, value=decimal(loss)) for step, loss in points),
    )


def _metrics(progress: Progress) -> tuple[MetricPoint, ...]:
    measured: list[tuple[str, float | None, int]] = [
        ("loss", progress.metrics.loss, progress.step),
        ("perplexity", progress.metrics.perplexity, progress.step),
        ("gradient_norm", progress.metrics.gradient_norm, progress.step),
        ("learning_rate", progress.metrics.learning_rate, progress.step),
        *((name, value, progress.step) for name, value in progress.metrics.method_metrics.items()),
    ]
    if evaluation := progress.evaluation:
        measured += [
            ("eval_loss", evaluation.loss, evaluation.step),
            ("eval_perplexity", evaluation.perplexity, evaluation.step),
            *((f"{name}/loss", loss, evaluation.step) for name, loss in evaluation.by_set.items()),
            *((f"eval_{name}", value, evaluation.step) for name, value in evaluation.method_metrics.items()),
        ]
    found: dict[str, MetricPoint] = {}
    for name, value, step in measured:
        # A record may use the name of another metric; the status holds each name once.
        if value is not None and math.isfinite(value) and name not in found:
            found[name] = MetricPoint.model_construct(name=name, value=decimal(value), step=step)
    return tuple(found.values())


def _whole(value: float | None, factor: int, *, up: bool = False) -> int | None:
    """Returns ``factor * value``, rounded or rounded up; None if it is not a number."""
    product = None if value is None else factor * value
    if product is None or not math.isfinite(product):
        return None
    return math.ceil(product) if up else round(product)
