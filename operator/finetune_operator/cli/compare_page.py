"""The page of a comparison: its data structure as the texts and charts of ``compare.html.j2``. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from finetune_operator.cli.compare_view import (
    NOT_SET,
    UNKNOWN,
    about_text,
    contrast_text,
    costs_and_times,
    value_text,
)
from finetune_operator.cli.text import count, number
from finetune_operator.comparison.model import (
    AnswerComparison,
    ChangeKind,
    ComparedJob,
    Comparison,
    Contrast,
    JobAnswer,
    MetricComparison,
    MetricValue,
    SetRows,
    Verdict,
)
from finetune_operator.pages.chart import Series, line_chart
from finetune_operator.pages.document import render
from finetune_operator.pages.intervals import Difference, Tone, interval_chart
from finetune_operator.pages.markup import Markup, element

type Values = Sequence[tuple[str, str]]
"""Label of a job and its value, for each job."""

_TONES: Mapping[Verdict, Tone] = {Verdict.BETTER: "good", Verdict.WORSE: "bad"}


def comparison_page(comparison: Comparison) -> str:
    """Returns the comparison as HTML, equal for equal comparisons."""
    jobs = comparison.jobs
    return render(
        "compare.html.j2",
        names=[job.name for job in jobs],
        jobs=[{"job": job, "facts": list(_facts(job))} for job in jobs],
        notes=comparison.notes,
        metrics=[_metric(each) for each in comparison.metrics],
        sets=[_set(each) for each in comparison.rows],
        curve=_curve(jobs),
        answers=comparison.answers,
        shown=[_answer(each) for each in comparison.answers.shown] if comparison.answers else [],
        settings=[(each.path, _values(each.values, NOT_SET)) for each in comparison.configuration],
        costs=[(name, _values(values, UNKNOWN)) for name, values in costs_and_times(jobs)],
    )


def _facts(job: ComparedJob) -> Iterator[tuple[str, str]]:
    if job.model:
        yield "Model", job.model.source
        if job.model.revision:
            yield "Revision", job.model.revision
        if job.model.parameters:
            yield "Parameters", count(job.model.parameters)
    if job.method:
        yield "Method", job.method
    if job.steps is not None:
        yield (
            "Steps",
            f"{job.steps:,}" if job.total_steps is None else f"{job.steps:,} of {job.total_steps:,}",
        )
    if job.training_loss is not None:
        yield "Training loss", number(job.training_loss)
    if job.validation_loss is not None:
        yield "Validation loss", number(job.validation_loss)
    if job.evaluated_step is not None:
        yield "Evaluated at step", f"{job.evaluated_step:,}"
    if job.run_folder:
        yield "Run folder", job.run_folder


def _metric(metric: MetricComparison) -> Mapping[str, object]:
    return {
        "name": metric.name,
        "about": about_text(metric),
        "chart": interval_chart(list(_differences(metric)), title=f"Differences from A: {metric.name}"),
        "values": [_metric_value(each, metric) for each in metric.values],
    }


def _differences(metric: MetricComparison) -> Iterator[Difference]:
    for each in metric.values:
        contrast = each.from_reference
        if contrast and contrast.difference is not None:
            yield Difference(
                name=f"{each.job} − A",
                value=contrast.difference,
                interval=contrast.interval,
                tone=_TONES.get(contrast.verdict, "neutral"),
            )


def _metric_value(value: MetricValue, metric: MetricComparison) -> Mapping[str, object]:
    contrasts = ((value.from_reference, "A"), (value.from_baseline, "base"))
    return {
        "job": value.job,
        "mean": value_text(value.value),
        "base": None if value.baseline is None else value_text(value.baseline),
        "contrasts": [_contrast(each, other, metric.rows) for each, other in contrasts if each],
    }


def _contrast(contrast: Contrast, other: str, rows: int | None) -> Mapping[str, str]:
    text = " ".join(contrast_text(contrast, other, rows).plain.split())
    return {"text": text, "tone": _TONES.get(contrast.verdict, "")}


def _set(rows: SetRows) -> Mapping[str, str]:
    others = ", ".join(f"{more:,} more in {label}" for label, more in rows.others.items())
    return {"kind": rows.kind, "name": rows.name, "common": f"{rows.common:,}", "others": others or "none"}


def _curve(jobs: Sequence[ComparedJob]) -> Markup:
    """Returns a chart of the losses during training; empty without any."""
    if not any(job.curve for job in jobs):
        return Markup()
    series = [Series(name=f"{job.label} {job.name}", points=job.curve) for job in jobs]
    return line_chart(series, title="Loss during training", x="step", y="loss")


def _answer(answer: AnswerComparison) -> Mapping[str, object]:
    return {
        "about": answer,
        "answers": [
            {"job": each.job, "equal": _equal(each), "text": _marked(each)} for each in answer.answers
        ],
    }


def _equal(answer: JobAnswer) -> bool:
    """Whether the words are those of the reference's answer."""
    return answer.changes is not None and all(change.kind is ChangeKind.SAME for change in answer.changes)


def _marked(answer: JobAnswer) -> Markup:
    """Returns the answer, with its differences from the reference's as deletions and insertions."""
    tags = {ChangeKind.SAME: "span", ChangeKind.REMOVED: "del", ChangeKind.ADDED: "ins"}
    if answer.changes is None:
        return element("span", answer.text)
    return Markup("".join(element(tags[change.kind], change.text) for change in answer.changes))


def _values(values: Mapping[str, str | None], absent: str) -> Values:
    return [(label, absent if value is None else value) for label, value in values.items()]
