"""Formats a comparison as text, from its data structure alone. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from finetune_operator.cli.text import count, duration, number, one_line
from finetune_operator.results.comparison.model import (
    AnswerComparison,
    AnswersCompared,
    ChangeKind,
    ComparedJob,
    Comparison,
    Contrast,
    Direction,
    JobAnswer,
    MetricComparison,
    MetricValue,
    Verdict,
)
from finetune_operator.results.pages.axis import number_text

_VERDICTS = {
    Verdict.BETTER: ("better than {other}", "green"),
    Verdict.WORSE: ("worse than {other}", "red"),
    Verdict.HIGHER: ("higher than {other}", "cyan"),
    Verdict.LOWER: ("lower than {other}", "cyan"),
    Verdict.NO_DIFFERENCE: ("no difference from {other} that these {rows} can show", "yellow"),
    Verdict.IDENTICAL: ("identical to {other} on each of the {rows}", "yellow"),
    Verdict.TOO_FEW_ROWS: ("{rows}: too few to show a difference from {other}", "yellow"),
    Verdict.NO_INTERVAL: ("from {other}, no interval", "yellow"),
    Verdict.NOT_COMPARABLE: ("not comparable with {other}", "yellow"),
}
_DIRECTIONS = {
    Direction.LOWER: "lower is better",
    Direction.HIGHER: "higher is better",
    Direction.UNKNOWN: "direction unknown",
}
_REFERENCE = "A"
#: In place of a setting, and of a cost or time, that a job does not have.
NOT_SET, UNKNOWN = "not set", "unknown"
#: Maximum length of a prompt, a name and a setting in characters.
_PROMPT, _NAME = 200, 64


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the page; a line that is too long for the terminal continues below, further indented."""

    text: Text
    indent: int = 0
    """Spaces before the line."""
    hanging: int = 2
    """Further spaces before its continuation."""


def comparison_lines(comparison: Comparison, *, colors: bool) -> Iterator[Line]:
    """Yields the page. ``colors``: whether colors mark differences of answers; otherwise markers do."""
    for job in comparison.jobs:
        yield from _job(job)
    for note in comparison.notes:
        yield Line(Text(one_line(note), "yellow"))
    yield from _metrics(comparison)
    if comparison.answers:
        yield from _answers(comparison.answers, colors=colors)
    yield from _settings(comparison)
    yield from _costs(comparison.jobs)


def _head(text: str) -> Iterator[Line]:
    yield Line(Text())
    yield Line(Text(text, "bold"))


def _job(job: ComparedJob) -> Iterator[Line]:
    where = f", {job.namespace}" if job.namespace else ""
    line = Text()
    line.append(f"{job.label}  ", "bold")
    line.append(f"{one_line(job.name)}{one_line(where)}", "bold")
    line.append(f": {one_line(job.phase or 'no status')}")
    yield Line(line, hanging=3)
    if job.model:
        revision = f" at {one_line(job.model.revision)[:12]}" if job.model.revision else ""
        size = f", {count(job.model.parameters)} parameters" if job.model.parameters else ""
        method = f", {one_line(job.method)}" if job.method else ""
        yield Line(Text(f"{one_line(job.model.source)}{revision}{size}{method}"), indent=3)
    if job.steps is not None:
        facts = [f"step {job.steps} of {job.total_steps}"]
        facts += [f"training loss {number(job.training_loss)}"] if job.training_loss is not None else []
        facts += [f"validation loss {number(job.validation_loss)}"] if job.validation_loss is not None else []
        facts += [f"evaluated at step {job.evaluated_step}"] if job.evaluated_step is not None else []
        yield Line(Text(", ".join(facts)), indent=3)
    for each in job.missing:
        yield Line(Text(one_line(each), "yellow"), indent=3)


def _metrics(comparison: Comparison) -> Iterator[Line]:
    if not comparison.metrics:
        return
    yield from _head("Metrics: difference and its 95 % interval")
    for metric in comparison.metrics:
        yield from _metric(metric)


def _metric(metric: MetricComparison) -> Iterator[Line]:
    title = Text()
    title.append(one_line(metric.name)[:_NAME], "bold")
    title.append(f"  {about_text(metric)}", "dim")
    yield Line(title)
    # As shown: the same model gives slightly different values on another slice.
    bases = {value_text(each.baseline) for each in metric.values if each.baseline is not None}
    if len(bases) == 1:
        yield Line(Text(f"base  {bases.pop()}"), indent=2)
    for each in metric.values:
        yield Line(_metric_value(each, metric, own_base=len(bases) > 1), indent=2, hanging=6)


def _metric_value(value: MetricValue, metric: MetricComparison, *, own_base: bool) -> Text:
    line = Text(f"{value.job:<4}  {value_text(value.value)}")
    if own_base and value.baseline is not None:
        line.append(f" (base {value_text(value.baseline)})")
    contrast, other = (
        (value.from_baseline, "base") if value.job == _REFERENCE else (value.from_reference, _REFERENCE)
    )
    if contrast:
        line.append_text(contrast_text(contrast, other, metric.rows))
    return line


def contrast_text(contrast: Contrast, other: str, rows: int | None) -> Text:
    """Returns a difference with its interval and verdict.

    Args:
        contrast: the difference.
        other: name of the other model, from which it is the difference.
        rows: number of rows that the means are over; None if it is unknown.
    """
    words, color = _VERDICTS[contrast.verdict]
    line = Text()
    if contrast.difference is not None:
        line.append(f"  {_number(contrast.difference, '+')}")
    if contrast.interval:
        low, high = (_number(each, "+") for each in contrast.interval)
        line.append(f" [{low}, {high}]")
    line.append("  ")
    line.append(words.format(rows="rows" if rows is None else _rows(rows), other=other), color)
    if contrast.reason:
        line.append(f" ({one_line(contrast.reason)})")
    elif contrast.verdict is Verdict.NO_DIFFERENCE and contrast.smallest:
        line.append(f" (the smallest is {_number(contrast.smallest)})")
    return line


