"""The page of a comparison: what ``compare.html.j2`` words itself in numbers, charts and marked words. Pure."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from finetune_operator.cli.results.wording import (
    about_text,
    contrast_text,
    costs_and_times,
    value_text,
)
from finetune_operator.cli.text import count, number
from finetune_operator.results.comparison.model import (
    ChangeKind,
    ComparedJob,
    Comparison,
    JobAnswer,
    MetricComparison,
    Verdict,
)
from finetune_operator.results.pages.chart import line_chart
from finetune_operator.results.pages.document import render
from finetune_operator.results.pages.intervals import Difference, Tone, interval_chart
from finetune_operator.results.pages.series import Series

TONES: Mapping[str, Tone] = {
    Verdict.BETTER: "good",
    Verdict.WORSE: "bad",
    "Succeeded": "good",
    "Planned": "good",
    "Failed": "bad",
}
"""Classes of the style sheet by verdict, phase and outcome; of others there is none."""


def comparison_page(comparison: Comparison) -> str:
    """Returns the comparison as HTML, equal for equal comparisons."""
    return render(
        "compare.html.j2",
        **values_of(comparison),
        curve=_curve(comparison.jobs),
        tones=TONES,
        chart=_chart,
        words=contrast_text,
    )


def values_of(comparison: Comparison) -> Mapping[str, object]:
    """Returns what both templates of a comparison use."""
    return {
        "comparison": comparison,
        "settings": [(each.path, each.values) for each in comparison.configuration],
        "costs": costs_and_times(comparison.jobs),
        # In place of a setting, and of a cost or time, that a job does not have.
        "not_set": "not set",
        "unknown": "unknown",
        "about": about_text,
        "count": count,
        "equal": _equal,
        "number": number,
        "value": value_text,
    }


def _chart(metric: MetricComparison) -> Markup:
    differences = [
        Difference(
            name=f"{value.job} − A",
            value=contrast.difference,
            interval=contrast.interval,
            tone=TONES.get(contrast.verdict, "neutral"),
        )
        for value in metric.values
        if (contrast := value.from_reference) and contrast.difference is not None
    ]
    return interval_chart(differences, title=f"Differences from A: {metric.name}")


def _curve(jobs: Sequence[ComparedJob]) -> Markup:
    """Returns a chart of the losses during training; empty without any."""
    if not any(job.curve for job in jobs):
        return Markup()
    series = [Series(name=f"{job.label} {job.name}", points=job.curve) for job in jobs]
    return line_chart(series, title="Loss during training", x="step", y="loss")


def _equal(answer: JobAnswer) -> bool:
    """Whether the words are those of the reference's answer."""
    return answer.changes is not None and all(change.kind is ChangeKind.SAME for change in answer.changes)
