"""The evaluation of a run: metrics before and after with intervals, gates, and answers."""

from collections.abc import Sequence
from dataclasses import replace

from finetune_contract import Sample
from finetune_operator.results.comparison.answers import word_changes
from finetune_operator.results.comparison.compare import compared
from finetune_operator.results.comparison.model import MetricComparison
from finetune_operator.results.errors import NotComparableError
from finetune_operator.results.records import RunRecords
from finetune_operator.results.report.model import Answer, Answers, EvaluationReport, bounded

#: Number of metrics, and of prompts whose answers are shown.
_MOST_METRICS, MOST_ANSWERS = 200, 20


def evaluation(run: RunRecords) -> EvaluationReport | None:
    """Returns the evaluation; None if the run has none."""
    if not run.evaluated:
        return None
    recorded = run.evaluation
    return EvaluationReport(
        step=recorded.step if recorded else None,
        metrics=[bounded(each, text=256) for each in _metrics(run)[:_MOST_METRICS]],
        gates=bounded(recorded.gates if recorded else [], text=256),
        benchmarks=bounded(run.preflight.benchmarks if run.preflight else [], text=256),
    )


def _metrics(run: RunRecords) -> Sequence[MetricComparison]:
    """Returns the metrics as ``finetune compare`` computes them for its reference."""
    scores = {(row.kind, row.name, score) for row in run.rows for score in row.tuned.scores}
    try:
        if len(scores) <= _MOST_METRICS:
            return compared([run], samples=0).metrics
    except NotComparableError:
        # The rows belong to more sets than any job has.
        pass
    return compared([replace(run, rows=())], samples=0).metrics


def answers(run: RunRecords) -> Answers | None:
    """Returns the answers to the first prompts; None if there are none.

    Prompts with different answers before and after come first, then the others, each in their order. Datasets repeat
    rows, so equal prompts with equal answers are shown once.
    """
    if not run.samples:
        return None
    # The first sample of each key keeps its place.
    different: dict[tuple[str | None, ...], Sample] = {}
    for each in run.samples:
        different.setdefault((each.prompt, each.reference, each.baseline, each.tuned), each)
    order = sorted(different.values(), key=lambda sample: sample.baseline == sample.tuned)
    return Answers(
        shown=[_answer(each) for each in order[:MOST_ANSWERS]], different=len(order), total=len(run.samples)
    )


def _answer(sample: Sample) -> Answer:
    shown = sample.shown()
    both = shown.baseline is not None and shown.tuned is not None
    return Answer(
        sample=shown.model_copy(update={"dataset": shown.dataset and shown.dataset[:256]}),
        changes=word_changes(shown.baseline or "", shown.tuned or "") if both else None,
    )
