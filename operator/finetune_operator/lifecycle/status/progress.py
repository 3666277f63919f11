"""What runs reports of itself: ``status.progress`` and ``status.goodput`` of the training, ``status.stages[].progress``
of any stage."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from finetune_contract import Progress, StageProgress, TrainOutcome
from finetune_operator.api.numbers import decimal, mebibytes
from finetune_operator.api.status_resolved import SecondsRange
from finetune_operator.api.status_stages import (
    Curve,
    CurvePoint,
    GoodputSeconds,
    GoodputStatus,
    MetricPoint,
    ProgressStatus,
    StageProgressStatus,
    StageStatus,
    StartupSeconds,
    StepTime,
)
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.wait_times import WaitTimes
from finetune_operator.lifecycle.children.pods import last_start
from finetune_operator.lifecycle.fitting import copied
from finetune_operator.lifecycle.observation import Observation

#: Higher numbers are no step counts; a larger integer does not fit into a float.
_MOST_STEPS = 2**53
_BARS = "▁▂▃▄▅▆▇█"
#: Parts of the time until the first step, and of the time since: names in the status, and in the progress record.
_STARTUP = {
    "imports": "startup",
    "data": "data",
    "weights": "restore",
    "compilation": "compile",
    "first_step": "first_step",
}
_MEASURED = {"productive": "productive", "evaluation": "evaluate", "recomputed": "recomputed"}


def progress_status(progress: Progress, outcome: TrainOutcome | None) -> ProgressStatus:
    """Returns ``status.progress``. ``outcome``: that of the finished training, which has no time left."""
    eta = _eta(progress) if outcome is None else None
    return copied(
        ProgressStatus,
        progress,
        step_text=f"{progress.step}/{progress.total_steps}",
        percent=100 * progress.step // max(1, progress.total_steps),
        eta_seconds=eta,
        eta_text=eta_text(eta.low, eta.high) if eta else None,
        step_time_milliseconds=_step_time(progress),
        mfu_percent=None if progress.mfu is None else decimal(100 * progress.mfu),
        peak_hbm=None if progress.peak_memory_bytes is None else mebibytes(progress.peak_memory_bytes),
        metrics=_metrics(progress),
        curve=_curve(progress),
        last_update_time=whole_second(progress.updated),
    )


def goodput_status(progress: Progress, waits: WaitTimes) -> GoodputStatus | None:
    """Returns ``status.goodput`` over all attempts of Train; None before the training has measured anything."""
    startup = {name: progress.seconds.get(phase, 0.0) for name, phase in _STARTUP.items()}
    measured = {name: progress.seconds.get(phase, 0.0) for name, phase in _MEASURED.items()}
    spent = {"startup": sum(startup.values())} | measured
    total = sum(spent.values())
    if not math.isfinite(total) or total <= 0 or min(*spent.values(), *startup.values()) < 0:
        return None
    waited = {"queued": waits.queued, "provisioning": waits.provisioning}
    return GoodputStatus.model_construct(
        percent=f"{100 * (spent['productive'] / (total + sum(waited.values()))):.1f}",
        seconds=GoodputSeconds.model_construct(**_rounded(waited | spent)),
        startup=StartupSeconds.model_construct(**_rounded({"pods": waits.pods} | startup)),
        compilations=progress.compilations,
    )


def _rounded(seconds: Mapping[str, float]) -> dict[str, Any]:
    return {name: round(value) for name, value in seconds.items()}


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


def with_stage_progress(
    statuses: tuple[StageStatus, ...], attempt: Attempt, progress: StageProgressStatus
) -> tuple[StageStatus, ...]:
    """Returns ``status.stages`` with the progress of the running attempt."""
    return tuple(
        status.model_copy(update={"progress": progress}) if status.name is attempt.key.stage else status
        for status in statuses
    )


def described(progress: StageProgressStatus) -> str:
    """Returns the progress for a sentence: ``converting the weights, 12 of 37 tensors``."""
    if progress.unit is None:
        return progress.doing
    total = "" if progress.total is None else f" of {progress.total:,}"
    return f"{progress.doing}, {progress.done:,}{total} {progress.unit}"


def stage_progress_status(attempt: Attempt, observation: Observation) -> StageProgressStatus | None:
    """Returns what the running attempt reports that it does; None if it has reported nothing."""
    record, begun = observation.folder.stage_progress.get(attempt.key), last_start(attempt.pods)
    # A run before an eviction or a replaced pod may have written the record.
    if record is None or (begun is not None and record.updated < begun):
        return None
    # No later than now, whatever times a trainer writes.
    return _status(record, min(record.updated, observation.now))


def _status(record: StageProgress, updated: datetime) -> StageProgressStatus | None:
    """Returns the record as a status. Its texts are a trainer's, so they may be anything."""
    doing, unit = _one_line(record.doing), _one_line(record.unit)
    if not doing:
        return None
    return copied(
        StageProgressStatus,
        record,
        doing=doing,
        total=record.total if unit else None,
        unit=unit or None,
        done_bytes=record.done_bytes if record.total_bytes is not None else None,
        since=whole_second(min(record.since, updated)),
        last_update_time=whole_second(updated),
    )


def _one_line(text: str) -> str:
    return "".join(each for each in " ".join(text.split()) if each.isprintable())
