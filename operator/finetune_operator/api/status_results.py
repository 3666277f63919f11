"""What a job has come to: checkpoints, measurements, artefacts, or a failure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from finetune_contract import FailureClass, Stage
from finetune_operator.api.common import (
    Address,
    ApiModel,
    Decimal,
    Digest,
    Flag,
    LongText,
    Message,
    NonNegative,
    ReasonText,
    ShortText,
    Uri,
    Whole,
)
from finetune_operator.api.evaluation import GateOperator

MetricValues = Annotated[Mapping[ShortText, Decimal], Field(max_length=48)]


class CheckpointTag(StrEnum):
    """What a checkpoint is."""

    BEST = "Best"
    LAST = "Last"


class CheckpointStatus(ApiModel):
    """A saved state of the training."""

    step: NonNegative
    """Its step."""
    uri: Uri
    """Where it lies."""
    metrics: MetricValues | None = None
    """Measured at that step."""
    tags: Annotated[tuple[CheckpointTag, ...], Field(max_length=2)] | None = None
    """Best, Last."""


class GateStatus(ApiModel):
    """Whether a gate was met."""

    metric: ShortText
    """Which metric."""
    value: Decimal | None = None
    """What was measured; absent when it was not."""
    op: GateOperator
    """How it is compared."""
    threshold: Decimal | None = None
    """What was asked for; absent where the base model, which decides it, was not measured."""
    passed: Flag
    """Whether it was met."""


class EvaluationStatus(ApiModel):
    """What was measured."""

    dataset_hash: Digest | None = None
    """Of the rows measured on; only results of the same rows can be compared."""
    baseline: MetricValues | None = None
    """The base model's metrics."""
    result: MetricValues | None = None
    """The tuned model's metrics."""
    gates: Annotated[tuple[GateStatus, ...], Field(max_length=16)] | None = None
    """Whether the gates were met."""
    samples_uri: Annotated[Uri | None, Field(alias="samplesURI")] = None
    """Every answer to evaluation.prompts and to the questions of evaluation.datasets, as JSON lines, beside its
    reference and the base model's answer."""


class ArtifactType(StrEnum):
    """What an artefact is."""

    HUGGING_FACE = "HuggingFace"
    ADAPTER = "Adapter"
    ORBAX_PARAMS = "OrbaxParams"
    REPORT = "Report"
    TENSORBOARD = "TensorBoard"
    TRACE = "Trace"


class ArtifactStatus(ApiModel):
    """Something handed over."""

    name: ShortText
    """Its name."""
    type: ArtifactType
    """What it is."""
    uri: Address
    """Where it lies."""
    digest: Digest | None = None
    """sha256 of the manifest that lists every file's sha256."""
    size_bytes: Whole | None = None
    """How large it is."""
    step: NonNegative | None = None
    """The checkpoint that it was made of."""


class FailureStatus(ApiModel):
    """Why the job failed, and what to change."""

    failure_class: Annotated[FailureClass, Field(alias="class")]
    """Who has to act."""
    reason: ReasonText
    """Why, in one word."""
    stage: Stage | None = None
    """Where: the stage."""
    attempt: NonNegative | None = None
    """Where: the attempt."""
    host: ShortText | None = None
    """Where: the host."""
    message: Message
    """What was seen and what was expected."""
    suggestion: Message | None = None
    """What to change."""
    evidence: LongText | None = None
    """The last lines of the log."""
    logs_uri: Annotated[Uri | None, Field(alias="logsURI")] = None
    """More of the log."""
