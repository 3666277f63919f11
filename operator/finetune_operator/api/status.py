"""``status`` of a FineTuneJob."""

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
from finetune_operator.api.conditions import Condition, ConditionStatus, ConditionType, Phase, WaitingReason
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
    LedgerStatus,
    MonthlyBudgetStatus,
    ProgressStatus,
    StageStatus,
)


class WaitingStatus(ApiModel):
    """Why a job that could proceed waits."""

    reason: WaitingReason
    """Reason in one CamelCase word."""
    since: Timestamp
    """Time at which the wait began."""
    message: Message
    """Explanation of the wait in a sentence."""


class PendingRecord(ApiModel):
    """Record of an attempt's end that could not be written to the run folder."""

    stage: Stage
    """Stage of the attempt."""
    number: Positive
    """Number of the attempt's JobSet."""
    restart: NonNegative | None = None
    """Restart number of the JobSet. Absent: 0."""
    reason: ReasonText
    """Reason for the attempt's end in one word."""
    record: Annotated[str, Field(max_length=8192)]
    """Record to be written, as JSON."""


class FineTuneJobStatus(ApiModel):
    """Observed state of the job; a report, never an input."""

    observed_generation: Whole
    """metadata.generation that this status describes; -1: not processed yet."""
    phase: Phase | None = None
    """Summary of the job's state in one word."""
    stage: Stage | None = None
    """Current stage, or the last one of an ended job."""
    retry_generation: NonNegative | None = None
    """Newest spec.retry.generation that has been processed. Absent: none."""
    summary: Message | None = None
    """Summary of the job's state in a sentence."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), list_map("type")] | None = None
    """Conditions of the job; all known types are set from the first status on."""
    waiting: WaitingStatus | None = None
    """Why the job waits. Absent: it does not wait."""
    resolved: Resolved | None = None
    """Everything that decides the result, resolved once at admission and by preflight."""
    estimate: Estimate | None = None
    """Expected time and cost of the training steps, without startup, compilation and the other stages."""
    stages: Annotated[tuple[StageStatus, ...], Field(max_length=8), list_map("name")] | None = None
    """Stages of the job in order."""
    progress: ProgressStatus | None = None
    """Progress of the training stage."""
    attempts: AttemptsStatus | None = None
    """Number of attempts, and causes of unsuccessful ones."""
    goodput: GoodputStatus | None = None
    """Share of the time that advanced the training."""
    pending: Annotated[tuple[PendingRecord, ...], Field(max_length=16)] | None = None
    """Ends of attempts that the run folder does not hold yet, because it cannot be read or written. They are written as
    soon as it can."""
    active_time: ActiveTime | None = None
    """Running time of the job."""
    cost: CostStatus | None = None
    """Chip hours and money used so far."""
    monthly_budget: MonthlyBudgetStatus | None = None
    """Budget of the namespace for the month. Absent if the profile sets none."""
    ledger: LedgerStatus | None = None
    """What the operator's ledger contains of it. Absent if nothing is recorded yet, or the operator keeps no ledger."""
    checkpoints: Annotated[tuple[CheckpointStatus, ...], Field(max_length=10)] | None = None
    """Saved checkpoints of the training, newest last."""
    evaluation: EvaluationStatus | None = None
    """Metrics of the evaluation, and gates."""
    artifacts: Annotated[tuple[ArtifactStatus, ...], Field(max_length=32)] | None = None
    """Exported models, reports and traces."""
    failure: FailureStatus | None = None
    """Why the job failed, and what to change. Absent: it has not failed."""
    start_time: Timestamp | None = None
    """Time at which the operator admitted the job."""
    completion_time: Timestamp | None = None
    """Time at which the job ended."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """Returns the condition of that type; None if there is none."""
        return next((condition for condition in self.conditions or () if condition.type == kind), None)

    def is_true(self, kind: ConditionType) -> bool:
        """Whether the condition of that type is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == ConditionStatus.TRUE
