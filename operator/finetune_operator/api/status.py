"""What the operator reports: ``status`` of a FineTuneJob."""

from typing import Annotated

from pydantic import Field

from finetune_contract import Stage
from finetune_operator.api.common import (
    ApiModel,
    Message,
    NonNegative,
    Positive,
    ReasonText,
    Timestamp,
    Whole,
    list_map,
)
from finetune_operator.api.conditions import Condition, Phase, WaitingReason
from finetune_operator.api.status_resolved import Estimate, Resolved
from finetune_operator.api.status_results import (
    ArtifactStatus,
    CheckpointStatus,
    EvaluationStatus,
    FailureStatus,
)
from finetune_operator.api.status_stages import (
    ActiveTime,
    AttemptsStatus,
    CostStatus,
    GoodputStatus,
    ProgressStatus,
    StageStatus,
)


class WaitingStatus(ApiModel):
    """What the job is waiting for."""

    reason: WaitingReason
    """What for."""
    since: Timestamp
    """Since when."""
    message: Message
    """In a sentence."""


class PendingRecord(ApiModel):
    """The record of an attempt's end that could not be written to the run folder."""

    stage: Stage
    """Of the attempt."""
    number: Positive
    """Of its JobSet."""
    restart: NonNegative | None = None
    """Of the JobSet. Absent: 0."""
    reason: ReasonText
    """Why it was stopped."""
    record: Annotated[str, Field(max_length=8192)]
    """What is to be written, as JSON."""


class FineTuneJobStatus(ApiModel):
    """What the operator saw; a report, never an input."""

    observed_generation: Whole
    """The generation of the spec that this status speaks of; -1: not looked at yet."""
    phase: Phase | None = None
    """Where the job stands, in one word."""
    stage: Stage | None = None
    """The stage at work, or the last one."""
    retry_generation: NonNegative | None = None
    """The newest spec.retry.generation that was acted on. Absent: none."""
    summary: Message | None = None
    """Where the job stands, in a sentence."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), *list_map("type")] | None = None
    """Conditions; all known ones are there from the first look on."""
    waiting: WaitingStatus | None = None
    """What the job is waiting for."""
    resolved: Resolved | None = None
    """Everything that decides the result, resolved once."""
    estimate: Estimate | None = None
    """What the steps of training are expected to take, without start-up, compilation and the other stages."""
    stages: Annotated[tuple[StageStatus, ...], Field(max_length=8), *list_map("name")] | None = None
    """The stages in order."""
    progress: ProgressStatus | None = None
    """How far training is."""
    attempts: AttemptsStatus | None = None
    """How often stages were started."""
    goodput: GoodputStatus | None = None
    """Share of the time that moved the training forward."""
    pending: Annotated[tuple[PendingRecord, ...], Field(max_length=16)] | None = None
    """Ends of attempts that the run folder does not hold yet, because it cannot be read or written. They are written
    when it can."""
    active_time: ActiveTime | None = None
    """How long the job has run."""
    cost: CostStatus | None = None
    """What the job has used so far."""
    checkpoints: Annotated[tuple[CheckpointStatus, ...], Field(max_length=10)] | None = None
    """Saved states, newest last."""
    evaluation: EvaluationStatus | None = None
    """What was measured."""
    artifacts: Annotated[tuple[ArtifactStatus, ...], Field(max_length=32)] | None = None
    """What was handed over."""
    failure: FailureStatus | None = None
    """Why the job failed, and what to change."""
    start_time: Timestamp | None = None
    """When the operator admitted the job."""
    completion_time: Timestamp | None = None
    """When it ended."""
