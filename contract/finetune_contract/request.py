"""The stage request: what to do, fully resolved. Travels in the environment variable ``FINETUNE_REQUEST``."""

import json
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from finetune_contract.base import Record, Sha256, Uri, Version
from finetune_contract.engine import Tuning
from finetune_contract.method import MethodSpec, PreferenceMethod
from finetune_contract.stages import Stage
from finetune_contract.versions import (
    CONTRACT_VERSION,
    FIRST_VERSION,
    ContractVersion,
    VersionText,
    newer_parts,
    required_version,
)

#: Name of the environment variable that holds the request as JSON.
REQUEST_VARIABLE = "FINETUNE_REQUEST"
#: In the environment of Preflight, by name: what the compiler's variables are where the chips are.
SLICE_VARIABLES = {
    "XLA_FLAGS": "FINETUNE_SLICE_XLA_FLAGS",
    "LIBTPU_INIT_ARGS": "FINETUNE_SLICE_LIBTPU_INIT_ARGS",
}
#: In the environment of Preflight: the folder that ``JAX_COMPILATION_CACHE_DIR`` names where the chips are.
SLICE_PROGRAMS_VARIABLE = "FINETUNE_SLICE_PROGRAMS"
#: Name of the one that holds the restart inside the JobSet: each restart's pods have the same request.
RESTART_VARIABLE = "FINETUNE_RESTART"
#: Linux caps one environment string at 128 KiB; the operator refuses a longer request.
MAX_REQUEST_BYTES = 96 * 1024


class ContractUnsupported(Exception):
    """A request asks for more than its reader understands. The message is a whole sentence."""


class JobIdentity(Record):
    namespace: str
    name: str
    uid: str


class HubRef(Record):
    """A repository on the Hugging Face Hub; ``revision`` is a commit once preflight has resolved it."""

    repo: str
    revision: str = "main"


class ModelSource(Record):
    """Exactly one of a hub repository, a folder in Hugging Face format, and a MaxText checkpoint."""

    hugging_face: HubRef | None = None
    uri: Uri | None = None
    orbax: Uri | None = None
    """The ``items`` folder of a MaxText checkpoint, layers stacked; config.json then lies with the tokenizer."""
    maxtext_model: str | None = None
    """What the user said it is, to be compared with config.json."""
    tokenizer: "ModelSource | None" = None
    """Where the tokenizer lies when not with the model."""
    digest: str | None = None
    """Of a folder's config.json and weights, as preflight found them: another content is an error. None: any."""
    tokenizer_digest: str | None = None
    """Of a folder's tokenizer and chat template, likewise."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.hugging_face, self.uri, self.orbax)) != 1:
            raise ValueError("exactly one of hugging_face, uri and orbax")
        if self.orbax is not None and self.tokenizer is None:
            raise ValueError("orbax with tokenizer")
        return self

    @property
    def address(self) -> str:
        """As the user wrote it."""
        return self.hugging_face.repo if self.hugging_face else str(self.uri or self.orbax)


class DatasetSpec(Record):
    """One source of rows. ``path`` is its place in the user's spec, for error messages."""

    path: str
    name: str
    hugging_face: HubRef | None = None
    config: str | None = None
    split: str = "train"
    uri: str | None = None
    """A file or glob, ``gs://`` or ``file://``."""
    digest: str | None = None
    """Of the files at ``uri``, as preflight found them: another content is an error. None: any."""
    format: Literal["Auto", "Messages", "PromptCompletion", "QuestionAnswer", "Text", "Preference"] = "Auto"
    columns: dict[str, str] = {}
    """Our name of a column -> the dataset's."""
    role_map: dict[str, str] = {}
    max_examples: int | None = None
    weight: Annotated[float, Field(gt=0)] | None = None
    """Share of the mixture, relative to the others'; all training sources have one, or none has."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.hugging_face is None) == (self.uri is None):
            raise ValueError("exactly one of hugging_face and uri")
        return self


class SplitSpec(Record):
    """Rows of the training sources that are held back for validation."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    seed: int
    max_examples: int | None = None
    """Of those of each source, validation takes the first ones."""