def about_text(metric: MetricComparison) -> str:
    """Returns how many rows a metric is over, and whether lower or higher values are better."""
    parts = [] if metric.rows is None else [_rows(metric.rows)]
    if metric.different_rows != metric.rows:
        parts.append(f"{metric.different_rows:,} different")
    return ", ".join([*parts, _DIRECTIONS[metric.direction]])


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def value_text(value: float | None) -> str:
    """Formats a mean."""
    return "not measured" if value is None else _number(value)


def _number(value: float, sign: str = "") -> str:
    """Formats a mean or a difference; ``sign`` is ``+`` to show that of positive numbers."""
    usual = value == 0 or 1e-3 <= abs(value) < 1e6
    return f"{value:{sign}.4f}" if usual else f"{value:{sign}.3g}"


def _answers(answers: AnswersCompared, *, colors: bool) -> Iterator[Line]:
    asked = f"{answers.prompts:,} prompts that {' and '.join(answers.jobs)} have"
    yield from _head(f"Answers: {asked}; {answers.equal:,} with equal answers")
    for each in answers.shown:
        yield from _answer(each, colors=colors)
    if (left := answers.prompts - answers.equal - len(answers.shown)) > 0:
        yield Line(Text(f"{left:,} more with different answers; --samples shows them.", "dim"))


def _answer(answer: AnswerComparison, *, colors: bool) -> Iterator[Line]:
    where = f"{one_line(answer.dataset)[:_NAME]}: " if answer.dataset else ""
    yield Line(Text(f"{where}{_cut(one_line(answer.prompt))}", "bold"))
    if answer.reference is not None:
        yield Line(Text(f"expected  {one_line(answer.reference)}"), indent=2)
    if answer.baseline is not None:
        yield Line(Text(f"base      {one_line(answer.baseline)}"), indent=2)
    for each in answer.answers:
        line = Text()
        line.append(f"{each.job:<10}", "bold")
        line.append_text(_marked(each, colors=colors))
        yield Line(line, indent=2)


def _marked(answer: JobAnswer, *, colors: bool) -> Text:
    """Returns the answer, with its differences from the reference's as ``git diff --word-diff`` marks them."""
    if answer.changes is None:
        return Text(one_line(answer.text) or "(empty)")
    if all(change.kind is ChangeKind.SAME for change in answer.changes):
        return Text(f"as {_REFERENCE}", "dim")
    line = Text()
    for change in answer.changes:
        words = one_line(change.text)
        if not words:
            continue
        space = " " if line else ""
        match change.kind:
            case ChangeKind.SAME:
                line.append(f"{space}{words}")
            case ChangeKind.REMOVED:
                line.append(space)
                line.append(words if colors else f"[-{words}-]", "strike red" if colors else "")
            case ChangeKind.ADDED:
                line.append(space)
                line.append(words if colors else f"{{+{words}+}}", "green" if colors else "")
    return line


def _settings(comparison: Comparison) -> Iterator[Line]:
    yield from _head("Configuration and data: what differs")
    for each in comparison.configuration:
        yield _values(one_line(each.path), each.values, NOT_SET)
    if not comparison.configuration:
        yield Line(Text("nothing"))


def _costs(jobs: Sequence[ComparedJob]) -> Iterator[Line]:
    known = costs_and_times(jobs)
    if known:
        yield from _head("Cost and time")
    for name, values in known:
        yield _values(name, values, UNKNOWN)


def costs_and_times(jobs: Sequence[ComparedJob]) -> Sequence[tuple[str, Mapping[str, str | None]]]:
    """Returns what is known of at least one job: its name, and the values by label of the job."""
    parts: dict[str, Callable[[ComparedJob], str | None]] = {
        "chip hours": lambda job: job.chip_hours,
        "cost": _cost,
        "running": lambda job: _time(job.running_seconds),
        "step time (p50, p95)": _step_times,
        "trained tokens per second per chip": _tokens,
        "MFU of the last steps": _mfu,
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
    return ", ".join(seconds_text(seconds) for seconds in times if seconds is not None) or None


def seconds_text(seconds: float) -> str:
    """Formats the time of a step."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def _tokens(job: ComparedJob) -> str | None:
    rate = job.throughput.tokens_per_second_per_chip if job.throughput else None
    return None if rate is None else number_text(rate)


def _mfu(job: ComparedJob) -> str | None:
    share = job.throughput.mfu if job.throughput else None
    return None if share is None else f"{number_text(100 * share)} %"


def _cost(job: ComparedJob) -> str | None:
    return f"{job.cost} {job.currency}" if job.cost and job.currency else job.cost


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else duration(seconds)


def _values(name: str, values: Mapping[str, str | None], absent: str) -> Line:
    """Returns ``name: a → b`` for two jobs, and the value of each by its label for more."""
    shown = {label: absent if each is None else one_line(each) for label, each in values.items()}
    line = Text()
    line.append(f"{name}: ", "dim")
    two = len(shown) == 2
    line.append(
        " → ".join(shown.values()) if two else ", ".join(f"{label} {each}" for label, each in shown.items())
    )
    return Line(line)


def _cut(text: str) -> str:
    return text if len(text) <= _PROMPT else f"{text[: _PROMPT - 1]}…"
