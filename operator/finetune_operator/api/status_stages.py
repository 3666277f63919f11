"""How a job goes: its stages, attempts and progress, and what they have cost."""

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
    """Where one stage stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"


class CacheOutcome(StrEnum):
    """Whether the work was already done by another job."""

    HIT = "Hit"
    MISS = "Miss"


class StageCache(ApiModel):
    """Whether the work was already done by another job."""

    result: CacheOutcome
    """Hit or Miss."""
    fingerprint: Digest | None = None
    """Of everything that decides the result."""
    source_uri: Annotated[Uri | None, Field(alias="sourceURI")] = None
    """Where it lies."""
    size_bytes: Whole | None = None
    """How large it is."""
    saved_seconds: Decimal | None = None
    """What the hit saved."""
    miss_because: Annotated[tuple[ShortText, ...], Field(max_length=8)] | None = None
    """Why nothing was reused, where that is known."""


class StageStatus(ApiModel):
    """One stage."""

    name: Stage
    """Which."""
    phase: StagePhase
    """Where it stands."""
    reason: ReasonText | None = None
    """Why, in one word."""
    attempt: NonNegative | None = None
    """The newest attempt."""
    job_set: DnsLabel | None = None
    """The JobSet of that attempt."""
    restart: NonNegative | None = None
    """How often that JobSet has been restarted, after disruptions. Absent: never."""
    worker_restarts: NonNegative | None = None
    """Pathways: how often workers of that attempt have been started again on their hosts, at least. Absent: never."""
    start_time: Timestamp | None = None
    """When its first attempt began."""
    completion_time: Timestamp | None = None
    """When it ended."""
    cache: StageCache | None = None
    """Whether the work was already done by another job."""
    resumed_from_step: NonNegative | None = None
    """The checkpoint that the newest attempt began at."""
    message: Message | None = None
    """In a sentence."""


class MetricPoint(ApiModel):
    """A metric's newest value."""

    name: ShortText
    """Its name, for example loss."""
    value: Decimal
    """Its value."""
    step: NonNegative
    """The step it was measured at."""


class CurvePoint(ApiModel):
    """One point of a curve."""

    step: NonNegative
    """The step."""
    value: Decimal
    """The value."""


class Curve(ApiModel):
    """A metric over the whole run, thinned."""

    metric: ShortText
    """Which metric."""
    sparkline: Annotated[str, Field(max_length=64)] | None = None
    """Drawn in one line of text."""
    points: Annotated[tuple[CurvePoint, ...], Field(max_length=48)] | None = None
    """Its points."""


class StepTime(ApiModel):
    """Time per step, recently."""

    p50: NonNegative
    """Median."""
    p95: NonNegative
    """Slow ones."""


class ProgressStatus(ApiModel):
    """How far training is."""

    step: NonNegative
    """Optimizer steps done."""
    total_steps: NonNegative
    """Optimizer steps to do."""
    step_text: ShortText | None = None
    """Both, for people."""
    percent: NonNegative | None = None
    """Share done."""
    eta_seconds: SecondsRange | None = None
    """Time left."""
    eta_text: ShortText | None = None
    """Time left, for people."""
    step_time_milliseconds: StepTime | None = None
    """Time per step."""
    tokens_per_second: Decimal | None = None
    """Trained tokens per second over all devices."""
    mfu_percent: Decimal | None = None
    """Model FLOPs utilization: share of the chips' published bfloat16 rate. Work that remat repeats does not count."""
    peak_hbm: Annotated[Quantity | None, Field(alias="peakHBM")] = None
    """Most memory used on a chip."""
    metrics: Annotated[tuple[MetricPoint, ...], Field(max_length=32), *list_map("name")] | None = None
    """Newest values."""
    curve: Curve | None = None
    """The loss over the whole run."""
    last_update_time: Timestamp | None = None
    """When the trainer last reported."""


class AttemptRecord(ApiModel):
    """One ended attempt."""

    stage: Stage
    """Of which stage."""
    attempt: NonNegative
    """Its number; JobSets and restarts inside them are counted through."""
    job_set: DnsLabel | None = None
    """Its JobSet."""
    restart: NonNegative | None = None
    """How often that JobSet had been restarted before, after disruptions. Absent: never."""
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None
    """Who is charged with its end; absent when it did its work."""
    reason: ReasonText
    """How it ended."""
    node: DnsName | None = None
    """Where it ran: the node of the host that failed, else of the first one. Absent where its pods were gone first."""
    start_step: NonNegative | None = None
    """Training step it began at."""
    end_step: NonNegative | None = None
    """Training step it reached."""


class AttemptsStatus(ApiModel):
    """How often stages were started, and why they had to be started again."""

    total: NonNegative
    """Attempts over all stages."""
    preemption: NonNegative = 0
    """Ended by preemption, eviction or suspension; not charged."""
    infrastructure: NonNegative = 0
    """Ended by node, network or storage faults."""
    user: NonNegative = 0
    """Ended by a fault of the job itself."""
    history: Annotated[tuple[AttemptRecord, ...], Field(max_length=10)] | None = None
    """The newest."""


class GoodputSeconds(ApiModel):
    """Where the time went."""

    queued: Whole | None = None
    """Waiting for quota. A lower bound: time in the queue of a JobSet that was deleted is not counted."""
    provisioning: Whole | None = None
    """From then until all processes ran, waiting for nodes and images; at least."""
    startup: Whole = 0
    """From the start of the process to the first step: imports, data, restore, compilation."""
    productive: Whole = 0
    """Steps that count."""
    evaluation: Whole = 0
    """Losses on the validation set in between and at the end."""
    recomputed: Whole = 0
    """Steps that had to be done again."""


class StartupSeconds(ApiModel):
    """What the time from a node to the first step went into."""

    pods: Whole | None = None
    """From the last pod on its node to the last process: images and volumes, at least. Part of provisioning; what
    follows is startup."""
    imports: Whole = 0
    """From the start of the process to the stage's first line: Python, MaxText, the processes finding each other."""
    data: Whole = 0
    """Training rows, prepared or out of the cache."""
    weights: Whole = 0
    """Restoring the model, and the checkpoint."""
    compilation: Whole = 0
    """Compiling programs, or reading them from the compilation cache."""
    first_step: Whole = 0
    """The first step itself."""


class GoodputStatus(ApiModel):
    """Share of the time that moved the training forward."""

    percent: Decimal
    """productive / all that is measured."""
    seconds: GoodputSeconds
    """Where the time went."""
    startup: StartupSeconds | None = None
    """What seconds.startup consists of, over all attempts, and the pods' part of seconds.provisioning."""
    compilations: NonNegative | None = None
    """Programs that the last attempt at training had to compile, since the compilation cache did not have them."""


class ActiveTime(ApiModel):
    """How long the job has run; what spec.activeDeadlineSeconds limits."""

    seconds: NonNegative
    """While processes of any stage ran, over all attempts; suspended and waiting time do not count."""
    as_of: Timestamp
    """When this and cost were counted."""


class CostStatus(ApiModel):
    """What the job has used so far."""

    chip_hours: Decimal
    """TPU chip hours, while processes ran."""
    amount: Decimal | None = None
    """Money for them, in the profile's currency, each hour at the price of the flavor that it ran on."""
    budget_remaining: Decimal | None = None
    """What is left of the budget: money where it is limited, else chip hours."""
