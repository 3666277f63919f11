"""The result of a stage's attempt (``attempts/<stage>-<n>/result.json``)."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from finetune_contract.base import Code, Count, Published, Record, Seconds, Sha256, Timestamp, Uri, Version
from finetune_contract.engine import Tuning
from finetune_contract.failure import Failure
from finetune_contract.request import MeshSpec, SliceShape
from finetune_contract.stages import Stage
from finetune_contract.versions import FIRST_VERSION, VersionText

#: Types of pydantic errors for values that a newer writer may know: a kind of details or a member of an enumeration.
_NEWER = frozenset({"union_tag_invalid", "literal_error", "enum"})


#: Limit of lists and maps with an entry per dataset, metric, phase or file.
Few = Field(max_length=64)
#: Limit of lists and maps with an entry per setting or candidate.
Many = Field(max_length=256)
#: Maximum number of checkpoints of one training in a result.
MOST_CHECKPOINTS = 1000
#: Maximum number of unchanged tensors in a result.
MOST_UNCHANGED = 16
#: Maximum number of tried candidates in a result.
MOST_TRIED = 256
#: Maximum length in characters of each text of a sample in a result.
SHOWN_CHARACTERS = 2000


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    """Ended on request (SIGTERM) after saving its state; exit code 75."""
    FAILED = "Failed"


class ModelSizes(Record):
    """Sizes that determine memory and scratch space of the CPU stages, in parameters unless stated otherwise."""

    largest_piece: Count
    """Largest piece that a stage holds in memory at once: a tensor, or one projection of all experts of a layer."""
    largest_stack: Count
    """Largest array in which MaxText stacks a tensor of all layers."""
    largest_block: Count
    """Size of the layers that MaxText scans as one block."""
    lora_width: Count
    """Sum of the inputs and outputs of all linear layers that LoRA can adapt. Multiplied by the rank, it is the number
    of parameters of an adapter."""
    weights_bytes: Count
    """Bytes of the source's weight files; 0 if they are not fetched or their size is unknown."""


class ModelIdentity(Record):
    """The model's identity, as read from its config.json."""

    source: str
    revision: str
    """Commit of the hub repository, or a digest over the folder's files (names, sizes, checksums)."""
    tokenizer_revision: str | None = None
    """Commit of the tokenizer's own repository, or a digest over the tokenizer's files in a folder. None if the
    tokenizer is in the model's repository."""
    architecture: str
    parameters: Count
    maxtext_model: str
    layout: str
    """Layout of the converted checkpoint: ``scanned/float32`` …"""
    sizes: ModelSizes


class DatasetReport(Record):
    """One dataset, as preflight read it."""

    path: str
    name: str
    uri: str
    revision: str
    format: str
    """Format of the rows. Empty if no row was read."""
    checked: Literal["Full", "Sample", "Off"] = "Full"
    """Rows that the numbers cover: all, the first ones, or none."""
    rows: Count
    """Number of rows in use, without dropped ones."""
    tokens: Count
    trained_tokens: Count
    """Number of tokens that count towards the loss."""
    truncated_rows: Count = 0
    dropped_rows: Count = 0
    drop_reasons: Annotated[dict[str, Count], Few] = {}
    duplicate_rows: Count = 0
    """Number of rows that are equal to an earlier one."""
    weight: float | None = None
    sequences: Count | None = None
    """Number of sequences that the rows form: one per row, or fewer with packing. None if not all rows were read."""
    epoch_sequences: Count | None = None
    """Number of the source's sequences in one epoch of a mixture with weights. If it exceeds ``sequences``, some are
    repeated; if it is lower, the others follow in later epochs."""


class BenchmarkReport(Record):
    """One benchmark of ``evaluation.benchmarks``, as preflight read it."""

    path: str
    name: str
    uri: str
    """Location of its rows: the folder, or the hub's dataset; of a group, its first dataset."""
    revision: str
    """Commit of the dataset, or digest of the folder's files; of a group with several datasets, of their commits."""
    rows: Count
    """Number of examples that are evaluated, in all tasks."""
    tasks: Count = 1
    """Number of tasks: several if the benchmark is a group."""
    revisions: Annotated[dict[str, str], Few] = {}
    """Of a group, the commit of each dataset of the hub by repository, or ``<repository>@<revision>`` where the harness
    names a revision."""


