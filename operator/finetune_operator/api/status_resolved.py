"""``status.resolved`` and ``status.estimate``: facts determined before any stage ran."""

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
from finetune_operator.api.method import MethodType, Quantization, ResolvedHyperparameters
from finetune_operator.api.placement import Capacity, Controller
from finetune_operator.api.policies import MemoryCheck


class SecondsRange(ApiModel):
    """An estimate as a range of seconds."""

    low: Whole
    """Lower bound in seconds, inclusive."""
    high: Whole
    """Upper bound in seconds, inclusive."""


class ResolvedProfile(ApiModel):
    """The profile at admission."""

    name: DnsName
    """Name of the FineTuneProfile."""
    hash: Digest
    """Hash of the profile's spec."""


class ResolvedPlan(ApiModel):
    """Stored plan that the job runs under: an immutable ConfigMap in the operator's namespace."""

    name: DnsName
    """Name of the ConfigMap."""
    digest: Digest
    """sha256 of the ConfigMap's data; each JobSet of the job carries it as an annotation."""


class ModelLineage(ApiModel):
    """Job that exported the source model, as it was at admission."""

    name: DnsLabel
    """Name of the source job."""
    uid: ShortText
    """UID of the source job, since a job of that name may have been created again."""
    base: Address | None = None
    """Model that the source job, or the first of a chain of jobs, started from."""
    step: NonNegative | None = None
    """Step of the exported checkpoint."""
    digest: Digest | None = None
    """Digest of the exported model's manifest."""


class ResolvedModel(ApiModel):
    """Facts about the source model."""

    source: Address
    """Repository or URI of the model."""
    revision: Digest | None = None
    """Commit of the repository, or digest over the folder's files."""
    architecture: ShortText | None = None
    """Model architecture, as config.json names it."""
    parameters: Whole | None = None
    """Number of the model's parameters."""
    maxtext_model: ShortText | None = None
    """MaxText's name of the model."""
    layout: ShortText | None = None
    """Layout of the converted checkpoint."""
    from_job: ModelLineage | None = None
    """Job that exported the model. Absent: not a job's model."""


class ResolvedDataset(ApiModel):
    """Facts about a dataset."""

    name: DnsLabel
    """Name of the dataset."""
    revision: Digest | None = None
    """Commit of the repository, or digest over the files."""
    format: DatasetFormat | None = None
    """Layout of the rows, as detected or requested."""
    rows: Whole | None = None
    """Number of rows in use."""
    tokens: Whole | None = None
    """Number of tokens in those rows."""
    truncated_percent: Decimal | None = None
    """Share of rows truncated to maxSeqLength, in percent."""
    dropped_rows: Whole | None = None
    """Number of rows that cannot be used."""
    sequences: Whole | None = None
    """Number of sequences that the rows form; in a mixture with weights only."""
    epoch_sequences: Whole | None = None
    """Number of those sequences in one epoch; in a mixture with weights only."""
    report_uri: Annotated[Uri | None, Field(alias="reportURI")] = None
    """URI of the complete data report."""


class ResolvedBenchmark(ApiModel):
    """Facts about a benchmark."""

    name: BenchmarkName
    """Name of the benchmark."""
    revision: Digest | None = None
    """Commit of the Hub's dataset, or digest over the folder's files."""
    rows: Whole | None = None
    """Number of examples in use."""


class ResolvedMethod(ApiModel):
    """Training objective and adapter."""

    type: MethodType
    """Training objective of the job."""
    lora_rank: NonNegative | None = None
    """Rank of the LoRA adapter. Absent: all weights are trained."""
    lora_alpha: Decimal | None = None
    """Scaling of the adapter, which is multiplied by alpha / rank."""
    quantization: Quantization | None = None
    """Storage of the frozen base model's linear layers during training."""


class ResolvedServiceAccounts(ApiModel):
    """Service accounts of the pods, in the job's namespace."""

    tpu: DnsName
    """Service account of stages on TPU."""
    cpu: DnsName
    """Service account of stages on CPU."""


class ResolvedResources(ApiModel):
    """TPU slices of the job, and why they were chosen."""

    tpu: Token
    """Google's name of the slice, for example v6e-16."""
    accelerator: ShortText
    """Value of GKE's accelerator label."""
    topology: Token
    """Value of GKE's topology label."""
    machine_type: ShortText | None = None
    """GKE's machine type of the nodes."""
    chips: NonNegative
    """Number of TPU chips over all slices."""
    hosts: NonNegative
    """Number of hosts over all slices."""
    slices: NonNegative
    """Number of TPU slices."""
    capacity: Capacity
    """Kind of TPU capacity."""
    controller: Controller | None = None
    """How the hosts work together."""
    why: Message | None = None
    """Reason for the choice of this slice."""


