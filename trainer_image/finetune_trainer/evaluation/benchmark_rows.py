"""Measurements of the single rows of a benchmark, as the evaluation harness computes them."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from lm_eval.api.metrics import mean

from finetune_trainer.evaluation.benchmarks import LoadedBenchmark
from finetune_trainer.evaluation.rows import MeasuredRows, RowKey


class RecordedRows:
    """Metrics of each row during one evaluation of a benchmark.

    The harness's own log of samples contains them, too, but also every prompt and answer, several times.
    """

    def __init__(self, benchmark: LoadedBenchmark) -> None:
        self._benchmark = benchmark
        self._found: list[Mapping[str, float]] = []

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Adds the metrics of the next row, except for those that are no number, but parts of a total."""
        numbers = {name: each for name, each in metrics.items() if isinstance(each, int | float | np.number)}
        self._found.append({name: float(each) for name, each in numbers.items()})

    def measured(self) -> MeasuredRows:
        """Returns the scores that are means of the rows' own, by the same short names.

        Others, such as a perplexity, are computed from all rows at once.
        """
        task, rows = self._benchmark.task, self._benchmark.rows
        # The harness scores all rows once for each filter of the answers.
        filters = list(task.instances[0].filtered_resps)
        scores = {}
        for name, (metric, filtered) in self._benchmark.filtered_metrics.items():
            start = filters.index(filtered) * rows
            values = [each[metric] for each in self._found[start : start + rows] if metric in each]
            if task.aggregation()[metric] is mean and len(values) == rows:
                scores[name] = values
        return MeasuredRows(scores=scores)


@contextmanager
def recorded_rows(benchmark: LoadedBenchmark) -> Iterator[RecordedRows]:
    """Records the rows of the evaluation that runs inside the context."""
    task, rows = benchmark.task, RecordedRows(benchmark)
    inner = task.process_results

    def process_results(doc: Any, results: Any) -> Any:
        metrics = inner(doc, results)
        rows.add(metrics)
        return metrics

    task.process_results = process_results
    try:
        yield rows
    finally:
        task.process_results = inner


def benchmark_keys(benchmark: LoadedBenchmark) -> Iterator[RowKey]:
    """Yields the rows of a benchmark that has been evaluated.

    A row's digest covers its columns, and the prompts and options with which the model is asked. The chat template is
    in the prompts, so its content covers the columns and, in place of the prompts, the task's name and revision; it is
    None without a revision, as the prompts are then unknown.
    """
    spec, by_row = benchmark.spec, defaultdict(list)
    for each in benchmark.task.instances:
        by_row[each.doc_id].append(each)
    for row in range(benchmark.rows):
        asked = sorted(by_row[row], key=lambda each: int(each.idx))
        yield RowKey(
            digest=_sha256([[each.doc, each.args] for each in asked]),
            content=_sha256([spec.name, spec.revision, *(each.doc for each in asked)])
            if spec.revision
            else None,
            question=row,
        )


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