class DataManifest(Record):
    """Manifest of one read and tokenized source: ``<cache>/data/<fingerprint>/manifest.json``."""

    version: Version = 3
    fingerprint: str
    inputs: Annotated[dict[str, str], Many]
    tokens: Uri
    index: Uri
    format: str
    digest: str
    """sha256 over all tokens and masks."""
    size_bytes: Count
    seconds: Seconds
    """Duration of the preparation, which a cache hit saves."""
    created: Timestamp
    files_digest: Sha256
    """sha256 of the list of its files (``layout.file_list``)."""


class DataCacheUse(Record):
    """Whether the cache holds the prepared rows of a source."""

    path: str
    result: Literal["Hit", "Miss"]
    fingerprint: str
    uri: Uri | None = None
    """Location of the prepared rows. None if they were not stored."""
    size_bytes: Count = 0
    saved_seconds: Seconds = 0.0
    miss_because: Annotated[list[str], Few] = []
    """Differences from the last preparation of the same source."""


class ConversionCacheUse(Record):
    """Whether the cache holds the converted model. A hit has been compared with storage, file by file."""

    result: Literal["Hit", "Miss"]
    uri: Uri | None = None
    """The converted model's ``items`` folder. This and the next two fields are set for a hit only."""
    files_digest: Sha256 | None = None
    size_bytes: Count = 0
    miss_because: list[str] = []
    """Differences from the last conversion of the same model, or faults of the cache entry."""


class UnfitSlice(Record):
    """A slice that preflight considered but did not choose."""

    slice: SliceShape
    why: Annotated[str, Field(max_length=256)]
    """The reason, such as ``does not fit, 40.10 GiB of 31.24 GiB``."""


class MemoryOutcome(Record):
    """Memory and duration of the train step on its slice. Bytes are per chip; a step is an optimizer step."""

    source: Literal["Compile", "Analytic"]
    slice: str
    """The slices that the numbers apply to: ``2 x v6e-16``."""
    chosen: SliceShape | None = None
    """The shape of that slice. Only set if the request left the choice to preflight."""
    unfit: Annotated[list[UnfitSlice], Field(max_length=16)] = []
    """Cheaper slices that training does not fit, in the order of the request."""
    unknown: str = ""
    """Why there are no numbers, as a sentence. Empty if there are."""
    peak_bytes: Count | None = None
    limit_bytes: Count | None = None
    arguments_bytes: Count | None = None
    """Bytes of the parameters, a reference model's parameters, the optimizer state and the batch."""
    temporaries_bytes: Count | None = None
    flops: float | None = None
    hbm_bytes: float | None = None
    """Bytes that the operations read and write, assuming that nothing stays on the chip between them."""
    network_bytes: float | None = None
    step_seconds: tuple[Seconds, Seconds] | None = None
    """Roofline bounds of a step's duration: the lower bound, and the duration if nothing overlaps."""
    mesh: MeshSpec | None = None
    """The compiled mesh: the request's, or a better one that preflight found."""
    tuning: Tuning = {}
    """MaxText settings that preflight chose."""
    tried: Annotated[list[str], Many] = []
    """One line for each compiled candidate; the first ones if there are too many."""
    programs: Annotated[list[str], Many] = []
    """One line for each other program of the job that was compiled and fits: losses, answers, benchmarks."""
    uncompiled: Annotated[list[str], Many] = []
    """Programs of the job that could not be compiled, or not in time, largest first."""
    cached: bool = False


class SmokeOutcome(Record):
    """A successful smoke test: the job's stages in miniature, up to and including export."""

    steps: Count
    examples: Count
    """Number of examples that were trained on."""
    max_seq_length: Count
    first_loss: float | None = None
    """Loss of a miniature with random weights, as is ``last_loss``: only that it is a number is meaningful."""
    last_loss: float | None = None
    seconds: Seconds


