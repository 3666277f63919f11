"""The stage request: a stage's fully resolved task, passed in the environment variable ``FINETUNE_REQUEST``."""

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
#: Variables of Preflight's environment that hold the values of the compiler's variables on the TPU nodes, keyed by the
#: compiler's variable.
SLICE_VARIABLES = {
    "XLA_FLAGS": "FINETUNE_SLICE_XLA_FLAGS",
    "LIBTPU_INIT_ARGS": "FINETUNE_SLICE_LIBTPU_INIT_ARGS",
}
#: Variable of Preflight's environment that holds the value of ``JAX_COMPILATION_CACHE_DIR`` on the TPU nodes.
SLICE_PROGRAMS_VARIABLE = "FINETUNE_SLICE_PROGRAMS"
#: Name of the environment variable that holds the JobSet's restart count: the pods of all restarts have the same
#: request.
RESTART_VARIABLE = "FINETUNE_RESTART"
#: Line of a chat template that stands for the tokenizer's own template, which renders what the lines before it set.
OWN_TEMPLATE = "{% include 'tokenizer' %}"
#: Linux caps one environment string at 128 KiB; the operator refuses a longer request.
MAX_REQUEST_BYTES = 96 * 1024


class ContractUnsupported(Exception):
    """A request requires a version of the contract that its reader does not support. The message is a full sentence."""


class JobIdentity(Record):
    """The FineTuneJob that a stage belongs to."""

    namespace: str
    name: str
    uid: str


class HubRef(Record):
    """A repository on the Hugging Face Hub. ``revision`` is a commit after preflight has resolved it."""

    repo: str
    revision: str = "main"


class ModelSource(Record):
    """Source of a model: exactly one of a hub repository, a folder in Hugging Face format, or a MaxText checkpoint."""

    hugging_face: HubRef | None = None
    uri: Uri | None = None
    orbax: Uri | None = None
    """The ``items`` folder of a MaxText checkpoint with stacked layers; config.json is then next to the tokenizer."""
    maxtext_model: str | None = None
    """MaxText model name that the user states, to be compared with config.json."""
    tokenizer: "ModelSource | None" = None
    """Source of the tokenizer. None if it is stored with the model."""
    digest: str | None = None
    """Digest of a folder's config.json and weights, as preflight read them; other content is an error. None for any
    content."""
    tokenizer_digest: str | None = None
    """Digest of a folder's tokenizer and chat template, as ``digest``."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.hugging_face, self.uri, self.orbax)) != 1:
            raise ValueError("exactly one of hugging_face, uri and orbax")
        if self.orbax is not None and self.tokenizer is None:
            raise ValueError("orbax with tokenizer")
        return self

    @property
    def address(self) -> str:
        """The repository or URI as the user wrote it."""
        return self.hugging_face.repo if self.hugging_face else str(self.uri or self.orbax)


class DatasetSpec(Record):
    """One source of rows. ``path`` is its location in the user's spec, for error messages."""

    path: str
    name: str
    hugging_face: HubRef | None = None
    config: str | None = None
    split: str = "train"
    uri: str | None = None
    """A file or glob, ``gs://`` or ``file://``."""
    digest: str | None = None
    """Digest of the files at ``uri``, as preflight read them; other content is an error. None for any content."""
    format: Literal["Auto", "Messages", "PromptCompletion", "QuestionAnswer", "Text", "Preference"] = "Auto"
    columns: dict[str, str] = {}
    """Column names of the dataset by the names that this API gives them."""
    ignore: list[str] = []
    """Columns, and with ``messages[].`` in front keys of messages and types of content parts, left out on purpose."""
    separator: str | None = None
    """Text between rows of a ``.txt`` file, or between fields of a ``.csv`` or ``.tsv`` file; None for the usual."""
    role_map: dict[str, str] = {}
    max_examples: int | None = None
    weight: Annotated[float, Field(gt=0)] | None = None
    """Share of the mixture relative to the other sources. Set for all training sources or for none."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.hugging_face is None) == (self.uri is None):
            raise ValueError("exactly one of hugging_face and uri")
        return self


class SplitSpec(Record):
    """The split of the training sources that holds back rows for validation."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    seed: int
    max_examples: int | None = None
    """Maximum number of rows to hold back of each source."""


