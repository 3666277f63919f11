"""The result of a comparison, which text, JSON and pages present.

``docs/reference/comparison.schema.json`` documents its JSON. Within a version, fields are added and never removed or
changed.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import WithJsonSchema

from finetune_operator.results.records import ResultPart

Measurement = Annotated[
    float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]})
]
"""A measured value; one that is not finite, of a model that has diverged, is a string in JSON."""


class Verdict(StrEnum):
    """What a difference between two models shows."""

    BETTER = "Better"
    """Better, and the interval does not contain 0."""
    WORSE = "Worse"
    """Worse, and the interval does not contain 0."""
    HIGHER = "Higher"
    """Higher, for a metric of which it is not known whether higher is better."""
    LOWER = "Lower"
    """Lower, for such a metric."""
    NO_DIFFERENCE = "NoDifference"
    """The interval contains 0: these rows cannot show a difference."""
    IDENTICAL = "Identical"
    """Every row has the same value."""
    TOO_FEW_ROWS = "TooFewRows"
    """Too few rows for an interval."""
    NO_INTERVAL = "NoInterval"
    """There are means, but no values of single rows."""
    NOT_COMPARABLE = "NotComparable"
    """The two values do not measure the same; ``reason`` says why."""


class Direction(StrEnum):
    """Whether lower or higher values of a metric are better."""

    LOWER = "LowerIsBetter"
    HIGHER = "HigherIsBetter"
    UNKNOWN = "Unknown"


class Contrast(ResultPart):
    """The difference of one model's mean from another's, on the same rows."""

    verdict: Verdict
    """What the difference shows."""
    difference: float | None = None
    """The mean minus the other mean. Null if they are not comparable."""
    interval: tuple[float, float] | None = None
    """Bounds of the 95 % interval of the difference. Null if there is none."""
    smallest: float | None = None
    """Smallest difference that these rows can show: half of the interval's width. Null if there is no interval, or if
    all rows have the same value."""
    reason: str | None = None
    """Why the verdict is NotComparable, NoInterval or TooFewRows; with NoDifference, that only few rows differ. Null
    otherwise."""


class MetricValue(ResultPart):
    """A metric of one job."""

    job: str
    """Label of the job: A, B, ..."""
    value: Measurement | None
    """The tuned model's mean. Null if it is not measured."""
    baseline: Measurement | None
    """The base model's mean on the same rows. Null if it is not measured."""
    from_reference: Contrast | None = None
    """Difference of the tuned model from job A's. Null for A, and where either is not measured."""
    from_baseline: Contrast | None = None
    """Difference of the tuned model from its base model. Null where either is not measured."""


class MetricComparison(ResultPart):
    """One metric of all jobs."""

    name: str
    """Name as in gates: ``loss``, ``faq/exact_match``."""
    kind: Literal["Validation", "Dataset", "Benchmark"] | None
    """Kind of the rows. Null if there are no values of single rows."""
    direction: Direction
    """Whether lower or higher is better."""
    rows: int | None
    """Number of rows that the means are over. Null if there are no values of single rows."""
    different_rows: int | None
    """Number of those with different content: equal rows are one observation. Null if ``rows`` is."""
    values: Sequence[MetricValue]
    """One entry for each evaluated job."""


class SetRows(ResultPart):
    """Rows of one validation set, dataset or benchmark."""

    kind: Literal["Validation", "Dataset", "Benchmark"]
    """Kind of the set."""
    name: str
    """Name of the set."""
    common: int
    """Number of rows that all jobs have."""
    others: Mapping[str, int]
    """Number of the other rows by label of the job, without jobs that have none."""
    first: Mapping[str, Sequence[str]]
    """First digits of the digests of the first of those rows, by label of the job."""


class ChangeKind(StrEnum):
    """Whether words are in both answers."""

    SAME = "Same"
    REMOVED = "Removed"
    """In job A's answer alone."""
    ADDED = "Added"
    """In the other answer alone."""


class Change(ResultPart):
    """Consecutive words of two answers."""

    kind: ChangeKind
    """Which of the answers has them."""
    text: str
    """The words, with the space after them."""


class JobAnswer(ResultPart):
    """The answer of one job's tuned model."""

    job: str
    """Label of the job."""
    text: str
    """The answer, shortened to 2,000 characters."""
    changes: Sequence[Change] | None = None
    """Differences from job A's answer. Null for A, and for answers that are too long to compare."""


