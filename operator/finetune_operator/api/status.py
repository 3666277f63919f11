"""What the operator reports: ``status`` of a FineTuneJob."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from finetune_contract import FailureClass, Stage
from finetune_operator.api.common import (
    ApiModel,
    Decimal,
    DnsLabel,
    DnsName,
    Flag,
    ImageRef,
    LongText,
    Message,
    NonNegative,
    Quantity,
    ReasonText,
    ShortText,
    Timestamp,
    Token,
    Uri,
    Whole,
    list_map,
)
from finetune_operator.api.conditions import Condition, Phase, WaitingReason
from finetune_operator.api.data import DatasetFormat
from finetune_operator.api.placement import Capacity, Controller
from finetune_operator.api.policies import MemoryCheck

Digest = Annotated[str, Field(max_length=128)]
MetricValues = Annotated[Mapping[ShortText, Decimal], Field(max_length=32)]
Address = Annotated[str, Field(max_length=1024)]


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


class CheckpointTag(StrEnum):
    """What a checkpoint is."""

    BEST = "Best"
    LAST = "Last"


class ArtifactType(StrEnum):
    """What an artefact is."""

    HUGGING_FACE = "HuggingFace"
    ADAPTER = "Adapter"
    ORBAX_SCANNED = "OrbaxScanned"
    ORBAX_PARAMS = "OrbaxParams"
    MODEL_CARD = "ModelCard"
    REPORT = "Report"
    CONFIG = "Config"
    TENSORBOARD = "TensorBoard"
    TRACE = "Trace"


class Waiting(ApiModel):
    """What the job is waiting for."""

    reason: WaitingReason
    """What for."""
    since: Timestamp
    """Since when."""
    message: Message
    """In a sentence."""


class SecondsRange(ApiModel):
    """An estimate in seconds."""

    low: Whole
    """At least."""
    high: Whole
    """At most."""


# --- resolved


class ResolvedProfile(ApiModel):
    """The profile, as it was at admission."""

    name: DnsName
    """Its name."""
    hash: Digest
    """Hash of its spec."""


class ResolvedModel(ApiModel):
    """What the model is."""

    source: Address
    """Where it comes from."""
    revision: Digest | None = None
    """Commit, or digest over the folder's files."""
    architecture: ShortText | None = None
    """As config.json names it."""
    parameters: Whole | None = None
    """Number of parameters."""
    maxtext_model: ShortText | None = None
    """MaxText's name of it."""
    layout: ShortText | None = None
    """How the converted checkpoint is laid out."""


class ResolvedDataset(ApiModel):
    """What a dataset is."""

    name: DnsLabel
    """Its name."""
    revision: Digest | None = None
    """Commit, or digest over the files."""
    format: DatasetFormat | None = None
    """The format that was seen."""
    rows: Whole | None = None
    """Rows that take part."""
    tokens: Whole | None = None
    """Tokens in them."""
    truncated_percent: Decimal | None = None
    """Share of rows that were cut to maxSeqLength."""
    dropped_rows: Whole | None = None
    """Rows that could not take part."""
    report_uri: Annotated[Uri | None, Field(alias="reportURI")] = None
    """The whole report."""


class ResolvedHyperparameters(ApiModel):
    """Numbers instead of Auto."""

    steps: Whole | None = None
    """Optimizer steps of the whole training."""
    global_batch_size: NonNegative | None = None
    """Sequences per optimizer step."""
    per_device_batch_size: Decimal | None = None
    """Sequences per device and forward pass; below 1 where devices share a sequence."""
    max_seq_length: Whole | None = None
    """Longest sequence in tokens, after the model's own limit."""


class ResolvedResources(ApiModel):
    """The slice, and why it was chosen."""

    tpu: Token
    """Google's name, for example v6e-16."""
    accelerator: ShortText
    """GKE's accelerator label."""
    topology: Token
    """GKE's topology label."""
    machine_type: ShortText | None = None
    """GKE's machine type."""
    chips: NonNegative
    """Over all slices."""
    hosts: NonNegative
    """Over all slices."""
    slices: NonNegative
    """Number of slices."""
    capacity: Capacity
    """Kind of capacity."""
    controller: Controller | None = None
    """How the hosts work together."""
    why: Message | None = None
    """Why this slice."""


class ResolvedMemory(ApiModel):
    """Whether it fits."""

    estimated_per_chip: Quantity | None = None
    """What the training needs."""
    limit_per_chip: Quantity | None = None
    """What a chip has."""
    source: MemoryCheck
    """How that was found out."""


class ResolvedImages(ApiModel):
    """The images that run."""

    trainer: ImageRef
    """The trainer's."""