class DataSpec(Record):
    """Datasets and how their rows become sequences.

    Without weights, an epoch contains every row once; with weights, the same number of rows in the sources' shares.
    """

    train: list[DatasetSpec]
    validation: list[DatasetSpec] = []
    split_from_train: SplitSpec | None = None
    """Only set if ``validation`` is empty."""
    dedupe: Literal["Off", "Exact"] = "Off"
    """Which rows of the training sources are used once, before ``split_from_train``. Exact: rows with the same tokens
    and mask, across sources."""
    shuffle: bool
    max_seq_length: int
    max_seq_length_explicit: bool = False
    """Whether the job sets ``max_seq_length``. If so, preflight refuses a value beyond the model's own limit; a default
    is lowered to that limit instead."""
    packing: bool
    chat_template: str | None = None
    """Jinja chat template, in which ``OWN_TEMPLATE`` stands for the tokenizer's own. None for the latter alone."""
    chat_template_arguments: dict[str, bool | int | float | str] = {}
    """Variables of the chat template by name, in addition to messages and tools."""
    chat_template_date: date | None = None
    """Date that chat templates render as the current day: that of the job's creation. None for the day on which they
    are rendered."""
    check: Literal["Full", "Sample", "Off"]
    """Rows that preflight reads: all, the first of each source, or none."""

    @model_validator(mode="after")
    def _weights_of_all_or_none(self) -> Self:
        if len({source.weight is None for source in self.train}) > 1:
            raise ValueError("a weight for every training source, or for none")
        if self.validation and self.split_from_train:
            raise ValueError("at most one of validation and split_from_train")
        return self


class HyperparametersSpec(Record):
    """Resolved hyperparameters.

    Exactly one of ``epochs`` and ``steps`` is set; after preflight has counted the rows, it is ``steps``.
    """

    epochs: float | None = None
    steps: int | None = None
    global_batch_size: int
    """Number of rows per optimizer step over all devices."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1)]
    """Number of forward passes per optimizer step. Divides ``global_batch_size``."""
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
        """Number of rows per forward pass over all devices."""
        return self.global_batch_size // self.gradient_accumulation_steps


class MeshSpec(Record):
    """Mesh of the train and evaluate stages: data x fsdp x tensor JAX devices, one or more per chip."""

    hosts: int
    """Number of hosts per slice."""
    chips_per_host: int
    slices: int = 1
    data: int = 1
    fsdp: int
    tensor: int = 1
    controller: Literal["McJAX", "Pathways"] = "McJAX"
    """McJAX: one JAX process per host. Pathways: one process that controls the devices of all hosts through a proxy; it
    reads and writes checkpoints in a different storage layout, so conversion depends on it, too."""

    @property
    def devices(self) -> int:
        """Number of JAX devices over all slices."""
        return self.data * self.fsdp * self.tensor


class SliceShape(Record):
    """A TPU slice, with the properties that ahead-of-time compilation needs."""

    name: str
    """Name as users write it: v6e-16."""
    family: str
    topology: str
    """4x4, 2x2x2 …"""
    hosts: int
    chips: int
    devices: int
    """Number of JAX devices."""
    hbm_gib: int | None = None
    """HBM of each chip in GiB."""
    flags: dict[str, str] | None = None
    """XLA_FLAGS and LIBTPU_INIT_ARGS of the processes on the slice. None for those in preflight's environment."""


class SliceCandidate(Record):
    """A slice that preflight may choose, with the operator's mesh for it."""

    slice: SliceShape
    mesh: MeshSpec


class MemoryCheckSpec(Record):
    """How preflight checks that training fits the slice, and what it may choose to make it fit."""

    source: Literal["Compile", "Analytic"]
    slice: SliceShape
    """The slice; training uses ``MeshSpec.slices`` identical ones."""
    candidates: list[SliceCandidate] = []
    """Slices that preflight may choose, in this order, if training does not fit ``slice``. Only set if the job names
    no slice."""
    larger: list[SliceShape] = []
    """Larger slices that the profile offers, smallest first, for the message of a refusal."""
    choose_parallelism: bool = False
    """Whether preflight may change the mesh: it is a default, not the user's choice."""


