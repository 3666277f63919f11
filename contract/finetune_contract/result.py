"""What a stage's attempt came to (``attempts/<stage>-<n>/result.json``)."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from finetune_contract.base import Code, Count, Published, Record, Seconds, Sha256, Timestamp, Uri, Version
from finetune_contract.engine import Tuning
from finetune_contract.failure import Failure
from finetune_contract.request import MeshSpec, SliceShape
from finetune_contract.stages import Stage
from finetune_contract.versions import FIRST_VERSION, VersionText

#: pydantic's errors about a value that a newer writer may know: a kind of findings, a member of an enumeration.
_NEWER = frozenset({"union_tag_invalid", "literal_error", "enum"})


#: Of lists and maps that have an entry for each dataset, metric, phase or file.
Few = Field(max_length=64)
#: Of those that have one for each setting or candidate.
Many = Field(max_length=256)
#: Of one training.
MOST_CHECKPOINTS = 1000
#: Trained tensors that a result names.
MOST_UNCHANGED = 16
#: Candidates that a result names.
MOST_TRIED = 256
#: Of each text of a sample in a result.
SHOWN_CHARACTERS = 2000


class Outcome(StrEnum):
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    """Ended on request (SIGTERM) after saving what there was to save; exit code 75."""
    FAILED = "Failed"


class ModelSizes(Record):
    """What decides how much memory and scratch space the stages on CPU take; in parameters unless stated otherwise."""

    largest_piece: Count
    """The most that a stage holds in memory at once: a tensor, or one projection of all experts of a layer."""
    largest_stack: Count
    """The largest array in which MaxText stacks a tensor of all layers."""
    largest_block: Count
    """The layers that MaxText scans as one block."""
    lora_width: Count
    """Inputs and outputs of all linear layers that LoRA can adapt; times the rank, the parameters of an adapter."""
    weights_bytes: Count
    """Of the source's weight files; 0: they are not fetched, or unknown."""


class ModelIdentity(Record):
    """What the model is, once its config.json has been read."""

    source: str
    revision: str
    """Commit of the hub repository, or a digest over the folder's files (names, sizes, checksums)."""
    tokenizer_revision: str | None = None
    """Commit of the tokenizer's own repository, or a digest over the tokenizer's files in a folder; None where it lies
    in the model's repository."""
    architecture: str
    parameters: Count
    maxtext_model: str
    layout: str
    """How the converted checkpoint is laid out: ``scanned/float32`` …"""
    sizes: ModelSizes | None = None
    """None: written by a trainer that does not report them."""


class DatasetReport(Record):
    path: str
    name: str
    uri: str
    revision: str
    format: str
    """'' where no row was read."""
    checked: Literal["Full", "Sample", "Off"] = "Full"
    """What the numbers are of: all rows, the first ones, or none."""
    rows: Count
    """Rows that take part, after dropping."""
    tokens: Count
    trained_tokens: Count
    """Tokens that count towards the loss."""
    truncated_rows: Count = 0
    dropped_rows: Count = 0
    drop_reasons: Annotated[dict[str, Count], Few] = {}
    duplicate_rows: Count = 0
    """Rows that are equal to an earlier one."""
    weight: float | None = None
    sequences: Count | None = None
    """What the rows make up: as many, or fewer with packing. None where they were not all read."""
    epoch_sequences: Count | None = None
    """Of them in one epoch of a mixture with weights: more are repeated, fewer come in later epochs."""


class BenchmarkReport(Record):
    """One of evaluation.benchmarks, as preflight found it."""

    path: str
    name: str
    uri: str
    """Of its rows: the folder, or the hub's dataset."""
    revision: str
    rows: Count
    """Examples that are asked."""