class PreflightOutcome(Record):
    """Details of the Preflight stage."""

    kind: Literal["Preflight"] = "Preflight"
    model: ModelIdentity
    train: Annotated[list[DatasetReport], Few]
    validation: Annotated[list[DatasetReport], Few] = []
    evaluation: Annotated[list[DatasetReport], Few] = []
    """The datasets of ``evaluation.datasets``, in their order."""
    benchmarks: Annotated[list[BenchmarkReport], Few] = []
    """The benchmarks of ``evaluation.benchmarks``, in their order."""
    steps: Count
    """Number of optimizer steps of the whole training."""
    max_seq_length: Count
    """Length in tokens that sequences are truncated to: datasets.maxSeqLength, or the model's own limit if lower."""
    row_width: Count
    """Number of positions of a row. It exceeds ``max_seq_length`` if the TPU's attention kernel does not support rows
    of that width."""
    fingerprint: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    """Fingerprint of the converted model; the name of its folder in the cache."""
    fingerprint_inputs: Annotated[dict[str, str], Many]
    """Inputs of the fingerprint by name, so that a miss can name the input that differs."""
    prepared: Annotated[list[DataCacheUse], Many] = []
    warnings: Annotated[list[str], Field(max_length=16)] = []
    """Findings to review before training; the report has all of them."""
    report: Uri
    """The report as an HTML page; the same as JSON is beside it."""
    memory: MemoryOutcome | None = None
    """None if not requested."""
    smoke: SmokeOutcome | None = None
    """None if not requested."""
    conversion: ConversionCacheUse | None = None
    """None if there is nothing to convert: the model is an Orbax checkpoint."""


class ConvertManifest(Record):
    """Manifest of a converted model: ``<cache>/convert/<fingerprint>/manifest.json``."""

    version: Version = 3
    fingerprint: str
    inputs: Annotated[dict[str, str], Many]
    items: Uri
    size_bytes: Count
    seconds: Seconds
    """Duration of the conversion including its proof, which a cache hit saves."""
    export_proven: bool
    proof: str = ""
    """What was compared and how large the difference was, as one sentence."""
    created: Timestamp
    files_digest: Sha256
    """sha256 of the list of its files (``layout.file_list``)."""


class ConvertOutcome(Record):
    """Details of the Convert stage."""

    kind: Literal["Convert"] = "Convert"
    manifest: ConvertManifest
    reused: bool = False
    """Whether the stage found the converted model in the cache."""


class CheckpointRecord(Record):
    """One saved checkpoint with its validation metrics."""

    step: Count
    uri: Uri
    metrics: Annotated[dict[str, float], Field(max_length=16)] = {}


class TrainOutcome(Record):
    """Details of the Train stage."""

    kind: Literal["Train"] = "Train"
    step: Count
    """Last completed step, which is saved in a checkpoint."""
    total_steps: Count
    start_step: Count = 0
    first_loss: float | None = None
    last_loss: float | None = None
    evaluation_loss: float | None = None
    """Loss of the final evaluation on the validation set."""
    best_step: Count | None = None
    """Step of the best of ``checkpoints`` by the policy's metric. None if no metric ranks them."""
    checkpoints: Annotated[list[CheckpointRecord], Field(max_length=MOST_CHECKPOINTS)] = []
    """Checkpoints that were kept, oldest first; if there are too many, the newest and the best."""
    tokens: Count = 0
    unchanged_tensors: Count = 0
    """Number of trained tensors that are bit for bit the same after the last step as before the first."""
    unchanged: Annotated[list[str], Field(max_length=MOST_UNCHANGED)] = []
    """Names of the first unchanged tensors in the exported model."""
    end_ids: Annotated[list[Count], Few]
    """Tokens with which training taught answers to end, those of most answers first; empty if no answer has an end."""
    trace: Uri | None = None
    """Folder of the profile. None if none was recorded in this or an earlier attempt."""
    seconds: Annotated[dict[str, Seconds], Few] = {}
    """Seconds per phase: startup, restore, compile, productive, checkpoint …"""


class Sample(Record):
    """One prompt with the answers of the base model and the tuned model."""

    dataset: str | None = None
    """Name of the prompt's dataset. None for a prompt of ``evaluation.prompts``."""
    prompt: str
    baseline: str | None = None
    tuned: str | None = None
    reference: str | None = None

    def shown(self) -> "Sample":
        """Returns the sample with each text cut to SHOWN_CHARACTERS: a record has no room for whole documents."""
        texts = {name: getattr(self, name) for name in ("prompt", "baseline", "tuned", "reference")}
        cut = {
            name: f"{text[: SHOWN_CHARACTERS - 1]}…"
            for name, text in texts.items()
            if text is not None and len(text) > SHOWN_CHARACTERS
        }
        return self.model_copy(update=cut)


class EvaluationResult(Record):
    """Metrics of one model on the validation rows."""

    loss: float
    """Mean loss in nats, per token or per pair, depending on the method."""
    perplexity: float | None = None
    """None unless the loss is a mean over tokens."""
    tokens: Count
    """Number of tokens that count towards the loss."""
    rows: Count
    by_set: Annotated[dict[str, float], Few] = {}
    """Loss of each validation set, if there are several."""
    method_metrics: Annotated[dict[str, float], Field(max_length=16)] = {}
    """Further metrics of the method, as in :class:`~.progress.StepMetrics`."""


