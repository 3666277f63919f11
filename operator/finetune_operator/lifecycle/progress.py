"""The progress record, told in the status."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import Progress, TrainOutcome
from finetune_operator.lifecycle.times import parse, stamp
from finetune_operator.lifecycle.wait_times import WaitTimes

type Object = Mapping[str, Any]

#: Beyond it no step count is one; a larger integer does not fit a float.
_MOST_STEPS = 2**53
#: Where the time before the second step goes: as the trainer records it -> as the status shows it.
_STARTUP = {
    "startup": "imports",
    "data": "data",
    "restore": "weights",
    "compile": "compilation",
    "first_step": "firstStep",
}
_BARS = "▁▂▃▄▅▆▇█"


def decimal(value: float) -> str:
    """A number as the API holds it: ``1.234``, ``2e-05``."""
    return f"{value:.6g}"


def mebibytes(size: int) -> str:
    """As Kubernetes writes it, rounded up."""
    return f"{-(-size // 2**20)}Mi"


def progress_status(
    progress: Progress | None,
    outcome: TrainOutcome | None,
    previous: Object | None,
    *,
    pace: float,
    moved: bool,
) -> Object | None:
    """``status.progress``.

    Args:
        progress: what the trainer wrote last.
        outcome: of the finished training; then nothing is left to do.
        previous: ``status.progress`` as it is.
        pace: seconds between two reports while only steps move.
        moved: whether stage, attempt or conditions moved, so that a write is due anyway.
    """
    if progress is None:
        return previous if outcome is None else None
    if (
        previous
        and not moved
        and "lastUpdateTime" in previous
        and progress.step != progress.total_steps
        and 0 <= (progress.updated - parse(previous["lastUpdateTime"])).total_seconds() < pace
    ):
        return previous
    status: dict[str, Any] = {
        "step": progress.step,
        "totalSteps": progress.total_steps,
        "stepText": f"{progress.step}/{progress.total_steps}",
        "percent": 100 * progress.step // max(1, progress.total_steps),
        "metrics": _metrics(progress),
        "lastUpdateTime": stamp(progress.updated),
    }
    if progress.step_time_p50 is not None and progress.step_time_p95 is not None:
        times = (progress.step_time_p50, progress.step_time_p95)
        low, high = (_whole(1000 * time) for time in times)
        if low is not None and high is not None:
            status["stepTimeMilliseconds"] = {"p50": low, "p95": high}
        left = progress.total_steps - progress.step
        if 0 < left < _MOST_STEPS and outcome is None:
            first, last = (_whole(left * time, up=True) for time in times)
            if first is not None and last is not None:
                status["etaSeconds"] = {"low": first, "high": max(first, last)}
                status["etaText"] = eta_text(first, max(first, last))
    if progress.tokens_per_second is not None:
        status["tokensPerSecond"] = decimal(progress.tokens_per_second)
    if progress.mfu is not None:
        status["mfuPercent"] = decimal(100 * progress.mfu)
    if progress.peak_memory_bytes is not None:
        status["peakHBM"] = mebibytes(progress.peak_memory_bytes)
    points = [(step, loss) for step, loss in progress.curve if math.isfinite(loss)]
    if points:
        status["curve"] = {
            "metric": "loss",
            "sparkline": sparkline([loss for _, loss in points]),
            "points": [{"step": step, "value": decimal(loss)} for step, loss in points],
        }
    return status


def goodput_status(progress: Progress | None, waits: WaitTimes) -> Object | None:
    """``status.goodput``, over all attempts at training; None before training has measured anything."""
    told = progress.seconds if progress else {}
    startup = {name: told.get(kind, 0.0) for kind, name in _STARTUP.items()}
    spent = {
        "startup": sum(startup.values()),
        "productive": told.get("productive", 0.0),
        "evaluation": told.get("evaluate", 0.0),
        "recomputed": told.get("recomputed", 0.0),
    }
    measured = sum(spent.values())
    if not math.isfinite(measured) or measured <= 0 or min((*spent.values(), *startup.values())) < 0:
        return None
    spent = {"queued": waits.queued, "provisioning": waits.provisioning, **spent}
    whole = sum(spent.values())
    seconds = {kind: round(value) for kind, value in spent.items()}
    counted = progress.compilations if progress else None
    return {
        "percent": f"{100 * (spent['productive'] / whole):.1f}",
        "seconds": seconds,
        "startup": {kind: round(value) for kind, value in {"pods": waits.pods, **startup}.items()},
        **({"compilations": counted} if counted is not None else {}),
    }


def eta_text(low: int, high: int) -> str:
    """``18-24m``, ``40-55s``, ``2-3h``; one number where both are equal."""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if high >= 2 * size or size == 1:
            first, last = low // size, -(-high // size)
            return f"{last}{unit}" if first == last else f"{first}-{last}{unit}"
    raise AssertionError("seconds always fit")


def sparkline(values: Sequence[float]) -> str:
    """The course of the values in one line, lowest to highest."""
    low, high = min(values), max(values)
    # Halved, since the distance of two floats may be none.
    span = high / 2 - low / 2
    return "".join(
        _BARS[round((value / 2 - low / 2) / span * (len(_BARS) - 1)) if span else 0] for value in values
    )


def _metrics(progress: Progress) -> list[Object]:
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
    found: dict[str, Object] = {}
    for name, value, step in measured:
        if value is not None and math.isfinite(value):
            # A record may measure under a name that stands already; the status holds each name once.
            found.setdefault(name, {"name": name, "value": decimal(value), "step": step})
    return list(found.values())


def _whole(value: float, *, up: bool = False) -> int | None:
    """Rounded; None for what is no number."""
    if not math.isfinite(value):
        return None
    return math.ceil(value) if up else round(value)
