"""``status.resolved`` and ``status.estimate``: what was found out before anything ran."""

from typing import Annotated

from pydantic import Field

from finetune_operator.api.common import (
    Address,
    ApiModel,
    Decimal,
    Digest,
    DnsLabel,
    DnsName,
    ImageRef,
    Message,
    NonNegative,
    Quantity,
    ShortText,
    Token,
    Uri,
    Whole,
)
from finetune_operator.api.data import DatasetFormat
from finetune_operator.api.evaluation import BenchmarkName
from finetune_operator.api.method import LearningRateSchedule, MethodType, Optimizer, Precision, Quantization
from finetune_operator.api.placement import Capacity, Controller
from finetune_operator.api.policies import MemoryCheck


class SecondsRange(ApiModel):
    """An estimate in seconds."""

    low: Whole
    """At least."""
    high: Whole
    """At most."""


class ResolvedProfile(ApiModel):
    """The profile, as it was at admission."""

    name: DnsName
    """Its name."""
    hash: Digest
    """Hash of its spec."""


class ResolvedPlan(ApiModel):
    """The stored plan that the job runs under: an immutable ConfigMap in the operator's namespace."""

    name: DnsName
    """Name of the ConfigMap."""
    digest: Digest
    """sha256 of its data; each JobSet of the job carries it as an annotation."""


class ModelLineage(ApiModel):
    """The job that has made the model, as it was at admission."""

    name: DnsLabel
    """Its name."""
    uid: ShortText
    """Its uid: a job of that name may have been created again since."""
    base: Address | None = None
    """The model that it, or the first of a chain of jobs, started from."""
    step: NonNegative | None = None
    """The checkpoint that the model was made of."""
    digest: Digest | None = None
    """Of the model's manifest."""


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
    from_job: ModelLineage | None = None
    """The job that has made it."""


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
    sequences: Whole | None = None
    """What the rows make up; in a mixture with weights."""
    epoch_sequences: Whole | None = None
    """Of them in one epoch; in a mixture with weights."""
    report_uri: Annotated[Uri | None, Field(alias="reportURI")] = None
    """The whole report."""


class ResolvedBenchmark(ApiModel):
    """What a benchmark is."""

    name: BenchmarkName
    """Its name."""
    revision: Digest | None = None
    """Commit of the hub's dataset, or digest over the folder's files."""
    rows: Whole | None = None
    """Examples that are asked."""


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
    gradient_accumulation_steps: NonNegative | None = None
    """Forward passes per optimizer step."""
    learning_rate: Decimal | None = None
    """Peak learning rate."""
    schedule: LearningRateSchedule | None = None
    """How the learning rate falls."""
    warmup_steps: Whole | None = None
    """Steps of warm-up, where the job counts them."""
    warmup_ratio: Decimal | None = None
    """Warm-up as a share of all steps, where the job gives no number of steps."""
    optimizer: Optimizer | None = None
    """The optimizer."""
    weight_decay: Decimal | None = None
    """Weight decay."""
    max_grad_norm: Decimal | None = None
    """Gradients are clipped to this norm."""
    seed: Whole | None = None
    """Seed of shuffling and of new weights."""
    weight_precision: Precision | None = None
    """Precision in which weights are held."""
    compute_precision: Precision | None = None
    """Precision in which a step is computed."""


class ResolvedMethod(ApiModel):
    """What is trained, and by which objective."""

    type: MethodType
    """The objective."""
    lora_rank: NonNegative | None = None
    """Rank of the adapter. Absent: all weights are trained."""
    lora_alpha: Decimal | None = None
    """Scale of the adapter."""
    quantization: Quantization | None = None
    """How the frozen weights are held while training."""


class ResolvedServiceAccounts(ApiModel):
    """Service accounts of the pods, in the job's namespace."""

    tpu: DnsName
    """Of stages on TPU."""
    cpu: DnsName
    """Of stages on CPU."""


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


class HostRequests(ApiModel):
    """What the pods of the stages on CPU request, by the model's size; where the profile's nodes do not have it, what
    the stage would need."""

    convert: Quantity | None = None
    """Convert's; absent where nothing is converted."""
    export: Quantity | None = None
    """Export's."""


class ResolvedImages(ApiModel):
    """The images that run."""

    trainer: ImageRef
    """The trainer's."""
    cpu: ImageRef | None = None
    """Of Convert and Export, where the profile names one."""
    pathways_server: ImageRef | None = None
    """Of Pathways' resource manager and workers, with that controller."""
    pathways_proxy: ImageRef | None = None
    """Of Pathways' proxy, with that controller."""


class Resolved(ApiModel):
    """Everything that decides the result, resolved once."""

    spec_hash: Digest | None = None
    """Hash of the merged spec."""
    profile: ResolvedProfile | None = None
    """The profile, as it was at admission."""
    plan: ResolvedPlan | None = None
    """The stored plan that the job runs under."""
    model: ResolvedModel | None = None
    """What the model is."""
    datasets: Annotated[tuple[ResolvedDataset, ...], Field(max_length=48)] | None = None
    """What the datasets are."""
    benchmarks: Annotated[tuple[ResolvedBenchmark, ...], Field(max_length=16)] | None = None
    """What the benchmarks are."""
    method: ResolvedMethod | None = None
    """What is trained, and by which objective."""
    hyperparameters: ResolvedHyperparameters | None = None
    """Numbers instead of Auto."""
    resources: ResolvedResources | None = None
    """The slice, and why it was chosen."""
    memory: ResolvedMemory | None = None
    """Whether it fits."""
    host_memory: HostRequests | None = None
    """What the stages on CPU request of a node's memory."""
    ephemeral_storage: HostRequests | None = None
    """What they request of its disk."""
    checkpoint: ShortText | None = None
    """Which checkpoint is evaluated and exported: Best or Last."""
    images: ResolvedImages | None = None
    """The images that run."""
    service_accounts: ResolvedServiceAccounts | None = None
    """Service accounts of the pods."""
    run_folder: Uri | None = None
    """Where everything of this run lies."""
    cache: Uri | None = None
    """Where converted models and prepared data are kept and found again."""


class Estimate(ApiModel):
    """What training is expected to take, by the roofline of its compiled step."""

    duration_seconds: SecondsRange | None = None
    """Running time of all steps."""
    chip_hours: Decimal | None = None
    """TPU chip hours, at most."""
    cost: Decimal | None = None
    """Money for them, in the profile's currency."""