class DatasetScores(Record):
    """Metrics of one entry of evaluation.datasets or evaluation.benchmarks, by their short names (``exact_match``)."""

    name: str
    rows: Count
    baseline: Annotated[dict[str, float], Few] = {}
    tuned: Annotated[dict[str, float], Few]


class GateOutcome(Record):
    """Outcome of one gate."""

    metric: str
    value: float | None = None
    """None if not measured."""
    op: Literal["GreaterOrEqual", "LessOrEqual"]
    threshold: float | None = None
    """None if it depends on the base model and that was not measured."""
    passed: bool


class EvaluateOutcome(Record):
    """Details of the Evaluate stage."""

    kind: Literal["Evaluate"] = "Evaluate"
    dataset: str | None = None
    dataset_hash: str | None = None
    """sha256 over all evaluated rows."""
    step: Count | None = None
    """Step of the evaluated checkpoint."""
    baseline: EvaluationResult | None = None
    tuned: EvaluationResult | None = None
    """The tuned model on the validation rows; ``baseline`` is the base model on the same."""
    datasets: Annotated[list[DatasetScores], Few] = []
    members: Annotated[list[DatasetScores], Field(max_length=4096)] = []
    """Subgroups, then tasks, of each benchmark that is a group, named ``<benchmark>/<member>``. The stage's result has
    the first few; ``evaluate/results.json`` has all of them."""
    gates: Annotated[list[GateOutcome], Field(max_length=16)] = []
    samples: Annotated[list[Sample], Field(max_length=16)] = []
    """The first samples with shortened texts (:meth:`Sample.shown`); ``samples_uri`` has all of them in full."""
    samples_uri: Uri
    rows_uri: Uri
    """File with the measurements of each row (:class:`~.rows.EvaluatedRow`)."""

    def metrics(self, which: Literal["baseline", "tuned"]) -> dict[str, float]:
        """Returns metrics by name.

        The names are the method's ``metrics`` for the validation rows, ``<set>/loss`` for each of several validation
        sets, ``<dataset>/<metric>``, and ``<benchmark>/<member>/<metric>``.
        """
        result = self.baseline if which == "baseline" else self.tuned
        found: dict[str, float] = {}
        if result is not None:
            found = {"loss": result.loss}
            found |= {} if result.perplexity is None else {"perplexity": result.perplexity}
            found = {**found, **result.method_metrics, **found}
            found |= {f"{name}/loss": loss for name, loss in result.by_set.items()}
        for scores in (*self.datasets, *self.members):
            measured = scores.baseline if which == "baseline" else scores.tuned
            found |= {f"{scores.name}/{name}": value for name, value in measured.items()}
        return found


class Artifact(Record):
    """One exported artifact."""

    name: str
    type: Literal["HuggingFace", "Adapter", "OrbaxParams"]
    uri: Published
    digest: str
    """sha256 of the manifest that lists every file's sha256."""
    size_bytes: Count


class ExportOutcome(Record):
    """Details of the Export stage."""

    kind: Literal["Export"] = "Export"
    artifacts: Annotated[list[Artifact], Few]
    manifest: Uri
    step: Count | None = None
    """Step of the checkpoint that was exported."""


Details = PreflightOutcome | ConvertOutcome | TrainOutcome | EvaluateOutcome | ExportOutcome
"""Details that a stage reports. ``kind`` is the stage's name."""


class StageResult(Record):
    """How one attempt ended.

    Details of an unknown kind, or with an enumeration value that this version does not know, are read as absent: the
    outcome of the attempt stays readable, and a caller that needs the details finds None.
    """

    version: Version = 3
    supports: VersionText = str(FIRST_VERSION)
    """Version of the contract that the trainer image supports."""
    stage: Stage
    attempt: Count
    restart: Count = 0
    outcome: Outcome
    exit_code: Code
    started: Timestamp
    finished: Timestamp
    details: Annotated[Details | None, Field(discriminator="kind")] = None
    """Details of the stage. Set if it succeeded, and for Train also if it was stopped."""
    failure: Failure | None = None
    compilations: Count | None = None
    """Number of programs that process 0 compiled because the compilation cache did not have them. None if the stage
    compiles nothing."""

    @field_validator("details", mode="wrap")
    @classmethod
    def _understood(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if all(each["type"] in _NEWER for each in error.errors(include_url=False, include_input=False)):
                return None
            raise