class DataSpec(Record):
    """Without weights an epoch is every row once; with weights, as many rows in the sources' shares."""

    train: list[DatasetSpec]
    validation: list[DatasetSpec] = []
    split_from_train: SplitSpec | None = None
    """Only where ``validation`` is empty."""
    shuffle: bool
    max_seq_length: int
    max_seq_length_asked: bool = False
    """The job names it: preflight refuses a value beyond the model's own limit. A default is lowered to it."""
    packing: bool
    chat_template: str | None = None
    """Jinja; None: the tokenizer's own."""
    chat_template_arguments: dict[str, bool | int | float | str] = {}
    """Variables of the chat template beside messages and tools, by name."""
    chat_template_date: date | None = None
    """What chat templates print as the present day: that of the job's creation. None: the day on which they are
    rendered."""
    check: Literal["Full", "Sample", "Off"]
    """What preflight reads: all rows, the first of each source, or none."""

    @model_validator(mode="after")
    def _weights_of_all_or_none(self) -> Self:
        if len({source.weight is None for source in self.train}) > 1:
            raise ValueError("a weight for every training source, or for none")
        if self.validation and self.split_from_train:
            raise ValueError("at most one of validation and split_from_train")
        return self


class HyperparametersSpec(Record):
    """Exactly one of epochs and steps until preflight has counted the rows, then steps; batch resolved."""

    epochs: float | None = None
    steps: int | None = None
    global_batch_size: int
    """Rows per optimizer step over all devices."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1)]
    """Forward passes per optimizer step; divides the batch."""
    learning_rate: float
    schedule: Literal["Cosine", "Linear", "Constant"]
    warmup_ratio: float | None = None
    warmup_steps: int | None = None
    weight_decay: float
    max_grad_norm: float
    optimizer: Literal["AdamW", "SGD"]
    seed: int
    compute_precision: Literal["BF16", "FP32"]
    weight_precision: Literal["BF16", "FP32"]

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("exactly one of epochs and steps")
        return self

    @property
    def microbatch_size(self) -> int:
        """Rows per forward pass over all devices."""
        return self.global_batch_size // self.gradient_accumulation_steps


class MeshSpec(Record):
    """JAX devices of the train and evaluate stages: data x fsdp x tensor, one or more for each chip."""

    hosts: int
    """Per slice."""
    chips_per_host: int
    slices: int = 1
    data: int = 1
    fsdp: int
    tensor: int = 1
    controller: Literal["McJAX", "Pathways"] = "McJAX"
    """McJAX: one JAX process per host. Pathways: one process that holds the devices of all hosts through a proxy; it
    reads and writes checkpoints in another storage layout, so conversion must know it, too."""

    @property
    def devices(self) -> int:
        """Over all slices."""
        return self.data * self.fsdp * self.tensor


class SliceShape(Record):
    """A TPU slice, as the compiler has to know it."""

    name: str
    """As people write it: v6e-16."""
    family: str
    topology: str
    """4x4, 2x2x2 …"""
    hosts: int
    chips: int
    devices: int
    """JAX devices."""
    hbm_gib: int | None = None
    """Of each chip."""
    flags: dict[str, str] | None = None
    """XLA_FLAGS and LIBTPU_INIT_ARGS of the processes on it. None: as preflight's environment names them."""


class SliceCandidate(Record):
    """A slice that preflight may choose, and how the operator spreads the job over it."""

    slice: SliceShape
    mesh: MeshSpec


class MemoryCheckSpec(Record):
    """How preflight finds out whether training fits the slice, and what it may choose so that it does."""

    source: Literal["Compile", "Analytic"]
    slice: SliceShape
    """One of ``MeshSpec.slices`` equal ones."""
    candidates: list[SliceCandidate] = []
    """Where the job names no slice: those that preflight may choose instead, in this order, if the training does not
    fit ``slice``."""
    larger: list[SliceShape] = []
    """Slices that the profile offers beyond it, the smallest first, for a refusal to name."""
    choose_parallelism: bool = False
    """The mesh is a default, not the user's choice."""


