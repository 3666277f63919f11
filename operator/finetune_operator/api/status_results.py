"""Results in the status: checkpoints, metrics, artifacts or a failure."""

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

MOST_METRICS = 48
MetricValues = Annotated[Mapping[ShortText, Decimal], Field(max_length=MOST_METRICS)]


class CheckpointTag(StrEnum):
    """Role of a checkpoint."""

    BEST = "Best"
    """The best by checkpointing.bestBy."""
    LAST = "Last"
    """The newest checkpoint."""


class CheckpointStatus(ApiModel):
    """A saved checkpoint of the training."""

    step: NonNegative
    """Optimizer step of the checkpoint."""
    uri: Uri
    """URI of the checkpoint's folder."""
    metrics: MetricValues | None = None
    """Metrics measured at that step, by name."""
    tags: Annotated[tuple[CheckpointTag, ...], Field(max_length=2)] | None = None
    """Roles of the checkpoint. Absent: none."""


class GateStatus(ApiModel):
    """Result of a gate."""

    metric: ShortText
    """Name of the gate's metric."""
    value: Decimal | None = None
    """Measured value of the metric. Absent if it was not measured."""
    op: GateOperator
    """Comparison of the metric with the threshold."""
    threshold: Decimal | None = None
    """Required value. Absent if it depends on the base model's metric and that was not measured."""
    passed: Flag
    """Whether the gate was met."""


class EvaluationStatus(ApiModel):
    """Metrics of the evaluation, and gates."""

    dataset_hash: Digest | None = None
    """Hash of the evaluated rows; only results of the same rows can be compared."""
    baseline: MetricValues | None = None
    """Metrics of the base model, by name."""
    result: MetricValues | None = None
    """Metrics of the tuned model, by name."""
    gates: Annotated[tuple[GateStatus, ...], Field(max_length=16)] | None = None
    """Results of the gates."""
    samples_uri: Annotated[Uri | None, Field(alias="samplesURI")] = None
    """URI of the answers to evaluation.prompts and to the questions of evaluation.datasets, as JSON lines with the
    reference and the base model's answer."""


class ArtifactType(StrEnum):
    """Type of an artifact."""

    HUGGING_FACE = "HuggingFace"
    """Model folder in Hugging Face format."""
    ADAPTER = "Adapter"
    """LoRA adapter in PEFT format."""
    ORBAX_PARAMS = "OrbaxParams"
    """Unscanned Orbax parameters."""
    REPORT = "Report"
    """Report of the run."""
    TENSORBOARD = "TensorBoard"
    """Logs for TensorBoard."""
    TRACE = "Trace"
    """JAX profile of some steps."""


class ArtifactStatus(ApiModel):
    """An artifact of the job."""

    name: ShortText
    """Name of the artifact."""
    type: ArtifactType
    """Type of the artifact."""
    uri: Address
    """URI or repository of the artifact."""
    digest: Digest | None = None
    """sha256 of the manifest, which lists every file's sha256."""
    size_bytes: Whole | None = None
    """Size of all files in bytes."""
    step: NonNegative | None = None
    """Step of the checkpoint that it was made from."""


class FailureStatus(ApiModel):
    """Why the job failed, and what to change."""

    failure_class: Annotated[FailureClass, Field(alias="class")]
    """Who must act on the failure."""
    reason: ReasonText
    """Reason for the failure in one CamelCase word."""
    stage: Stage | None = None
    """Stage that failed. Absent: no stage."""
    attempt: NonNegative | None = None
    """Number of the failed attempt."""
    host: ShortText | None = None
    """Host that failed. Absent if unknown."""
    message: Message
    """What was observed, and what was expected."""
    suggestion: Message | None = None
    """What to change before a retry."""
    evidence: LongText | None = None
    """Last lines of the log."""
    logs_uri: Annotated[Uri | None, Field(alias="logsURI")] = None
    """URI of the rest of the log."""