class ResolvedMemory(ApiModel):
    """Memory per chip that the training needs and has."""

    estimated_per_chip: Quantity | None = None
    """Memory per chip that the training needs."""
    state_per_chip: Quantity | None = None
    """Part of it that the step begins with: parameters, those of a reference model, the optimizer's state, the batch.
    The rest are gradients, activations and logits."""
    limit_per_chip: Quantity | None = None
    """Memory that a chip has."""
    source: MemoryCheck
    """How the needed memory was determined."""


class HostRequests(ApiModel):
    """Requests of the stages on CPU, by the model's size; if the profile's nodes do not have it, what the stage would
    need."""

    convert: Quantity | None = None
    """Request of the Convert stage. Absent if nothing is converted."""
    export: Quantity | None = None
    """Request of the Export stage."""


class ResolvedImages(ApiModel):
    """Container images of the job."""

    trainer: ImageRef
    """Image of the trainer."""
    trainer_id: Annotated[ImageRef | None, Field(alias="trainerID")] = None
    """What that name stood for in the job's first pod of it, with a digest, as its node reported."""
    cpu: ImageRef | None = None
    """Image of Convert and Export. Absent if the profile sets none."""
    pathways_server: ImageRef | None = None
    """Image of Pathways' resource manager and workers, with that controller only."""
    pathways_proxy: ImageRef | None = None
    """Image of Pathways' proxy, with that controller only."""


class Resolved(ApiModel):
    """Everything that decides the result, resolved once at admission and by preflight."""

    spec_hash: Digest | None = None
    """Hash of the spec merged with the profile's defaults."""
    profile: ResolvedProfile | None = None
    """The profile at admission."""
    plan: ResolvedPlan | None = None
    """Stored plan that the job runs under."""
    model: ResolvedModel | None = None
    """Facts about the source model."""
    datasets: Annotated[tuple[ResolvedDataset, ...], Field(max_length=48)] | None = None
    """Facts about the datasets."""
    benchmarks: Annotated[tuple[ResolvedBenchmark, ...], Field(max_length=16)] | None = None
    """Facts about the benchmarks."""
    method: ResolvedMethod | None = None
    """Training objective and adapter."""
    hyperparameters: ResolvedHyperparameters | None = None
    """Hyperparameters with all defaults filled in."""
    resources: ResolvedResources | None = None
    """TPU slices of the job, and why they were chosen."""
    memory: ResolvedMemory | None = None
    """Memory per chip that the training needs and has."""
    host_memory: HostRequests | None = None
    """Memory requests of the stages on CPU."""
    ephemeral_storage: HostRequests | None = None
    """Ephemeral storage requests of the stages on CPU."""
    checkpoint: ShortText | None = None
    """Checkpoint that is evaluated and exported: Best or Last."""
    images: ResolvedImages | None = None
    """Container images of the job."""
    service_accounts: ResolvedServiceAccounts | None = None
    """Service accounts of the pods."""
    run_folder: Uri | None = None
    """URI of the folder that holds all files of this run."""
    cache: Uri | None = None
    """URI of the cache of converted models and prepared data."""


class PastRunsStatus(ApiModel):
    """Time and cost of the training steps by what a step has taken in past trainings of the same shape: the namespace's
    jobs of the last 90 days with the same model, method, sequence length, batch and slices and at least a tenth of the
    steps, in the operator's ledger. As known before the training began."""

    attempts: Whole
    """Number of attempts of those jobs."""
    jobs: Whole
    """Number of those jobs."""
    duration_seconds: SecondsRange | None = None
    """Running time of all steps by the fastest and the slowest job, in seconds."""
    median_seconds: Whole | None = None
    """Running time of all steps by the median of the jobs, in seconds."""
    chip_hours: Decimal | None = None
    """TPU chip hours of that median."""
    cost: Decimal | None = None
    """Cost of those chip hours in the profile's currency."""


class Estimate(ApiModel):
    """Expected time and cost of the training steps, from the roofline of the compiled step."""

    duration_seconds: SecondsRange | None = None
    """Running time of all steps in seconds."""
    chip_hours: Decimal | None = None
    """Upper bound of TPU chip hours."""
    cost: Decimal | None = None
    """Cost of those chip hours in the profile's currency."""
    past_runs: PastRunsStatus | None = None
    """The same by past trainings. Absent: none are known."""