class CheckpointPolicy(Record):
    every_steps: int
    every_seconds: int | None = None
    """Also where so much time has passed since the last one."""
    keep_last: int
    keep_best: int = 0
    """How many of the best are kept besides; 0 where nothing tells which is better."""
    best_metric: Literal["loss", "perplexity"] = "loss"
    """On the validation rows."""
    best_mode: Literal["Min", "Max"] = "Min"


type AnswerMetric = Literal["Loss", "ExactMatch", "TokenF1", "RougeL"]


class EvaluationDatasetSpec(Record):
    """Rows to measure on in the Evaluate stage; metrics are named ``<source.name>/<metric>``."""

    source: DatasetSpec
    metrics: list[AnswerMetric]
    """Of pairs of answers ``Loss`` alone, which comes with the rewards."""

    @property
    def pairs(self) -> bool:
        """Whether the rows are pairs of answers, measured as the method compares them."""
        return self.source.format == "Preference"


class BenchmarkSpec(Record):
    """A task of lm-evaluation-harness for the Evaluate stage; metrics are named ``<name>/<metric>``, in the harness's
    words. ``path`` is its place in the user's spec."""

    path: str
    name: str
    uri: Uri | None = None
    """A folder with ``<name>.yaml`` and the files that it reads; None: a task that the harness brings, on the hub's
    data."""
    revision: str | None = None
    """Commit of the hub's dataset, or digest of the folder's files, as preflight found them. None: as they are now."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first examples."""


class GateSpec(Record):
    """What the tuned model must reach; exactly one of ``value`` and ``delta_from_baseline``."""

    metric: str
    """``loss``, ``perplexity`` or ``<dataset or benchmark>/<metric>``."""
    op: Literal["GreaterOrEqual", "LessOrEqual"]
    value: float | None = None
    delta_from_baseline: float | None = None

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.value is None) == (self.delta_from_baseline is None):
            raise ValueError("exactly one of value and delta_from_baseline")
        return self


class EvaluationSpec(Record):
    """What to measure in training (``every_steps``) and in the Evaluate stage."""

    every_steps: int | None = None
    datasets: list[EvaluationDatasetSpec] = []
    benchmarks: list[BenchmarkSpec] = []
    prompts: list[str] = []
    baseline: bool
    max_new_tokens: int
    temperature: float
    """0: the likeliest token every time."""
    top_k: int
    """0: among all tokens."""
    gates: list[GateSpec] = []


class HubDestinationSpec(Record):
    """A repository on the Hugging Face Hub to push to; made where there is none."""

    repo: str
    private: bool
    token_variable: str
    """Name of the environment variable that holds the token; never its value."""


class DestinationSpec(Record):
    """Exactly one of a folder and a repository. ``path`` is its place in the user's spec."""

    path: str
    uri: Uri | None = None
    hub: HubDestinationSpec | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.uri is None) == (self.hub is None):
            raise ValueError("exactly one of uri and hub")
        return self


class ExportSpec(Record):
    content: Literal["Merged", "Adapter", "Both"]
    dtype: Literal["BF16", "FP32"]
    orbax: bool = False
    """Also the unscanned parameters for inference in MaxText."""
    destinations: list[DestinationSpec] = []
    """Copies beside the run folder's own."""
    serving_account: str | None = None
    """Kubernetes ServiceAccount of the manifests that serve the model; None: no manifests."""


class ProfilingSpec(Record):
    """Steps of training to record, counted from 1."""

    start_step: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]


class SmokeSpec(Record):
    """A short real training before the long one, on preflight's CPU, on a miniature of the model."""

    steps: Annotated[int, Field(ge=1)]
    examples: Annotated[int, Field(ge=1)]
    """Rows of each source."""


