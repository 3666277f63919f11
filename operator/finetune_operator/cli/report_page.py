"""The page of a report: its data structure as the texts and charts of ``report.html.j2``."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from finetune_operator.cli import text
from finetune_operator.cli.compare_view import about_text, contrast_text, value_text
from finetune_operator.cli.report_data import data_summary, datasets
from finetune_operator.cli.report_usage import chips, costs, money, speed, time_chart
from finetune_operator.comparison.model import ChangeKind, MetricComparison, Verdict
from finetune_operator.pages.chart import Series, line_chart
from finetune_operator.pages.document import render
from finetune_operator.pages.markup import Markup, element
from finetune_operator.report.model import (
    Answer,
    AttemptReport,
    GateReport,
    MetricCurve,
    Report,
)

_TONES = {"Succeeded": "good", "Planned": "good", "Failed": "bad"}
_VERDICT_TONES = {Verdict.BETTER: "good", Verdict.WORSE: "bad"}


def report_page(report: Report) -> str:
    """Returns the report as HTML."""
    charts = [each for each in (report.loss, *_speed_curve(report), *report.curves) if each]
    evaluation = report.evaluation
    return render(
        "report.html.j2",
        report=report,
        tone=_TONES.get(report.phase or "", "notice"),
        contents=list(_contents(report)),
        when=when,
        duration=_duration,
        size=text.size,
        whole=lambda number: "" if number is None else f"{number:,}",
        sources=_sources(report),
        took=_duration(report.usage.seconds) if report.usage else None,
        steps=_steps(report),
        labels=", ".join(f"{name}={value}" for name, value in report.labels.items()),
        results=list(_results(report)),
        metrics=[_metric(each) for each in evaluation.metrics] if evaluation else [],
        gates=[_gate(each) for each in evaluation.gates] if evaluation else [],
        marked=_marked,
        answers_summary=_answers_summary(report),
        charts=[_chart(each) for each in charts],
        not_finite=[line for each in charts for line in _not_finite(each)],
        speed=list(speed(report.throughput)) if report.throughput else [],
        costs=list(costs(report.usage, ended=report.ended is not None)) if report.usage else [],
        chips=list(chips(report.usage)) if report.usage else [],
        time_chart=time_chart(report.usage) if report.usage else "",
        attempts=[_attempt(each) for each in report.attempts.shown] if report.attempts else [],
        attempts_summary=_attempts_summary(report),
        data_summary=data_summary(report.data) if report.data else "",
        datasets=datasets(report.data.report) if report.data else [],
    )


def when(time: datetime | None) -> str | None:
    """Formats a time: ``2026-11-25 18:28:38``, in UTC. None also for one that no calendar has in UTC."""
    try:
        return None if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return None


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else text.duration(seconds)


def _sources(report: Report) -> str:
    folder = "its run folder" if report.run_folder else "has no run folder yet"
    if not report.live:
        return folder
    return f"the job and {folder}" if report.run_folder else f"the job, which {folder}"


def _contents(report: Report) -> Iterator[tuple[str, str]]:
    """Yields identifier and name of each part that the report has."""
    parts: Sequence[tuple[str, str, object]] = (
        ("evaluation", "Before and after", report.evaluation),
        ("answers", "Answers", report.answers),
        ("training", "Training", report.loss or report.throughput or report.curves),
        ("usage", "Time and cost", report.usage),
        ("stages", "Stages", report.stages),
        ("attempts", "Attempts", report.attempts),
        ("data", "Data", report.data),
        ("files", "Files", report.files),
        ("configuration", "Configuration", report.configuration),
        ("missing", "Not in this report", report.missing or report.unreadable),
    )
    yield from ((identifier, name) for identifier, name, part in parts if part)


def _steps(report: Report) -> str | None:
    if report.total_steps is None:
        return None if report.steps is None else f"{report.steps:,}"
    return f"{report.steps or 0:,} of {report.total_steps:,}"


def _results(report: Report) -> Iterator[tuple[str, str]]:
    """Yields the most important numbers."""
    evaluation, usage = report.evaluation, report.usage
    for metric in (evaluation.metrics if evaluation else ())[:4]:
        value = metric.values[0]
        before = f"{value_text(value.baseline)} → " if value.baseline is not None else ""
        yield metric.name, f"{before}{value_text(value.value)}"
    if evaluation and evaluation.gates:
        met = sum(gate.passed for gate in evaluation.gates)
        yield "Gates", f"{met} of {len(evaluation.gates)} met"
    if not evaluation and report.loss and (points := report.loss.series[0].points):
        yield report.loss.series[0].name, f"{value_text(points[0][1])} → {value_text(points[-1][1])}"
    if usage and usage.cost:
        yield "Cost", money(usage.cost, usage.currency)
    if usage and usage.chip_hours:
        yield "Chip hours", usage.chip_hours
    if report.files:
        for export in report.files.exports[:4]:
            yield f"Exported {export.name}", export.uri


def _metric(metric: MetricComparison) -> Mapping[str, str]:
    value = metric.values[0]
    contrast = value.from_baseline
    return {
        "name": metric.name,
        "about": about_text(metric),
        "base": "–" if value.baseline is None else value_text(value.baseline),
        "tuned": value_text(value.value),
        "difference": contrast_text(contrast, "base", metric.rows).plain.strip() if contrast else "–",
        "tone": _VERDICT_TONES.get(contrast.verdict, "") if contrast else "",
    }


def _gate(gate: GateReport) -> Mapping[str, object]:
    sign = "≥" if gate.at_least else "≤"
    threshold = (
        "the base model's, which was not measured" if gate.threshold is None else value_text(gate.threshold)
    )
    return {
        "condition": f"{gate.metric} {sign} {threshold}",
        "value": value_text(gate.value),
        "passed": gate.passed,
    }


def _speed_curve(report: Report) -> Iterator[MetricCurve]:
    if report.throughput and report.throughput.curve:
        yield report.throughput.curve


def _chart(curve: MetricCurve) -> Markup:
    series = [Series(name=each.name, points=each.points) for each in curve.series]
    return line_chart(series, title=curve.title, x="step", y=curve.unit or curve.title)


def _not_finite(curve: MetricCurve) -> Iterator[str]:
    for each in curve.series:
        if each.not_finite:
            yield (
                f"{each.name}: {each.not_finite:,} of {len(each.points):,} values are not finite numbers, the first at "
                f"step {each.first_not_finite:,}."
            )


def _marked(answer: Answer) -> Markup | str:
    """Returns the tuned model's answer, in which the words that the base model's does not have are marked."""
    if not answer.changes:
        return answer.tuned or ""
    said = (change for change in answer.changes if change.kind is not ChangeKind.REMOVED)
    return Markup(
        "".join(element("ins" if each.kind is ChangeKind.ADDED else "span", each.text) for each in said)
    )


def _answers_summary(report: Report) -> str:
    found = report.answers
    if found is None:
        return ""
    repeated = found.total - found.different
    more = f", without {repeated:,} repetitions" if repeated else ""
    return f"{len(found.shown):,} of {found.total:,} answers{more}; those that differ from the base model's first."


def _attempts_summary(report: Report) -> str:
    found = report.attempts
    if found is None:
        return ""
    counts = (
        (found.preemptions, "ended by preemption"),
        (found.infrastructure, "by faults of nodes, network or storage"),
        (found.user, "by faults of the job itself"),
    )
    parts = [f"{found.total:,} in all", *(f"{number:,} {what}" for number, what in counts if number)]
    if len(found.shown) < found.total:
        parts.append(f"the newest {len(found.shown):,} are shown")
    return f"{', '.join(parts)}."


def _attempt(attempt: AttemptReport) -> Mapping[str, str | None]:
    end = [attempt.outcome]
    if attempt.reason:
        end.append(attempt.reason)
    if attempt.failure_class:
        end.append(f"class {attempt.failure_class}")
    if attempt.node:
        end.append(f"on {attempt.node}")
    ran = f"ran {text.duration(attempt.seconds)}" if attempt.seconds is not None else None
    waits = [
        f"{name} {text.duration(seconds)}"
        for name, seconds in (("queued", attempt.queued), ("waited for nodes", attempt.provisioning))
        if seconds
    ]
    return {
        "name": attempt.name,
        "end": ", ".join(end),
        "tone": {"Succeeded": "good", "Failed": "bad"}.get(attempt.outcome, "notice"),
        "message": attempt.message,
        "fix": attempt.fix,
        "times": ", ".join(each for each in (when(attempt.start), ran, *waits) if each) or "–",
        "steps": _steps_of(attempt),
    }


def _steps_of(attempt: AttemptReport) -> str:
    if attempt.start_step is None and attempt.end_step is None:
        return "–"
    first, last = ("?" if step is None else f"{step:,}" for step in (attempt.start_step, attempt.end_step))
    lost = f", {attempt.lost_steps:,} repeated later" if attempt.lost_steps else ""
    return f"{first} to {last}{lost}"