class AnswerComparison(ResultPart):
    """The answers to one prompt."""

    dataset: str | None
    """Name of the prompt's dataset. Null for one of evaluation.prompts."""
    prompt: str
    """The prompt, shortened to 2,000 characters."""
    reference: str | None
    """The expected answer. Null if there is none."""
    baseline: str | None
    """The answer of job A's base model. Null if it was not asked."""
    answers: Sequence[JobAnswer]
    """One answer for each job, job A's first."""


class AnswersCompared(ResultPart):
    """Answers to the prompts that all jobs have."""

    jobs: Sequence[str]
    """Labels of the jobs that have answers."""
    prompts: int
    """Number of prompts that these jobs have in common."""
    equal: int
    """Number of those whose answers are all equal."""
    shown: Sequence[AnswerComparison]
    """The first prompts with different answers."""


class SettingDifference(ResultPart):
    """A setting that is not equal in all jobs."""

    path: str
    """Path in the job's spec, for example ``hyperparameters.learningRate``; or in ``status.resolved``."""
    values: Mapping[str, str | None]
    """Value by label of the job. Null if it is not set."""


class ComparedModel(ResultPart):
    """The model that a job starts from."""

    source: str
    """Repository or URI."""
    revision: str | None
    """Commit, or digest of the folder."""
    tokenizer_revision: str | None
    """Commit or digest of a tokenizer with its own source."""
    architecture: str | None
    """Architecture as in config.json."""
    parameters: int | None
    """Number of parameters."""


class Throughput(ResultPart):
    """Speed and memory of a training. What is unknown is null."""

    median_step_seconds: float | None
    """Median of the time of a step, over all steps that were measured alone, without compilation and evaluation."""
    p95_step_seconds: float | None
    """95th percentile of the same."""
    slowest_step_seconds: float | None
    """Maximum of the same."""
    tokens_per_second: float | None
    """Trained tokens per second of these steps, over all chips."""
    tokens_per_second_per_chip: float | None
    """The same divided by the chips of all slices."""
    mfu: float | None
    """Model FLOPs utilization of the last steps, as a share."""
    peak_memory_bytes: int | None
    """Peak memory in use on one chip."""
    compilations: int | None
    """Number of programs that were compiled."""


class ComparedJob(ResultPart):
    """What the records of one job show. Null and absent values are unknown."""

    label: str
    """A for the reference, then B, C, ..."""
    name: str
    """Name of the job, or of its run folder if no record names it."""
    namespace: str | None
    """Namespace of the job."""
    run_folder: str | None
    """URI of the run folder."""
    phase: str | None
    """Phase as last observed by the operator."""
    model: ComparedModel | None
    """The base model."""
    method: str | None
    """Training objective: SFT, DPO, ORPO."""
    evaluated_step: int | None
    """Optimizer step of the evaluated checkpoint."""
    steps: int | None
    """Optimizer steps that are done."""
    total_steps: int | None
    """Optimizer steps of the whole training."""
    training_loss: Measurement | None
    """Loss of the last step."""
    validation_loss: Measurement | None
    """Last loss on the validation rows during training."""
    curve: Sequence[tuple[int, Measurement]]
    """(step, loss) over the training, thinned."""
    throughput: Throughput | None
    """Speed and memory of the training."""
    chip_hours: str | None
    """TPU chip hours, as a decimal."""
    cost: str | None
    """Cost, as a decimal."""
    currency: str | None
    """Currency of the cost: USD."""
    running_seconds: int | None
    """Seconds in which processes of any stage ran."""
    stage_seconds: Mapping[str, int]
    """Seconds from the start to the end of each stage that has ended."""
    missing: Sequence[str]
    """What is missing for the comparison and how to get it, or what is unreadable, as sentences."""


class Comparison(ResultPart):
    """Two or more jobs; job A is the reference."""

    kind: Literal["Comparison"] = "Comparison"
    version: Literal[1] = 1
    """Version of this format."""
    jobs: Sequence[ComparedJob]
    """The jobs, in the order of the command's arguments."""
    common_only: bool
    """Whether rows are left out that not all jobs have."""
    rows: Sequence[SetRows]
    """The evaluated rows by set; empty if there are no values of single rows."""
    metrics: Sequence[MetricComparison]
    """The metrics of the evaluation."""
    answers: AnswersCompared | None
    """Null if fewer than two jobs have answers."""
    configuration: Sequence[SettingDifference]
    """The settings that differ."""
    notes: Sequence[str]
    """What limits the comparison, as sentences."""
