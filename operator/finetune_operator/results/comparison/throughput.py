"""Speed and memory of a training."""

import math
from collections.abc import Sequence
from statistics import median

from finetune_operator.results.comparison.model import Throughput
from finetune_operator.results.records import RunRecords, whole_at
from finetune_operator.results.training_metrics import TrainingMetrics

type TimedStep = tuple[int, float, float]
"""Step, trained tokens and seconds."""


def throughput(run: RunRecords) -> Throughput | None:
    """Returns speed and memory; None before anything was measured.

    They are those of all steps; without metrics.jsonl, and the MFU, those of the last steps in the progress record.
    """
    steps, progress = timed_steps(run.metrics), run.progress
    seconds = sorted(value for _, value in run.metrics.column("seconds").finite() if value > 0)
    rate = _rate(steps) if steps else None
    if rate is None and progress:
        rate = _finite(progress.tokens_per_second)
    chips = whole_at(run.status, "resolved", "resources", "chips")
    found = Throughput(
        median_step_seconds=_percentile(seconds, 0.5) or (progress.step_time_p50 if progress else None),
        p95_step_seconds=_percentile(seconds, 0.95) or (progress.step_time_p95 if progress else None),
        slowest_step_seconds=seconds[-1] if seconds else None,
        tokens_per_second=rate,
        tokens_per_second_per_chip=rate / chips if rate is not None and chips else None,
        mfu=_finite(progress.mfu) if progress else None,
        peak_memory_bytes=progress.peak_memory_bytes if progress else None,
        compilations=progress.compilations if progress else whole_at(run.status, "goodput", "compilations"),
    )
    measured = (found.median_step_seconds, found.tokens_per_second, found.peak_memory_bytes)
    return found if any(value is not None for value in measured) else None


def rates(metrics: TrainingMetrics, most: int) -> tuple[int, list[tuple[int, float]]]:
    """Returns the tokens per second of at most ``most`` groups of consecutive steps, since single steps vary.

    Returns:
        The number of steps of a group; the last step of each group and its rate. No group if fewer than two steps are
        timed.
    """
    steps = _pooled(timed_steps(metrics))
    groups = min(most, len(steps))
    if groups < 2:
        return 1, []
    members = [
        steps[group * len(steps) // groups : (group + 1) * len(steps) // groups] for group in range(groups)
    ]
    points = [(some[-1][0], rate) for some in members if (rate := _rate(some)) is not None]
    return -(-len(steps) // groups), points


def timed_steps(metrics: TrainingMetrics) -> list[TimedStep]:
    """Returns each step whose time contains nothing else."""
    tokens = dict(metrics.column("tokens").finite())
    return [
        (step, tokens[step], seconds)
        for step, seconds in metrics.column("seconds").finite()
        if seconds > 0 and tokens.get(step, -1) >= 0
    ]


def _pooled(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Returns the steps, with one that took less than half of the median as a part of the step before.

    The trainer waits for a step while the next one runs. Of the last step before a pause, the wait for the step before
    has most of the time: alone it would seem ten times as fast as the others.
    """
    least = median([seconds for _, _, seconds in steps]) / 2 if steps else 0.0
    pooled: list[TimedStep] = []
    for timed in steps:
        if pooled and timed[2] < least:
            before = pooled.pop()
            pooled.append((timed[0], before[1] + timed[1], before[2] + timed[2]))
        else:
            pooled.append(timed)
    return pooled


def _rate(steps: Sequence[TimedStep]) -> float | None:
    return _finite(sum(tokens for _, tokens, _ in steps) / sum(seconds for _, _, seconds in steps))


def _percentile(ascending: Sequence[float], share: float) -> float | None:
    if not ascending:
        return None
    return ascending[min(len(ascending) - 1, math.ceil(share * len(ascending)) - 1)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