class DataManifest(Record):
    """``<cache>/data/<fingerprint>/manifest.json``: one source, read and tokenized."""

    version: Version = 1
    fingerprint: str
    inputs: Annotated[dict[str, str], Many]
    tokens: Uri
    index: Uri
    format: str
    digest: str
    """sha256 over all tokens and masks."""
    size_bytes: Count
    seconds: Seconds
    """What the preparation took: what a hit saves."""
    created: Timestamp
    files_digest: Sha256 | None = None
    """Of the list of its files. None: written by an earlier release, and not used."""


class DataCacheUse(Record):
    """Whether a source had been prepared before."""

    path: str
    result: Literal["Hit", "Miss"]
    fingerprint: str
    uri: Uri | None = None
    """Where it lies; None where it was not kept."""
    size_bytes: Count = 0
    saved_seconds: Seconds = 0.0
    miss_because: Annotated[list[str], Few] = []
    """What differed from the last preparation of the same source."""


class ConversionCacheUse(Record):
    """Whether the model had been converted before. A hit was compared with storage, file by file."""

    result: Literal["Hit", "Miss"]
    uri: Uri | None = None
    """The converted model's ``items``; of a hit, as the next two."""
    files_digest: Sha256 | None = None
    size_bytes: Count = 0
    miss_because: list[str] = []
    """What differs from the last conversion of the same model, or what is wrong with the entry in the cache."""


class UnfitSlice(Record):
    """A slice that preflight has considered and not chosen."""

    slice: SliceShape
    why: Annotated[str, Field(max_length=256)]
    """``does not fit, 40.10 GiB of 31.24 GiB``."""


class MemoryOutcome(Record):
    """What preflight found out about the train step on its slice. Bytes are per chip; a step is an optimizer's."""

    source: Literal["Compile", "Analytic"]
    slice: str
    """What it was found out for: ``2 x v6e-16``."""
    chosen: SliceShape | None = None
    """The same slice, where the request left the choice to preflight."""
    unfit: Annotated[list[UnfitSlice], Field(max_length=16)] = []
    """Cheaper ones that do not hold the training, in the order of the request."""
    unknown: str = ""
    """Why nothing was found out, as a sentence; then there are no numbers."""
    peak_bytes: Count | None = None
    limit_bytes: Count | None = None
    arguments_bytes: Count | None = None
    """Parameters, those of a reference model, optimizer's state and batch."""
    temporaries_bytes: Count | None = None
    flops: float | None = None
    hbm_bytes: float | None = None
    """What the operations read and write, counted as if nothing stayed on the chip between them."""
    network_bytes: float | None = None
    step_seconds: tuple[Seconds, Seconds] | None = None
    """Roofline: no step is faster; nothing overlaps."""
    mesh: MeshSpec | None = None
    """What was compiled: the request's, or the better one that was found."""
    tuning: Tuning = {}
    """MaxText's settings that were chosen."""
    tried: Annotated[list[str], Many] = []
    """One line for each candidate that was compiled, the first ones."""
    programs: Annotated[list[str], Many] = []
    """One line for each other program of the job that was compiled and fits: losses, answers, benchmarks."""
    uncompiled: Annotated[list[str], Many] = []
    """Programs of the job that could not be compiled, or not in time, the largest first."""
    cached: bool = False


class SmokeOutcome(Record):
    """The job's own chain in small, which went through to its export."""

    steps: Count
    examples: Count
    """That were trained on."""
    max_seq_length: Count
    first_loss: float | None = None
    """Of a miniature with random weights, as the next: that they are numbers is what they tell."""
    last_loss: float | None = None
    seconds: Seconds


