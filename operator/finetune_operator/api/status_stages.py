"""Stages, attempts, progress and cost in the status."""

from datetime import date
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from finetune_contract import FailureClass, Stage
from finetune_operator.api.common import (
    ApiModel,
    Decimal,
    Digest,
    DnsLabel,
    DnsName,
    Message,
    NonNegative,
    Quantity,
    ReasonText,
    ShortText,
    Timestamp,
    Uri,
    Whole,
    list_map,
)
from finetune_operator.api.status_resolved import SecondsRange


class StagePhase(StrEnum):
    """State of a stage."""

    PENDING = "Pending"
    """The stage has not started."""
    RUNNING = "Running"
    """An attempt of the stage is active."""
    SUCCEEDED = "Succeeded"
    """The stage has finished its work."""
    FAILED = "Failed"
    """The stage failed and is not retried."""
    SKIPPED = "Skipped"
    """The stage is not needed or was not reached."""


class CacheOutcome(StrEnum):
    """Whether a cached result was used."""

    HIT = "Hit"
    """A cached result was reused."""
    MISS = "Miss"
    """No cached result could be reused."""


class StageCache(ApiModel):
    """Whether the stage reused a cached result."""

    result: CacheOutcome
    """Whether a cached result was used."""
    fingerprint: Digest | None = None
    """Fingerprint of everything that decides the result."""
    source_uri: Annotated[Uri | None, Field(alias="sourceURI")] = None
    """URI of the cached result."""
    size_bytes: Whole | None = None
    """Size of the cached result in bytes."""
    saved_seconds: Decimal | None = None
    """Seconds that the cached result saved."""
    miss_because: Annotated[tuple[ShortText, ...], Field(max_length=8)] | None = None
    """Reasons why nothing was reused, if known."""


class StageProgressStatus(ApiModel):
    """What a running stage is doing."""

    doing: ShortText
    """Current activity in words, for example converting the weights."""
    done: Whole = 0
    """Number of units that the activity has finished."""
    total: Whole | None = None
    """Number of units of the whole activity. Absent: unknown."""
    unit: ShortText | None = None
    """What is counted, for example tensors. Absent: nothing is counted."""
    done_bytes: Whole | None = None
    """Bytes that the activity has finished. Absent: it has no known size."""
    total_bytes: Whole | None = None
    """Bytes of the whole activity. Absent: it has no known size."""
    since: Timestamp
    """Time at which the activity began."""
    last_update_time: Timestamp
    """Time at which the activity last advanced, as far as it is known."""


class StageStatus(ApiModel):
    """State of a stage."""

    name: Stage
    """Name of the stage."""
    phase: StagePhase
    """State of the stage."""
    reason: ReasonText | None = None
    """Reason for the phase in one CamelCase word."""
    attempt: NonNegative | None = None
    """Number of the newest attempt. Absent: none."""
    job_set: DnsLabel | None = None
    """Name of the newest attempt's JobSet."""
    restart: NonNegative | None = None
    """Number of restarts of that JobSet after disruptions. Absent: 0."""
    worker_restarts: NonNegative | None = None
    """Pathways: lower bound of restarts of that attempt's workers on their hosts. Absent: 0."""
    start_time: Timestamp | None = None
    """Time at which the first attempt began."""
    completion_time: Timestamp | None = None
    """Time at which the stage ended."""
    cache: StageCache | None = None
    """Whether the stage reused a cached result."""
    resumed_from_step: NonNegative | None = None
    """Step of the checkpoint that the newest attempt began at."""
    progress: StageProgressStatus | None = None
    """What the running stage is doing; Train, until its first step. Absent: it is not running, or has reported
    nothing."""
    message: Message | None = None
    """Explanation of the stage's state in a sentence."""


class MetricPoint(ApiModel):
    """Newest value of a metric."""

    name: ShortText
    """Name of the metric, for example loss."""
    value: Decimal
    """Newest value of the metric."""
    step: NonNegative
    """Optimizer step of the measurement."""


class CurvePoint(ApiModel):
    """A point of a curve."""

    step: NonNegative
    """Optimizer step of the point."""
    value: Decimal
    """Value of the metric at that step."""


