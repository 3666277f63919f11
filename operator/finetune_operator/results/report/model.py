"""What a report shows, as data. Everything but the name is optional: a queued job has little of it.

Texts are of bounded length, and may contain anything: a page must escape them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator

from finetune_contract import Artifact, BenchmarkReport, DataReport, GateOutcome, Sample
from finetune_operator.results.comparison.model import Change, ComparedJob, MetricComparison
from finetune_operator.results.model_manifest import ManifestFile
from finetune_operator.results.pages.series import Series
from finetune_operator.results.records import Instant, ResultPart, Text, Whole

#: Characters of the end of a log.
_LONGEST_LOG = 8192
#: The largest integer that is shown. Records have smaller ones, unless they are forged.
_MOST = 2**63 - 1


def _log(value: object) -> str | None:
    return value[:_LONGEST_LOG] if isinstance(value, str) and value else None


class Waiting(ResultPart):
    """Why a job waits: ``status.waiting``."""

    reason: Text
    message: Text = None
    since: Instant = None


class FailureReport(ResultPart):
    """Why a job failed, and what to change: ``status.failure``."""

    reason: Text
    failure_class: Annotated[Text, Field(alias="class")] = None
    stage: Text = None
    attempt: Whole = None
    message: Text = None
    suggestion: Text = None
    evidence: Annotated[str | None, PlainValidator(_log)] = None
    """Last lines of the log."""
    logs: Annotated[Text, Field(alias="logsURI")] = None
    """URI of the rest of the log."""


class StageReport(ResultPart):
    """One stage."""

    name: str
    phase: str
    note: str | None
    """Why it was skipped or failed, or that its result came from the cache."""
    start: datetime | None
    end: datetime | None
    seconds: float | None
    """From the start to the end, or to the time of the report."""


class TimePart(ResultPart):
    """A part of the time of a job."""

    name: str
    seconds: float
    chip_hours: float | None = None
    """TPU chip hours in that time; None if it is unknown or no chip was held."""
    cost: float | None = None
    """In the currency of the job's cost, proportional to the chip hours."""


class TimeAndCost(ResultPart):
    """Where time and money went."""

    parts: Sequence[TimePart]
    """In the order of a job; their seconds add up to ``seconds``."""
    seconds: float | None
    """From admission to the end, or to the time of the report."""
    running_seconds: int | None
    """Time in which processes of any stage ran."""
    chip_hours: str | None
    """Decimal, as the operator computed it."""
    cost: str | None
    currency: str | None
    budget_remaining: str | None
    """Unused part of the budget: money if it limits the cost, else chip hours."""
    goodput_percent: str | None
    """Share of the training's time that advanced it."""


class MetricCurve(ResultPart):
    """A chart over the steps of the training."""

    title: str
    unit: str
    """Unit of the values; empty for a number without unit."""
    series: Sequence[Series]
    """Of each measurement the step and the value, which may be NaN or infinite."""


class DataSummary(ResultPart):
    """The check of the data, as far as it is shown."""

    report: DataReport
    left_out: int
    """Number of datasets that are not shown."""


class EvaluationReport(ResultPart):
    """The evaluation of the tuned model and of its base model on the same rows."""

    step: int | None
    """Optimizer step of the evaluated checkpoint."""
    metrics: Sequence[MetricComparison]
    gates: Sequence[GateOutcome]
    benchmarks: Sequence[BenchmarkReport]


class Answer(ResultPart):
    """The answers to one prompt, before and after."""

    sample: Sample
    changes: Sequence[Change] | None
    """Words of both answers; None if one is missing or too long to compare."""


class Answers(ResultPart):
    """Answers to the first prompts, without repetitions."""

    shown: Sequence[Answer]
    different: int
    """Number of all different answers."""
    total: int
    """Number of all answers."""


class AttemptReport(ResultPart):
    """One attempt of a stage, and what ended it."""

    name: str
    """Stage and number, and the restart inside the JobSet if it is not the first run: ``Train 2.1``."""
    outcome: str
    """Succeeded, Stopped, Failed, or that no end is recorded."""
    failure_class: str | None
    reason: str | None
    message: str | None = None
    fix: str | None = None
    node: str | None = None
    start: datetime | None = None
    seconds: float | None = None
    queued: float | None = None
    """Seconds of waiting for quota."""
    provisioning: float | None = None
    """Seconds of waiting for nodes and images."""
    start_step: int | None = None
    end_step: int | None = None
    lost_steps: int | None = None
    """Steps that the next attempt had to repeat."""


class Attempts(ResultPart):
    """The attempts in the order of their stages and numbers."""

    shown: Sequence[AttemptReport]
    total: int
    """Number of all attempts, as far as it is known."""
    preemptions: int
    infrastructure: int
    user: int


class CheckpointReport(ResultPart):
    """A saved checkpoint."""

    step: int
    uri: str | None
    metrics: Mapping[str, str]
    tags: Sequence[str]


class ExportReport(ResultPart):
    """An exported folder, or a copy of one at a destination."""

    artifact: Artifact
    matches: bool | None
    """Whether the manifest still has the digest of the record; None if it was not read."""
    files: Sequence[ManifestFile]
    left_out: int
    """Number of files that are not shown."""


class Files(ResultPart):
    """What a job has left."""

    exports: Sequence[ExportReport]
    checkpoints: Sequence[CheckpointReport]


class Configuration(ResultPart):
    """The settings as they were resolved."""

    settings: Sequence[tuple[str, str]]
    """Path in the spec or the status, and value."""
    left_out: int
    spec: str
    """The spec as the user wrote it, as JSON; cut if it is long, empty if it is unknown."""


class Report(ResultPart):
    """Everything that the records of one run show."""

    job: ComparedJob
    """What comparisons show of it, too."""
    written: datetime
    """When the records were read."""
    uid: str | None = None
    labels: Mapping[str, str]
    live: bool = False
    """Whether the FineTuneJob existed."""
    summary: str | None = None
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    slice: str | None = None
    """TPU slice, its topology and capacity."""
    steps: int | None = None
    total_steps: int | None = None
    waiting: Waiting | None = None
    failure: FailureReport | None = None
    stages: Sequence[StageReport] = ()
    usage: TimeAndCost | None = None
    loss: MetricCurve | None = None
    curves: Sequence[MetricCurve] = ()
    data: DataSummary | None = None
    evaluation: EvaluationReport | None = None
    answers: Answers | None = None
    attempts: Attempts | None = None
    configuration: Configuration | None = None
    files: Files | None = None
    missing: Sequence[tuple[str, str]] = ()
    """Parts that the report does not have, and why."""
    unreadable: Sequence[str] = ()
    """A sentence for each record, or part of one, that is unreadable."""


def bounded[T](value: T, *, text: int = 1024, items: int = 32) -> T:
    """Returns a record, list or text with at most ``text`` characters in each text and ``items`` entries in each list.

    A text that is cut ends in ``…``; integers are limited to 63 bits.
    """
    found: Any = value
    match found:
        case str():
            found = found if len(found) <= text else f"{found[: text - 1]}…"
        case bool():
            pass
        case int():
            found = max(-_MOST, min(found, _MOST))
        case BaseModel():
            fields = {name: bounded(each, text=text, items=items) for name, each in found}
            found = found.model_copy(update=fields)
        case Mapping():
            some = list(found.items())[:items]
            found = {bounded(key, text=text): bounded(each, text=text, items=items) for key, each in some}
        case list() | tuple():
            found = type(found)([bounded(each, text=text, items=items) for each in found[:items]])
    return found  # type: ignore[no-any-return]