class PreflightOutcome(Record):
    kind: Literal["Preflight"] = "Preflight"
    model: ModelIdentity
    train: Annotated[list[DatasetReport], Few]
    validation: Annotated[list[DatasetReport], Few] = []
    evaluation: Annotated[list[DatasetReport], Few] = []
    """Of evaluation.datasets, in their order."""
    benchmarks: Annotated[list[BenchmarkReport], Few] = []
    """Of evaluation.benchmarks, in their order."""
    steps: Count
    """Optimizer steps of the whole training."""
    max_seq_length: Count | None = None
    """What sequences are cut to: datasets.maxSeqLength, or the model's own limit where that is lower."""
    row_width: Count | None = None
    """Positions of a row, which are more than ``max_seq_length`` where the TPU's attention kernel takes no row of that
    width. None: an earlier release, whose rows are as wide as their sequences."""
    fingerprint: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    """Of the converted model; the name of its folder in the cache."""
    fingerprint_inputs: Annotated[dict[str, str], Many]
    """What went into the fingerprint, by name, so that a miss can say which input differed."""
    prepared: Annotated[list[DataCacheUse], Many] = []
    warnings: Annotated[list[str], Field(max_length=16)] = []
    """What is worth a look before training; all is in the report."""
    report: Uri
    """The page for people; the same as data is beside it."""
    memory: MemoryOutcome | None = None
    """None: not asked for."""
    smoke: SmokeOutcome | None = None
    """None: not asked for."""
    conversion: ConversionCacheUse | None = None
    """None: there is nothing to convert; or an earlier release, which did not look."""


class ConvertManifest(Record):
    """``<cache>/convert/<fingerprint>/manifest.json``."""

    version: Version = 1
    fingerprint: str
    inputs: Annotated[dict[str, str], Many]
    items: Uri
    size_bytes: Count
    seconds: Seconds
    """What the conversion took, proof included: what a hit saves."""
    export_proven: bool
    proof: str = ""
    """One sentence: what was compared and how large the difference was."""
    created: Timestamp
    files_digest: Sha256 | None = None
    """Of the list of its files. None: written by an earlier release; no preflight takes it for a hit."""


class ConvertOutcome(Record):
    kind: Literal["Convert"] = "Convert"
    manifest: ConvertManifest
    reused: bool = False
    """The stage found it in the cache."""


class CheckpointRecord(Record):
    step: Count
    uri: Uri
    metrics: Annotated[dict[str, float], Field(max_length=16)] = {}


class TrainOutcome(Record):
    kind: Literal["Train"] = "Train"
    step: Count
    """Last step done, saved in a checkpoint."""
    total_steps: Count
    start_step: Count = 0
    first_loss: float | None = None
    last_loss: float | None = None
    evaluation_loss: float | None = None
    """Of the final evaluation on the validation set."""
    best_step: Count | None = None
    """The best of ``checkpoints`` by the policy's metric; None where nothing tells which is better."""
    checkpoints: Annotated[list[CheckpointRecord], Field(max_length=MOST_CHECKPOINTS)] = []
    """Those that were kept, oldest first; of more, the newest and the best."""
    tokens: Count = 0
    unchanged_tensors: Count = 0
    """Trained tensors that came out of the last step as they went into the first, bit for bit."""
    unchanged: Annotated[list[str], Field(max_length=MOST_UNCHANGED)] = []
    """The first of them, by their names in the exported model."""
    trace: Uri | None = None
    """The folder of the profile, where one was recorded in this or an earlier attempt."""
    seconds: Annotated[dict[str, Seconds], Few] = {}
    """startup, restore, compile, productive, checkpoint …"""


class Sample(Record):
    dataset: str | None = None
    """None: one of evaluation.prompts."""
    prompt: str
    baseline: str | None = None
    tuned: str | None = None
    reference: str | None = None

    def shown(self) -> "Sample":
        """The same with texts of at most SHOWN_CHARACTERS: a record has no room for whole documents."""
        texts = {name: getattr(self, name) for name in ("prompt", "baseline", "tuned", "reference")}
        cut = {
            name: f"{text[: SHOWN_CHARACTERS - 1]}…"
            for name, text in texts.items()
            if text is not None and len(text) > SHOWN_CHARACTERS
        }
        return self.model_copy(update=cut)


class EvaluationResult(Record):
    loss: float
    """In nats, per token or per pair, as the method has it."""
    perplexity: float | None = None
    """Where the loss is a mean over tokens."""
    tokens: Count
    """Whose probability counts."""
    rows: Count
    by_set: Annotated[dict[str, float], Few] = {}
    """The loss of each validation set, where there are several."""
    method_metrics: Annotated[dict[str, float], Field(max_length=16)] = {}
    """What else the method measures, as in :class:`~.progress.StepMetrics`."""


