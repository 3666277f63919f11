"""What to measure: ``spec.evaluation``."""

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
    """What is measured on a dataset."""

    LOSS = "Loss"
    EXACT_MATCH = "ExactMatch"
    TOKEN_F1 = "TokenF1"  # noqa: S105
    ROUGE_L = "RougeL"


class GateOperator(StrEnum):
    """How a metric is compared."""

    GREATER_OR_EQUAL = "GreaterOrEqual"
    LESS_OR_EQUAL = "LessOrEqual"


class EvaluationDataset(DatasetSource):
    """Rows to measure on; metrics are named <dataset>/<metric>, for example faq/exact_match."""

    name: DnsLabel
    """Name in metrics and gates."""
    metrics: (
        Annotated[tuple[EvaluationMetric, ...], Field(min_length=1, max_length=8), *distinct()] | None
    ) = None
    """What to measure. Where references end in GSM8K's "#### 42", ExactMatch compares that alone. Default: Loss."""


BenchmarkName = Annotated[str, Field(pattern=r"^[a-z0-9][-_a-z0-9]*$", min_length=1, max_length=63)]


class Benchmark(ApiModel):
    """A task of lm-evaluation-harness; metrics are called <name>/<metric>: gsm8k/exact_match,strict-match."""

    name: BenchmarkName
    """Its name: one that the harness knows, for example gsm8k, or that of a YAML file in uri."""
    uri: StorageUri | None = None
    """A folder with <name>.yaml, a task as the harness describes them, and the files that it reads. Default: a task of
    the harness, whose dataset is on the Hugging Face Hub."""
    limit: Positive | None = None
    """Only the first examples. Default: all."""


class Generation(ApiModel):
    """How answers are generated."""

    max_new_tokens: Annotated[Positive, Field(le=8192)] | None = None
    """Longest answer in tokens. Default: 128."""
    temperature: NonNegativeNumber | None = None
    """0 takes the likeliest token every time. Default: 0."""
    top_k: NonNegative | None = None
    """Choose among the likeliest tokens; 0: among all. Default: 0."""


class Gate(ApiModel):
    """A condition on the tuned model's metrics; exactly one of value and deltaFromBaseline."""

    rules: ClassVar = (exactly_one("value", "deltaFromBaseline"),)

    metric: ShortText
    """loss or perplexity (on the validation rows), or <dataset or benchmark>/<metric>, for example faq/exact_match."""
    op: GateOperator
    """How the metric is compared."""
    value: Number | None = None
    """The threshold itself."""
    delta_from_baseline: Number | None = None
    """The threshold relative to the base model, for example -0.1; needs the baseline."""


class Evaluation(ApiModel):
    """What to measure during and after training. The Evaluate stage runs when this names datasets, benchmarks,
    prompts or gates."""

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
    """Loss on the validation rows after so many steps. Default: only at the end of the training."""
    max_examples: Positive | None = None
    """Only the first rows of each validation and evaluation dataset. Default: 500."""
    datasets: (
        Annotated[tuple[EvaluationDataset, ...], Field(min_length=1, max_length=8), *list_map("name")] | None
    ) = None
    """Further datasets to measure on."""
    benchmarks: (
        Annotated[tuple[Benchmark, ...], Field(min_length=1, max_length=16), *list_map("name")] | None
    ) = None
    """Benchmarks."""
    prompts: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=2048)], ...],
            Field(min_length=1, max_length=16),
        ]
        | None
    ) = None
    """Prompts to answer, by the base model and the tuned one."""
    generation: Generation | None = None
    """How answers are generated."""
    baseline: Flag | None = None
    """Measure the base model too. Default: true."""
    gates: Annotated[tuple[Gate, ...], Field(min_length=1, max_length=16)] | None = None
    """Conditions that the tuned model must meet before it is exported."""
