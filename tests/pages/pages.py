"""The pages under test: name and builder. A page of another command is one line in PAGES."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finetune_contract import EvaluatedRow, Sample
from finetune_operator.cli.results.compare_page import comparison_page
from finetune_operator.results.comparison.compare import compared
from finetune_operator.results.pages import document
from finetune_operator.results.pages.chart import line_chart
from finetune_operator.results.pages.series import Series
from finetune_operator.results.records import RunRecords
from tests.pages import reports
from tests.pages.hostile import HOSTILE
from tests.unit.comparison.runs import progress, request, row, rows, run, status

_PROMPTS = (
    "How do I reset my password?",
    "Can I return an article after two weeks?",
    "Write a function that adds two numbers.",
)
_ANSWERS = (
    ("Open Settings and choose Security.", "Yes, within 14 days.", "def add(a, b):\n    return a + b\n"),
    (
        "Open Settings, then Security, then Reset.",
        "Yes, within 30 days, with the receipt.",
        "def add(a: int, b: int) -> int:\n    return a + b\n",
    ),
)


def answers(*texts: str) -> list[Sample]:
    return [
        Sample(dataset="faq", prompt=prompt, reference="Open Settings, then Security.", baseline="I do not know.",
               tuned=answer)
        for prompt, answer in zip(_PROMPTS, texts, strict=True)
    ]  # fmt: skip


def curve(of: RunRecords, seed: int) -> RunRecords:
    """The run with a loss curve of 60 points."""
    from dataclasses import replace
    from random import Random

    noise = Random(seed)
    points = [(step, 1.6 + 1.8 / (1 + step / 80) + noise.gauss(0, 0.03)) for step in range(10, 601, 10)]
    return replace(of, progress=progress().model_copy(update={"curve": points}))


def two() -> str:
    first = run("support-bot", rows(200, seed=1), samples=answers(*_ANSWERS[0]))
    second = run(
        "support-bot-2",
        rows(200, seed=2, gain=0.1, right=0.8),
        samples=answers(*_ANSWERS[1]),
        request=request(hyperparameters__learning_rate=1e-4, method__lora__rank=32),
        status=status(
            cost={"chipHours": "1.9", "amount": "5.13", "currency": "USD"}, activeTime={"seconds": 1800}
        ),
    )
    return comparison_page(compared([curve(first, 1), curve(second, 2)]))


def ten() -> str:
    runs = [
        curve(
            run(
                f"support-bot-with-a-longer-name-{at}",
                rows(60, seed=at, gain=0.01 * at, right=0.3 + 0.05 * at),
                samples=answers(*(f"{text} ({at})" for text in _ANSWERS[at % 2])),
                request=request(hyperparameters__seed=at, hyperparameters__learning_rate=1e-4 * (at + 1)),
            ),
            at,
        )
        for at in range(10)
    ]
    return comparison_page(compared(runs))


def diverged() -> str:
    """A run whose losses are not finite, one whose answers are missing, and different rows."""
    measured = [row(at, 10.0 + at % 3, base=20.0) for at in range(12)]
    infinite = [row(at, float("nan"), base=1e300) for at in range(13)]
    second = run(
        "diverged", infinite, progress=progress(loss=float("inf")).model_copy(
            update={"curve": [(1, 3.0), (2, float("inf")), (3, float("nan")), (4, 1e300)]}
        ),
    )  # fmt: skip
    return comparison_page(compared([run("good", measured), second], common=True))


def no_evaluation() -> str:
    empty: dict[str, Any] = dict.fromkeys(("request", "preflight", "progress", "evaluation"))
    bare = RunRecords(
        name="bare", unreadable=["evaluate/rows.jsonl cannot be read: it has more than 500,000 lines"]
    )
    return comparison_page(
        compared([run("running", status=status(phase="Running")), run("new", **empty), bare])
    )


def hostile_runs(texts: Sequence[str] = HOSTILE) -> list[RunRecords]:
    """Two runs in which every text that a tenant writes is hostile."""
    measured = [_hostile_row(at, text) for text in texts for at in range(2)]
    every = " ".join(texts)
    found = []
    for at in (1, 2):
        asked = [
            Sample(
                dataset=text,
                prompt=f"{text} ?",
                reference=f"{text} !",
                baseline=f"{text} .",
                tuned=f"{at} {text}",
            )
            for text in texts
        ]
        found.append(
            run(
                f"{every} {at}",
                measured,
                namespace=every,
                run_folder=f"gs://artifacts/{every}",
                evaluation=None,
                samples=asked,
                status=status(
                    phase=every,
                    cost={"chipHours": every, "amount": every, "currency": every},
                    resolved={"resources": {text: f"{at} {text}" for text in texts}},
                ),
                unreadable=list(texts),
            )
        )
    return found


def _hostile_row(number: int, text: str) -> EvaluatedRow:
    score = {text: float(number)}
    return row(f"{number} {text}", kind="Dataset", name=text, scores=score, base_scores=score)


def hostile() -> str:
    return comparison_page(compared(hostile_runs(), samples=100))


def charts() -> str:
    """Every kind of chart with every kind of value, in the frame alone."""
    lines = [
        Series(name=f"line {at}", points=[(step, at + 1 / (1 + step)) for step in range(40)])
        for at in range(10)
    ]
    noise = [(step, (step * 7919 % 1000) / 10 if step % 1000 > 300 else None) for step in range(20_000)]
    shown = [
        line_chart(lines, title="Ten lines", x="step", y="loss"),
        line_chart([Series(name="one", points=[(5, 1.5)])], title="One value", x="step", y="loss"),
        line_chart([], title="No values", x="step", y="loss"),
        line_chart([Series(name="same", points=[(1, 2), (9, 2)])], title="Constant", x="step", y="tokens/s"),
        line_chart([Series(name="huge", points=[(1, -1e300), (2, 1e300)])], title="Huge", x="step", y="loss"),
        line_chart([Series(name="gaps", points=noise)], title="Many values and gaps", x="step", y="MFU in %"),
    ]
    times = [("Train", 3000, "50 min 00 s"), ("x" * 200, 1, "1 s")]
    page = document._environment().from_string(
        '{% extends "document.html.j2" %}{% from "macros.html.j2" import bars %}'
        "{% block title %}Charts{% endblock %}{% block content %}<h1>Charts</h1>"
        '<div class="charts">{% for each in shown %}{{ each }}{% endfor %}'
        '{{ bars("Time", times) }}{{ bars("No bars", ()) }}</div>{% endblock %}'
    )
    return page.render(content_policy=document.CONTENT_POLICY, shown=shown, times=times)


PAGES: Mapping[str, Callable[[], str]] = {
    "charts": charts,
    "compare-two": two,
    "compare-ten": ten,
    "compare-diverged": diverged,
    "compare-no-evaluation": no_evaluation,
    "compare-hostile": hostile,
    "report-finished": reports.report_finished,
    "report-running": reports.report_running,
    "report-queued": reports.report_queued,
    "report-failed": reports.report_failed,
    "report-long": reports.report_long,
    "report-hostile": reports.report_hostile,
}
