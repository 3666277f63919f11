"""What a report reads in addition to the records that comparisons read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from finetune_contract import DataReport, ExportOutcome, Failure, Stage, StageResult
from finetune_operator.comparison import RunRecords
from finetune_operator.report.metrics import TrainingMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecords:
    """The records in one attempt's folder. None for one that does not exist or is unreadable."""

    stage: Stage
    number: int
    """Number of the attempt's JobSet."""
    restart: int = 0
    result: StageResult | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file of an export, by its manifest."""

    path: str
    size: int
    """In bytes."""
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """The list of an exported folder's files."""

    digest: str
    """sha256 of the manifest itself, as it is stored now."""
    files: Sequence[ExportedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecords:
    """The records of one run. None, or empty, for a record that does not exist or is unreadable."""

    run: RunRecords
    metrics: TrainingMetrics | None = None
    data: DataReport | None = None
    attempts: Sequence[AttemptRecords] = ()
    """Ordered by stage, number and restart."""
    attempts_left_out: int = 0
    """Number of earlier attempts whose records are not read."""
    export: ExportOutcome | None = None
    manifests: Mapping[str, ExportManifest] = field(default_factory=dict)
    """By name of the exported folder: model, adapter, orbax."""
    unreadable: Sequence[str] = ()
    """A sentence for each of these records, or part of one, that is unreadable."""