class Curve(ApiModel):
    """Downsampled history of a metric over the whole run."""

    metric: ShortText
    """Name of the plotted metric."""
    sparkline: Annotated[str, Field(max_length=64)] | None = None
    """The curve in one line of text."""
    points: Annotated[tuple[CurvePoint, ...], Field(max_length=48)] | None = None
    """Points of the curve in order."""


class StepTime(ApiModel):
    """Recent time per step in milliseconds."""

    p50: NonNegative
    """Median step time in milliseconds."""
    p95: NonNegative
    """95th percentile step time in milliseconds."""


class ProgressStatus(ApiModel):
    """Progress of the training stage."""

    step: NonNegative
    """Number of finished optimizer steps."""
    total_steps: NonNegative
    """Number of optimizer steps of the whole training."""
    step_text: ShortText | None = None
    """step and totalSteps for people, for example 412/1000."""
    percent: NonNegative | None = None
    """Share of finished steps in percent."""
    eta_seconds: SecondsRange | None = None
    """Estimated time left in seconds."""
    eta_text: ShortText | None = None
    """Estimated time left, for people, for example 18-24m."""
    step_time_milliseconds: StepTime | None = None
    """Recent time per step in milliseconds."""
    tokens_per_second: Decimal | None = None
    """Trained tokens per second over all devices."""
    mfu_percent: Decimal | None = None
    """Model FLOPs utilization in percent: share of the chips' published bfloat16 rate. Rematerialized work does not
    count."""
    peak_hbm: Annotated[Quantity | None, Field(alias="peakHBM")] = None
    """Highest memory use of any chip."""
    metrics: Annotated[tuple[MetricPoint, ...], Field(max_length=32), list_map("name")] | None = None
    """Newest values of the metrics."""
    curve: Curve | None = None
    """Loss over the whole run."""
    last_update_time: Timestamp | None = None
    """Time of the trainer's last report."""


class AttemptRecord(ApiModel):
    """An attempt that has ended."""

    stage: Stage
    """Stage of the attempt."""
    attempt: NonNegative
    """Number of the attempt; JobSets and the restarts inside them are counted consecutively."""
    job_set: DnsLabel | None = None
    """Name of the attempt's JobSet."""
    restart: NonNegative | None = None
    """Number of earlier restarts of that JobSet after disruptions. Absent: 0."""
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None
    """Class of the failure, which decides the retry budget. Absent: the attempt succeeded."""
    reason: ReasonText
    """Reason for the end in one CamelCase word."""
    node: DnsName | None = None
    """Node of the host that failed, else of the first host. Absent if the pods were deleted first."""
    start_step: NonNegative | None = None
    """Optimizer step that the attempt began at."""
    end_step: NonNegative | None = None
    """Optimizer step that the attempt reached; of one that could not save, the last step that it had reported."""
    lost_steps: NonNegative | None = None
    """Optimizer steps that the next attempt had to repeat. Absent: none, or not known yet."""


class AttemptsStatus(ApiModel):
    """Number of attempts, and causes of unsuccessful ones."""

    total: NonNegative
    """Number of attempts over all stages."""
    preemption: NonNegative = 0
    """Attempts ended by preemption, eviction or a lost node; limited by recovery.maxPreemptions."""
    infrastructure: NonNegative = 0
    """Attempts ended by node, network or storage faults; limited by recovery.maxInfrastructureRetries."""
    user: NonNegative = 0
    """Attempts ended by a fault of the job itself; limited by recovery.maxUserRetries."""
    history: Annotated[tuple[AttemptRecord, ...], Field(max_length=10)] | None = None
    """Newest ended attempts, at most 10."""


class GoodputSeconds(ApiModel):
    """Use of the time in seconds."""

    queued: Whole | None = None
    """Seconds of waiting for quota. A lower bound: queue time of a deleted JobSet is not counted."""
    provisioning: Whole | None = None
    """Lower bound of the seconds from reserved quota until all processes ran: waiting for nodes and images."""
    startup: Whole = 0
    """Seconds from the start of the process to the first step: imports, data, restore, compilation."""
    productive: Whole = 0
    """Seconds of steps that count towards the result."""
    evaluation: Whole = 0
    """Seconds of validation losses during and after training."""
    recomputed: Whole = 0
    """Seconds of steps that were repeated after an interruption."""


