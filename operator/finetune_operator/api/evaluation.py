"""Evaluation during and after training: ``spec.evaluation``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import (
    ApiModel,
    DnsLabel,
    Flag,
    NonNegative,
    NonNegativeNumber,
    Number,
    Positive,
    ShortText,
    distinct,
    list_map,
)
from finetune_operator.api.data import DatasetSource
from finetune_operator.api.rules import ValidationRule, exactly_one
from finetune_operator.api.uris import StorageUri


class EvaluationMetric(StrEnum):
    """Metric of a dataset."""

    LOSS = "Loss"
    """Mean loss per trained token."""
    EXACT_MATCH = "ExactMatch"
    """Share of answers equal to the reference."""
    TOKEN_F1 = "TokenF1"  # noqa: S105
    """Mean F1 of the answer's words against the reference."""
    ROUGE_L = "RougeL"
    """Mean F measure of the longest common subsequence."""


class GateOperator(StrEnum):
    """Comparison of a metric with a threshold."""

    GREATER_OR_EQUAL = "GreaterOrEqual"
    """The metric is at least the threshold."""
    LESS_OR_EQUAL = "LessOrEqual"
    """The metric is at most the threshold."""


class EvaluationDataset(DatasetSource):
    """Rows to evaluate on; metrics are named <dataset>/<metric>, for example faq/exact_match."""

    name: DnsLabel
    """Name of the dataset in metrics and gates."""
    metrics: Annotated[tuple[EvaluationMetric, ...], Field(min_length=1, max_length=8), distinct()] | None = (
        None
    )
    """Metrics to compute. For references that end in GSM8K's "#### 42", ExactMatch compares that answer alone. Default:
    Loss."""


BenchmarkName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][-_.()A-Za-z0-9]*$", min_length=1, max_length=96)]


class Benchmark(ApiModel):
    """A task or group of lm-evaluation-harness; metrics are named <name>/<metric>: gsm8k/exact_match,strict-match, and
    those of a group's members <name>/<member>/<metric>: mmlu/mmlu_stem/acc."""

    name: BenchmarkName
    """Name of a task or group of the harness, for example gsm8k or mmlu, or of a YAML file in uri."""
    uri: StorageUri | None = None
    """Folder with <name>.yaml, a task in the harness's format, and the files that it reads. Default: a task of the
    harness, whose dataset is on the Hugging Face Hub."""
    limit: Positive | None = None
    """Number of examples of each task, from the first. Default: all."""


class Generation(ApiModel):
    """Sampling of answers by the evaluated models."""

    max_new_tokens: Annotated[Positive, Field(le=8192)] | None = None
    """Longest answer in tokens, at most 8192. Default: 128."""
    temperature: NonNegativeNumber | None = None
    """Sampling temperature; 0 always selects the most likely token. Default: 0."""
    top_k: NonNegative | None = None
    """Number of most likely tokens to sample from; 0 means all. Default: 0."""


class Gate(ApiModel):
    """A requirement on a metric of the tuned model; exactly one of value and deltaFromBaseline."""

    rules: ClassVar = (exactly_one("value", "deltaFromBaseline"),)

    metric: ShortText
    """loss or perplexity (on validation rows), or <dataset or benchmark>/<metric>, for example faq/exact_match.
    Of a group's member: <benchmark>/<member>/<metric>."""
    op: GateOperator
    """Comparison of the metric with the threshold."""
    value: Number | None = None
    """Threshold as an absolute value."""
    delta_from_baseline: Number | None = None
    """Threshold relative to the base model's metric, for example -0.1; needs baseline."""


class Evaluation(ApiModel):
    """Evaluation during and after training. The Evaluate stage runs when this names datasets, benchmarks, prompts or
    gates."""

    rules: ClassVar = (
        ValidationRule(
            cel=(
                "!(has(self.baseline) && !self.baseline && has(self.gates) && "
                "self.gates.exists(g, has(g.deltaFromBaseline)))"
            ),
            message="a gate with deltaFromBaseline needs the base model's metrics: remove baseline: false",
            holds=lambda self: (
                self.baseline is not False
                or all(gate.delta_from_baseline is None for gate in self.gates or ())
            ),
        ),
    )

    every_steps: Positive | None = None
    """Optimizer steps between two losses on the validation rows. Default: only at the end of training."""
    max_examples: Positive | None = None
    """Number of rows to read of each validation and evaluation dataset, from the first. Default: 500."""
    datasets: (
        Annotated[tuple[EvaluationDataset, ...], Field(min_length=1, max_length=8), list_map("name")] | None
    ) = None
    """Further datasets to evaluate on. Default: none."""
    benchmarks: (
        Annotated[tuple[Benchmark, ...], Field(min_length=1, max_length=16), list_map("name")] | None
    ) = None
    """Tasks and groups of lm-evaluation-harness to run. Default: none."""
    prompts: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=2048)], ...],
            Field(min_length=1, max_length=16),
        ]
        | None
    ) = None
    """Prompts that the base model and the tuned model answer. Default: none."""
    generation: Generation | None = None
    """Sampling of answers by the evaluated models."""
    baseline: Flag | None = None
    """Whether to evaluate the base model too. Default: true."""
    gates: Annotated[tuple[Gate, ...], Field(min_length=1, max_length=16)] | None = None
    """Requirements that the tuned model must meet before it is exported. Default: none."""
