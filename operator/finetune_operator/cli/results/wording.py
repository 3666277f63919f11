"""What texts and pages say of measurements: means, differences, verdicts, costs and times. Pure."""

from collections.abc import Callable, Mapping, Sequence

from finetune_operator.cli.text import duration, one_line, step_time
from finetune_operator.results.comparison.model import (
    ComparedJob,
    Contrast,
    Direction,
    MetricComparison,
    Verdict,
)
from finetune_operator.results.pages.axis import number_text

_VERDICTS = {
    Verdict.BETTER: "better than {other}",
    Verdict.WORSE: "worse than {other}",
    Verdict.HIGHER: "higher than {other}",
    Verdict.LOWER: "lower than {other}",
    Verdict.NO_DIFFERENCE: "no difference from {other} that these {rows} can show",
    Verdict.IDENTICAL: "identical to {other} on each of the {rows}",
    Verdict.TOO_FEW_ROWS: "{rows}: too few to show a difference from {other}",
    Verdict.NO_INTERVAL: "from {other}, no interval",
    Verdict.NOT_COMPARABLE: "not comparable with {other}",
}
_DIRECTIONS = {
    Direction.LOWER: "lower is better",
    Direction.HIGHER: "higher is better",
    Direction.UNKNOWN: "direction unknown",
}


def about_text(metric: MetricComparison) -> str:
    """Returns how many rows a metric is over, and whether lower or higher values are better."""
    parts = [] if metric.rows is None else [_rows(metric.rows)]
    if metric.different_rows != metric.rows:
        parts.append(f"{metric.different_rows:,} different")
    return ", ".join([*parts, _DIRECTIONS[metric.direction]])


def value_text(value: float | None) -> str:
    """Formats a mean."""
    return "not measured" if value is None else _number(value)


def difference_text(contrast: Contrast) -> str:
    """Returns a difference with its interval; empty if there is none."""
    if contrast.difference is None:
        return ""
    interval = ", ".join(_number(bound, "+") for bound in contrast.interval or ())
    return f"{_number(contrast.difference, '+')}{f' [{interval}]' if interval else ''}"


def verdict_text(contrast: Contrast, other: str, rows: int | None) -> str:
    """Returns what a difference shows.

    Args:
        contrast: the difference.
        other: name of the other model, from which it is the difference.
        rows: number of rows that the means are over; None if it is unknown.
    """
    return _VERDICTS[contrast.verdict].format(rows="rows" if rows is None else _rows(rows), other=other)


def reason_text(contrast: Contrast) -> str:
    """Returns why the verdict is what it is, in brackets; empty if there is no more to say."""
    if contrast.reason:
        return f"({one_line(contrast.reason)})"
    if contrast.verdict is Verdict.NO_DIFFERENCE and contrast.smallest:
        return f"(the smallest is {_number(contrast.smallest)})"
    return ""


def contrast_text(contrast: Contrast, other: str, rows: int | None) -> str:
    """Returns a difference with its interval, verdict and reason; the arguments are those of :func:`verdict_text`."""
    parts = difference_text(contrast), verdict_text(contrast, other, rows), reason_text(contrast)
    return " ".join(filter(None, parts))


def costs_and_times(jobs: Sequence[ComparedJob]) -> Sequence[tuple[str, Mapping[str, str | None]]]:
    """Returns what is known of at least one job: its name, and the values by label of the job."""
    parts: dict[str, Callable[[ComparedJob], str | None]] = {
        "chip hours": lambda job: job.chip_hours,
        "cost": lambda job: f"{job.cost} {job.currency}" if job.cost and job.currency else job.cost,
        "running": lambda job: _time(job.running_seconds),
        "step time (p50, p95)": _step_times,
        "trained tokens per second per chip": lambda job: _of_speed(job, "tokens_per_second_per_chip"),
        "MFU of the last steps": lambda job: _of_speed(job, "mfu", 100, " %"),
    }
    rows = [(name, {job.label: part(job) for job in jobs}) for name, part in parts.items()]
    rows += [
        (stage, {job.label: _time(job.stage_seconds.get(stage)) for job in jobs})
        for stage in dict.fromkeys(stage for job in jobs for stage in job.stage_seconds)
    ]
    return [(name, values) for name, values in rows if any(values.values())]


def _step_times(job: ComparedJob) -> str | None:
    speed = job.throughput
    times = (speed.median_step_seconds, speed.p95_step_seconds) if speed else ()
    return ", ".join(step_time(seconds) for seconds in times if seconds is not None) or None


def _of_speed(job: ComparedJob, name: str, factor: int = 1, unit: str = "") -> str | None:
    value = getattr(job.throughput, name, None)
    return None if value is None else f"{number_text(factor * value)}{unit}"


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else duration(seconds)


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _number(value: float, sign: str = "") -> str:
    """Formats a mean or a difference; ``sign`` is ``+`` to show that of positive numbers."""
    usual = value == 0 or 1e-3 <= abs(value) < 1e6
    return f"{value:{sign}.4f}" if usual else f"{value:{sign}.3g}"