class CheckpointPolicy(Record):
    """When training saves a checkpoint, and which checkpoints it keeps."""

    every_steps: int
    every_seconds: int | None = None
    """Maximum time between checkpoints in seconds. None for no limit."""
    keep_last: int
    keep_best: int = 0
    """Number of best checkpoints to keep in addition; 0 if no metric ranks them."""
    best_metric: Literal["loss", "perplexity"] = "loss"
    """Metric on the validation rows that ranks checkpoints."""
    best_mode: Literal["Min", "Max"] = "Min"


type AnswerMetric = Literal["Loss", "ExactMatch", "TokenF1", "RougeL"]


class EvaluationDatasetSpec(Record):
    """A dataset of the Evaluate stage. Its metrics are named ``<source.name>/<metric>``."""

    source: DatasetSpec
    metrics: list[AnswerMetric]
    """For preference pairs ``Loss`` only, which includes the rewards."""

    @property
    def pairs(self) -> bool:
        """Whether the rows are preference pairs, measured as the method compares them."""
        return self.source.format == "Preference"


class BenchmarkSpec(Record):
    """A task, or group of tasks, of lm-evaluation-harness for the Evaluate stage.

    Its metrics are named ``<name>/<metric>`` with the harness's names, those of a group's members
    ``<name>/<member>/<metric>``. ``path`` is its location in the user's spec.
    """

    path: str
    name: str
    uri: Uri | None = None
    """Folder with ``<name>.yaml`` and the files that it reads. None for a task that the harness includes, with its
    dataset from the hub."""
    revision: str | None = None
    """Commit of the hub's dataset, or digest of the folder's files, as preflight read them. None for their current
    content."""
    revisions: dict[str, str] = {}
    """Of a group, the commits of its datasets as preflight read them (:class:`~.result.BenchmarkReport`)."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Number of examples of each task, the first ones. None for all."""


class GateSpec(Record):
    """A threshold that the tuned model must reach: exactly one of ``value`` and ``delta_from_baseline``."""

    metric: str
    """``loss``, ``perplexity``, ``<dataset or benchmark>/<metric>`` or ``<benchmark>/<member>/<metric>``."""
    op: Literal["GreaterOrEqual", "LessOrEqual"]
    value: float | None = None
    delta_from_baseline: float | None = None

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.value is None) == (self.delta_from_baseline is None):
            raise ValueError("exactly one of value and delta_from_baseline")
        return self


class EvaluationSpec(Record):
    """What is measured during training (``every_steps``) and in the Evaluate stage."""

    every_steps: int | None = None
    datasets: list[EvaluationDatasetSpec] = []
    benchmarks: list[BenchmarkSpec] = []
    prompts: list[str] = []
    baseline: bool
    max_new_tokens: int
    temperature: float
    """Sampling temperature. 0 for greedy decoding."""
    top_k: int
    """Number of most likely tokens to sample from. 0 for all."""
    gates: list[GateSpec] = []


class HubDestinationSpec(Record):
    """A repository on the Hugging Face Hub to push to. It is created if it does not exist."""

    repo: str
    private: bool
    token_variable: str
    """Name of the environment variable that holds the token, never the token itself."""


class DestinationSpec(Record):
    """A folder or a repository to export to, exactly one of them. ``path`` is its location in the user's spec."""

    path: str
    uri: Uri | None = None
    hub: HubDestinationSpec | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.uri is None) == (self.hub is None):
            raise ValueError("exactly one of uri and hub")
        return self


class ExportSpec(Record):
    """What the Export stage writes, and where."""

    content: Literal["Merged", "Adapter", "Both"]
    dtype: Literal["BF16", "FP32"]
    orbax: bool = False
    """Whether to also export the unscanned parameters for inference with MaxText."""
    destinations: list[DestinationSpec] = []
    """Destinations of copies in addition to the run folder."""
    serving_account: str | None = None
    """Kubernetes ServiceAccount for the manifests that serve the model. None to write no manifests."""


class ProfilingSpec(Record):
    """Training steps to profile, counted from 1."""

    start_step: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]


class SmokeSpec(Record):
    """A short trial training of a miniature of the model on preflight's CPU, before the actual training."""

    steps: Annotated[int, Field(ge=1)]
    examples: Annotated[int, Field(ge=1)]
    """Number of rows of each source."""


