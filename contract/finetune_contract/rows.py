"""Measurements of single evaluation rows (``evaluate/rows.jsonl``, one record per line).

Rows of two jobs are compared in pairs: two records belong to the same row if set, digest and, for rows that occur more
than once, their order among those of the same digest are equal.
"""

from typing import Annotated, Literal

from pydantic import Field

from finetune_contract.base import Count, Record, Sha256


class RowMeasures(Record):
    """One model's measurements of one row."""

    loss: float | None = None
    """Sum of the losses of the row's tokens (or its pair's loss), in nats. None if no loss is measured."""
    tokens: Count = 0
    """Number of tokens (or pairs: 1) in that sum."""
    scores: Annotated[dict[str, float], Field(max_length=64)] = {}
    """Scores and the method's further metrics, by short name (``exact_match``)."""


class EvaluatedRow(Record):
    """One row of the validation sets, of evaluation.datasets or of evaluation.benchmarks."""

    kind: Literal["Validation", "Dataset", "Benchmark"]
    name: str
    """Name of the validation set, dataset or benchmark."""
    digest: Sha256
    """sha256 of what the model is measured on, whatever the set's name, the row's place in it and the model's answers:
    the row's token ids with a mask of those that count, if its loss is measured; the prompt's token ids and the
    reference, if an answer is scored; of a benchmark, the row's columns and the prompts."""
    content: Sha256 | None = None
    """sha256 of what is asked before a chat template renders it: the question and its reference; of a benchmark, the
    row's columns. Equal for models with different templates or tokenizers. None if no answer is scored."""
    baseline: RowMeasures | None = None
    """The base model. None if it is not measured."""
    tuned: RowMeasures
