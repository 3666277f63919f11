"""What the records of one run contain. Tenants write them: a text may contain anything, a mapping lack anything."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainValidator
from pydantic.alias_generators import to_camel

from finetune_contract import (
    DataReport,
    EvaluatedRow,
    EvaluateOutcome,
    ExportOutcome,
    Failure,
    PreflightOutcome,
    Progress,
    Sample,
    Stage,
    StageRequest,
    StageResult,
)
from finetune_operator.objects import Object
from finetune_operator.results.model_manifest import ManifestFile
from finetune_operator.results.training_metrics import TrainingMetrics

#: Number of attempts whose records are read and shown, the newest.
MOST_ATTEMPTS = 200
_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,12})?")

type AttemptPlace = tuple[Stage, int, int]
"""Stage, number of the JobSet, and restart."""


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
class ExportManifest:
    """The list of an exported folder's files."""

    digest: str
    """sha256 of the manifest itself, as it is stored now."""
    files: Sequence[ManifestFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """The records of one run. None, or empty, for a record that does not exist, is unreadable or is not read."""

    name: str
    """Name of the job, or of the run folder if no record names the job."""
    namespace: str | None = None
    run_folder: str | None = None
    live: bool = False
    """Whether the FineTuneJob exists, so that it can be edited."""
    metadata: Object = field(default_factory=dict)
    """The job's metadata: labels, uid, creationTimestamp."""
    spec: Object = field(default_factory=dict)
    """The job's spec as the user wrote it."""
    status: Object = field(default_factory=dict)
    """The job's status, or the operator's last copy of it."""
    request: StageRequest | None = None
    """The resolved request of the stage that measured the model, else of the last stage that started."""
    preflight: PreflightOutcome | None = None
    progress: Progress | None = None
    evaluation: EvaluateOutcome | None = None
    rows: Sequence[EvaluatedRow] = ()
    samples: Sequence[Sample] = ()
    metrics: TrainingMetrics = field(default_factory=TrainingMetrics)
    # Only reports show what follows.
    data: DataReport | None = None
    attempts: Sequence[AttemptRecords] = ()
    """Ordered by stage, number and restart."""
    attempts_left_out: int = 0
    """Number of earlier attempts whose records are not read."""
    export: ExportOutcome | None = None
    manifests: Mapping[str, ExportManifest] = field(default_factory=dict)
    """By name of the exported folder: model, adapter, orbax."""
    unreadable: Sequence[str] = ()
    """A sentence for each record, or part of one, that is unreadable."""

    @property
    def evaluated(self) -> bool:
        """Whether the Evaluate stage has written results."""
        return self.evaluation is not None or bool(self.rows)


class ResultPart(BaseModel):
    """Base of what comparisons and reports show: immutable, camelCase in JSON, open for fields of later releases."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        ser_json_inf_nan="strings",
    )


def lookup(document: object, *path: str) -> object:
    """Returns the value at ``path``; None if there is none, or if a part of the path is not a mapping."""
    for name in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(name)
    return document


def text_of(value: object) -> str | None:
    """Returns a text, at most 1,024 characters of it; None for anything else, and for an empty one."""
    return value[:1024] if isinstance(value, str) and value else None


def text_at(document: object, *path: str) -> str | None:
    """Returns the text at ``path``, as :func:`text_of`."""
    return text_of(lookup(document, *path))


def whole_of(value: object) -> int | None:
    """Returns a non-negative integer; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def whole_at(document: object, *path: str) -> int | None:
    """Returns the non-negative integer at ``path``; None for anything else."""
    return whole_of(lookup(document, *path))


def decimal_at(document: object, *path: str) -> str | None:
    """Returns the decimal at ``path``, which is a text; None for anything else."""
    value = lookup(document, *path)
    return value if isinstance(value, str) and _DECIMAL.fullmatch(value) else None


def instant_at(document: object, *path: str) -> datetime | None:
    """Returns the time at ``path``, as :func:`instant_of`."""
    return instant_of(lookup(document, *path))


def instant_of(value: object) -> datetime | None:
    """Returns a time in UTC; None for anything else, and for a time without zone."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
        return found.astimezone(UTC) if found and found.tzinfo else None
    except (ValueError, OverflowError):
        return None


def list_at(document: object, *path: str) -> Sequence[object]:
    """Returns the items of the list at ``path``; none for anything else."""
    value = lookup(document, *path)
    return value if isinstance(value, list) else ()


Text = Annotated[str | None, PlainValidator(text_of)]
"""A field that is read as :func:`text_at` reads it."""
Whole = Annotated[int | None, PlainValidator(whole_of)]
"""A field that is read as :func:`whole_at` reads it."""
Instant = Annotated[datetime | None, PlainValidator(instant_of)]
"""A field that is read as :func:`instant_at` reads it."""