class StageRequest(Record):
    """The request for one attempt of one stage.

    The operator writes every value that it decides, so the defaults for users are defined only in its
    ``planning.defaults``. A field has a default here only if its absence means that the feature is not used, or stands
    for the behavior before the field existed.

    A stage ignores parts that concern other stages. All parts are always present, so that a request is complete and
    preflight checks the input of later stages.
    """

    version: Version = 3
    requires: VersionText = str(FIRST_VERSION)
    """Least version of the contract that understands the whole request. Older trainers refuse it."""
    job: JobIdentity
    stage: Stage
    attempt: Annotated[int, Field(ge=1, le=999)]
    """Number of the JobSet. Together with ``restart`` it identifies the attempt."""
    restart: Annotated[int, Field(ge=0)] = 0
    """Restart count of the JobSet, read from ``RESTART_VARIABLE``: a JobSet cannot write it into its own template."""
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
    """JAX release of the Pathways servers, which the trainer's must equal. None if unknown, or with McJAX."""
    checkpointing: CheckpointPolicy
    evaluation: EvaluationSpec
    export: ExportSpec
    export_proof: bool
    profiling: ProfilingSpec | None = None
    """None to record no profile."""
    smoke: SmokeSpec | None = None
    """None to skip the smoke test."""
    engine_overrides: dict[str, str] = {}
    memory: MemoryCheckSpec | None = None
    """None to skip the memory check."""
    tuning: Tuning = {}
    """MaxText settings that preflight chose by compiling. ``engine_overrides`` take precedence over them."""
    # --- Results of earlier stages; None before.
    fingerprint: str | None = None
    """Fingerprint of the converted model, determined by preflight, for convert."""
    converted: Uri | None = None
    """The ``items`` folder of the converted model, for train, evaluate and export."""
    converted_files_digest: Sha256 | None = None
    """sha256 of the list of the converted model's files (``layout.file_list``), which are compared with storage before
    they are loaded. None for the user's own Orbax checkpoint."""
    train_step: int | None = None
    """Step of the checkpoint to evaluate and export. Set after training."""
    end_ids: Annotated[list[int], Field(max_length=64)] | None = None
    """Tokens with which training taught answers to end, for evaluate and export."""

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
                    "pairs of answers are evaluated by a method that compares them, and by Loss only"
                )
        return self

    def for_trainer(self, version: ContractVersion) -> Self:
        """Returns the request with ``requires`` set, for a trainer that supports ``version`` of the contract.

        Raises:
            ContractUnsupported: that trainer would not understand all of it.
        """
        needed = required_version(self)
        if version.major != needed.major or version < needed:
            newer = ", ".join(path for path, since in newer_parts(self) if since > version)
            raise ContractUnsupported(
                f"The request of stage {self.stage} needs version {needed} of the contract"
                f"{f' ({newer})' if newer else ''}, and the trainer image supports {version}."
            )
        return self.model_copy(update={"requires": str(needed)})

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Parses a request. Raises the errors of :meth:`of_environment` except KeyError."""
        _refuse_other_version(text)
        return cls.model_validate_json(text)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads the container's request from its environment variables.

        Raises:
            KeyError: there is no request.
            ContractUnsupported: it has another major version, or a newer minor version than this code supports.
            ValidationError: it is not a valid request.
        """
        request = cls.read(environment[REQUEST_VARIABLE])
        restart = environment.get(RESTART_VARIABLE) or "0"
        return cls.model_validate({**dict(request), "restart": restart})


def _refuse_other_version(text: str | bytes) -> None:
    """Refuses a request of another version before it is validated: it may not even resemble one of this version."""
    try:
        head = json.loads(text)
        # A writer omits fields at their default, which is the first minor version of the record's own major version.
        stated = ContractVersion.parse(head["requires"]) if "requires" in head else None
        major = stated.major if stated else FIRST_VERSION.major
        first = ContractVersion(int(head.get("version", major)), 0)
        requires = max(stated, first) if stated else first
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return  # Not a request at all; validation gives a better message.
    if requires.major != CONTRACT_VERSION.major or requires > CONTRACT_VERSION:
        raise ContractUnsupported(
            f"The request needs version {requires} of the contract, and this trainer supports {CONTRACT_VERSION}."
        )