class DatasetScores(Record):
    """One of evaluation.datasets or evaluation.benchmarks, measured; metrics by their short names (``exact_match``)."""

    name: str
    rows: Count
    baseline: Annotated[dict[str, float], Few] = {}
    tuned: Annotated[dict[str, float], Few]


class GateOutcome(Record):
    metric: str
    value: float | None = None
    """None: not measured."""
    op: Literal["GreaterOrEqual", "LessOrEqual"]
    threshold: float | None = None
    """None where the base model was not measured."""
    passed: bool


class EvaluateOutcome(Record):
    kind: Literal["Evaluate"] = "Evaluate"
    dataset: str | None = None
    dataset_hash: str | None = None
    """sha256 over the rows of all that was measured on."""
    step: Count | None = None
    """The measured checkpoint's."""
    baseline: EvaluationResult | None = None
    tuned: EvaluationResult | None = None
    """On the validation rows."""
    datasets: Annotated[list[DatasetScores], Few] = []
    gates: Annotated[list[GateOutcome], Field(max_length=16)] = []
    samples: Annotated[list[Sample], Field(max_length=16)] = []
    """The first ones, their texts cut (:meth:`Sample.shown`); all are whole in ``samples_uri``."""
    samples_uri: Uri | None = None

    def metrics(self, which: Literal["baseline", "tuned"]) -> dict[str, float]:
        """By name: the method's ``metrics`` on the validation rows, ``<set>/loss`` on each of several validation sets,
        ``<dataset>/<metric>``."""
        result = self.baseline if which == "baseline" else self.tuned
        found: dict[str, float] = {}
        if result is not None:
            found = {"loss": result.loss}
            found |= {} if result.perplexity is None else {"perplexity": result.perplexity}
            found = {**found, **result.method_metrics, **found}
            found |= {f"{name}/loss": loss for name, loss in result.by_set.items()}
        for scores in self.datasets:
            measured = scores.baseline if which == "baseline" else scores.tuned
            found |= {f"{scores.name}/{name}": value for name, value in measured.items()}
        return found


class Artifact(Record):
    name: str
    type: Literal["HuggingFace", "Adapter", "OrbaxParams"]
    uri: Published
    digest: str
    """sha256 of the manifest that lists every file's sha256."""
    size_bytes: Count


class ExportOutcome(Record):
    kind: Literal["Export"] = "Export"
    artifacts: Annotated[list[Artifact], Few]
    manifest: Uri
    step: Count | None = None
    """The checkpoint that they were made of."""


Details = PreflightOutcome | ConvertOutcome | TrainOutcome | EvaluateOutcome | ExportOutcome
"""What a stage found out. Its ``kind`` is the stage's name."""


class StageResult(Record):
    """How one attempt ended.

    Findings of an unknown kind, or with a value that an enumeration did not have when this code was written, are read
    as absent: the end of the attempt can still be told, and whoever needs the findings misses them.
    """

    version: Version = 1
    speaks: VersionText = str(FIRST_VERSION)
    """The version of the contract that the trainer image speaks."""
    stage: Stage
    attempt: Count
    restart: Count = 0
    outcome: Outcome
    exit_code: Code
    started: Timestamp
    finished: Timestamp
    details: Annotated[Details | None, Field(discriminator="kind")] = None
    """The stage's own findings; there when it succeeded, and for Train also when it was stopped."""
    failure: Failure | None = None
    compilations: Count | None = None
    """Programs that process 0 had to compile, since the compilation cache did not have them. None: it compiles nothing,
    or is of an earlier release."""

    @field_validator("details", mode="wrap")
    @classmethod
    def _understood(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if all(each["type"] in _NEWER for each in error.errors(include_url=False, include_input=False)):
                return None
            raise