class StartupSeconds(ApiModel):
    """Parts of the time from a node to the first step."""

    pods: Whole | None = None
    """Lower bound of the seconds from the last scheduled pod to the last process: images and volumes. Part of
    provisioning; the other fields are parts of startup."""
    imports: Whole = 0
    """Seconds from the start of the process to the stage's first line: Python, MaxText, and connecting the
    processes."""
    data: Whole = 0
    """Seconds to prepare the training rows or to read them from the cache."""
    weights: Whole = 0
    """Seconds to restore the model and the checkpoint."""
    compilation: Whole = 0
    """Seconds to compile programs, or to read them from the compilation cache."""
    first_step: Whole = 0
    """Seconds of the first step itself."""


class GoodputStatus(ApiModel):
    """Share of the time that advanced the training."""

    percent: Decimal
    """Productive share of all measured seconds, in percent."""
    seconds: GoodputSeconds
    """Use of the time in seconds."""
    startup: StartupSeconds | None = None
    """Parts of seconds.startup over all attempts, and the pods' part of seconds.provisioning."""
    compilations: NonNegative | None = None
    """Programs that the last attempt of Train had to compile, since the compilation cache did not hold them."""


class ActiveTime(ApiModel):
    """Running time of the job, which spec.activeDeadlineSeconds limits."""

    seconds: NonNegative
    """Seconds in which processes of any stage ran, over all attempts, without suspended and waiting time."""
    as_of: Timestamp
    """Time at which this and cost were computed."""
    chips: NonNegative | None = None
    """TPU chips that the running attempt holds. An edit of spec.resources changes those of the next attempt."""


class CostStatus(ApiModel):
    """Chip hours and money used so far."""

    chip_hours: Decimal
    """TPU chip hours in which processes ran."""
    amount: Decimal | None = None
    """Cost in the profile's currency, each hour at the price of the flavor that it ran on. Absent if a price is
    unknown."""
    currency: ShortText | None = None
    """The profile's currency. Absent if the profile names none."""
    budget_remaining: Decimal | None = None
    """Unused part of the budget: money if it limits the cost, else chip hours. Absent without a budget."""


class MonthlyBudgetStatus(ApiModel):
    """Budget of the job's namespace for a calendar month (UTC), by constraints.chipHoursPerMonth of its profile."""

    month: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}$", max_length=7)]
    """The month, for example 2026-11."""
    chip_hours: Decimal
    """Chip hours that the namespace may use under the profile in the month."""
    used: Decimal | None = None
    """Chip hours that its jobs had used under the profile. Absent: the operator had not read its ledger yet."""
    as_of: Timestamp
    """Time at which this was computed."""
    reset_time: Timestamp
    """Time at which the next month begins."""


class RecordedAttempt(ApiModel):
    """Newest attempt of a stage that the operator's ledger contains."""

    stage: Stage
    """Stage of the attempt."""
    number: NonNegative
    """Number of the attempt's JobSet."""
    restart: NonNegative | None = None
    """Number of earlier restarts of that JobSet. Absent: 0."""


class LedgerStatus(ApiModel):
    """Part of the job's usage that the operator's ledger contains."""

    records: NonNegative = 0
    """Number of records that the ledger contains of the job."""
    chip_hours: Decimal
    """Recorded part of cost.chipHours."""
    amount: Decimal | None = None
    """Recorded part of cost.amount. Absent if a price is unknown."""
    attempts: Annotated[tuple[RecordedAttempt, ...], Field(max_length=8), list_map("stage")] | None = None
    """Newest recorded attempt of each stage; earlier ones are recorded, too. Absent: none."""
    pending: NonNegative | None = None
    """Number of records that could not be written yet. Absent: 0."""
    pending_day: date | None = None
    """Day (UTC) on which their usage counts. Absent: there are none."""