class StageRequest(Record):
    """One stage of one attempt.

    The operator writes every value that it decides, so what users get by default stands in its ``planning.defaults``
    alone. A field has a default here only where leaving it out says that there is none of it, or what records meant
    before the field existed.

    Stages ignore the parts that are not theirs, but all parts are always there, so that a request tells the
    whole story and preflight checks what later stages will meet.
    """

    version: Version = 1
    requires: VersionText = str(FIRST_VERSION)
    """The least version of the contract that understands everything in it; older trainers refuse it."""
    job: JobIdentity
    stage: Stage
    attempt: Annotated[int, Field(ge=1, le=999)]
    """The JobSet's number. With ``restart`` it names the attempt."""
    restart: Annotated[int, Field(ge=0)] = 0
    """Inside the JobSet, which cannot write it into its own template."""
    run_folder: Uri
    cache: Uri
    """Root of the cache of converted models."""
    use_cache: Literal["Use", "Refresh", "Off"]
    model: ModelSource
    data: DataSpec
    method: MethodSpec
    hyperparameters: HyperparametersSpec
    mesh: MeshSpec
    pathways_jax: str | None = None
    """Release of JAX that Pathways' servers are for; the trainer's must be the same. None: not known, or McJAX."""
    checkpointing: CheckpointPolicy
    evaluation: EvaluationSpec
    export: ExportSpec
    export_proof: bool
    profiling: ProfilingSpec | None = None
    """None: nothing is recorded."""
    smoke: SmokeSpec | None = None
    """None: not to be tried out."""
    engine_overrides: dict[str, str] = {}
    memory: MemoryCheckSpec | None = None
    """None: not to be checked."""
    tuning: Tuning = {}
    """MaxText's settings that preflight chose by compiling; ``engine_overrides`` come before them."""
    # --- what earlier stages found out; None before
    fingerprint: str | None = None
    """Of the converted model; from preflight, given to convert."""
    converted: Uri | None = None
    """The ``items`` folder of the converted model; given to train and evaluate and export."""
    converted_files_digest: Sha256 | None = None
    """Of the list of its files (``layout.file_list``), which are compared with storage before they are loaded. None:
    there is no list."""
    train_step: int | None = None
    """The checkpoint to evaluate and export; given after training."""

    @model_validator(mode="after")
    def _pairs_stand_alone(self) -> Self:
        if isinstance(self.method, PreferenceMethod) and self.data.packing:
            raise ValueError("pairs of answers are not packed")
        return self

    @model_validator(mode="after")
    def _pairs_are_compared(self) -> Self:
        for dataset in self.evaluation.datasets:
            compared = isinstance(self.method, PreferenceMethod) and dataset.metrics == ["Loss"]
            if dataset.pairs and not compared:
                raise ValueError(
                    "pairs of answers are measured by a method that compares them, and by Loss alone"
                )
        return self

    def spoken(self, by: ContractVersion) -> Self:
        """The same for a trainer that speaks ``by``, with what it requires. Raises ContractUnsupported where that
        trainer would not understand all of it."""
        needed = required_version(self)
        if by.major != needed.major or by < needed:
            newer = ", ".join(path for path, version in newer_parts(self) if version > by)
            raise ContractUnsupported(
                f"The request of stage {self.stage} needs version {needed} of the contract"
                f"{f' ({newer})' if newer else ''}, and the trainer image speaks {by}."
            )
        return self.model_copy(update={"requires": str(needed)})

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """A request as it was written. Raises as :meth:`of_environment`, without KeyError."""
        _refuse_newer(text)
        return cls.model_validate_json(text)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """What the container was asked to do.

        Raises:
            KeyError: there is no request.
            ContractUnsupported: it is of another major version, or of a newer minor version than this code speaks.
            ValidationError: it is no request.
        """
        request = cls.read(environment[REQUEST_VARIABLE])
        restart = environment.get(RESTART_VARIABLE) or "0"
        return cls.model_validate({**dict(request), "restart": restart})


def _refuse_newer(text: str | bytes) -> None:
    """Before the rest is read: what is newer may not even look like a request."""
    try:
        head = json.loads(text)
        requires = ContractVersion.parse(head["requires"]) if "requires" in head else FIRST_VERSION
        requires = max(requires, ContractVersion(int(head.get("version", requires.major)), 0))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return  # no request at all, which validation says better
    if requires.major != CONTRACT_VERSION.major or requires > CONTRACT_VERSION:
        raise ContractUnsupported(
            f"The request needs version {requires} of the contract, and this trainer speaks {CONTRACT_VERSION}."
        )