class Resolved(ApiModel):
    """Everything that decides the result, resolved once."""

    spec_hash: Digest | None = None
    """Hash of the merged spec."""
    profile: ResolvedProfile | None = None
    """The profile, as it was at admission."""
    model: ResolvedModel | None = None
    """What the model is."""
    datasets: Annotated[tuple[ResolvedDataset, ...], Field(max_length=48)] | None = None
    """What the datasets are."""
    hyperparameters: ResolvedHyperparameters | None = None
    """Numbers instead of Auto."""
    resources: ResolvedResources | None = None
    """The slice, and why it was chosen."""
    memory: ResolvedMemory | None = None
    """Whether it fits."""
    checkpoint: ShortText | None = None
    """Which checkpoint is exported, where that differs from what the default would be later."""
    images: ResolvedImages | None = None
    """The images that run."""
    run_folder: Uri | None = None
    """Where everything of this run lies."""


class Estimate(ApiModel):
    """What the whole job is expected to take."""

    duration_seconds: SecondsRange | None = None
    """Running time."""
    chip_hours: Decimal | None = None
    """TPU chip hours."""
    cost: Decimal | None = None
    """Money, in the profile's currency."""


# --- progress


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
    """Inputs that differed from the nearest entry."""


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
    """Share of the chips' peak that is used."""
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
    """Its number."""
    failure_class: Annotated[FailureClass | None, Field(alias="class")] = None
    """Who is charged with its end; absent when it did its work."""
    reason: ReasonText
    """How it ended."""
    node: DnsName | None = None
    """Where it was first seen to end."""
    start_step: NonNegative | None = None
    """Training step it began at."""
    end_step: NonNegative | None = None
    """Training step it reached."""


class Attempts(ApiModel):
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

    queued: Whole = 0
    """Waiting for quota."""
    provisioning: Whole = 0
    """Waiting for nodes and images."""
    startup: Whole = 0
    """From running pods to the first step."""
    productive: Whole = 0
    """Steps that count."""
    recomputed: Whole = 0
    """Steps that had to be done again."""


class Goodput(ApiModel):
    """Share of the time that moved the training forward."""

    percent: Decimal
    """productive / all."""
    seconds: GoodputSeconds
    """Where the time went."""


class Cost(ApiModel):
    """What the job has used so far."""

    chip_hours: Decimal
    """TPU chip hours."""
    amount: Decimal | None = None
    """Money, in the profile's currency."""
    budget_remaining: Decimal | None = None
    """What is left of the budget."""


class Checkpoint(ApiModel):
    """A saved state of the training."""

    step: NonNegative
    """Its step."""
    uri: Uri
    """Where it lies."""
    metrics: MetricValues | None = None
    """Measured at that step."""
    tags: Annotated[tuple[CheckpointTag, ...], Field(max_length=2)] | None = None
    """Best, Last."""


class GateResult(ApiModel):
    """Whether a gate was met."""

    metric: ShortText
    """Which metric."""
    value: Decimal | None = None
    """What was measured; absent when it was not."""
    threshold: Decimal
    """What was asked for."""
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
    gates: Annotated[tuple[GateResult, ...], Field(max_length=16)] | None = None
    """Whether the gates were met."""
    samples_uri: Annotated[Uri | None, Field(alias="samplesURI")] = None
    """Answers to the prompts, before and after."""


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


class FineTuneJobStatus(ApiModel):
    """What the operator saw; a report, never an input."""

    observed_generation: Whole
    """The generation of the spec that this status speaks of; -1: not looked at yet."""
    phase: Phase | None = None
    """Where the job stands, in one word."""
    stage: Stage | None = None
    """The stage at work, or the last one."""
    summary: Message | None = None
    """Where the job stands, in a sentence."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), *list_map("type")] | None = None
    """Conditions; all known ones are there from the first look on."""
    waiting: Waiting | None = None
    """What the job is waiting for."""
    resolved: Resolved | None = None
    """Everything that decides the result, resolved once."""
    estimate: Estimate | None = None
    """What the whole job is expected to take."""
    stages: Annotated[tuple[StageStatus, ...], Field(max_length=8), *list_map("name")] | None = None
    """The stages in order."""
    progress: ProgressStatus | None = None
    """How far training is."""
    attempts: Attempts | None = None
    """How often stages were started."""
    goodput: Goodput | None = None
    """Share of the time that moved the training forward."""
    cost: Cost | None = None
    """What the job has used so far."""
    checkpoints: Annotated[tuple[Checkpoint, ...], Field(max_length=10)] | None = None
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
