"""Defaults that a profile sets for jobs, and constraints on them."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import (
    ApiModel,
    EngineKey,
    NonNegativeNumber,
    Number,
    PositiveNumber,
    distinct,
    list_map,
)
from finetune_operator.api.evaluation import Evaluation
from finetune_operator.api.export import Export
from finetune_operator.api.method import Hyperparameters
from finetune_operator.api.placement import Resources
from finetune_operator.api.policies import Checkpointing, HangPolicy, Preflight, Recovery
from finetune_operator.api.rules import ValidationRule

FieldPath = Annotated[
    str, Field(pattern=r"^[a-z][A-Za-z0-9]*(\.[a-z][A-Za-z0-9]*)*$", min_length=1, max_length=128)
]
"""Path of a field in a job's spec, without the leading ``spec``."""
SourcePattern = Annotated[
    str, Field(pattern=r"^((gs|file)://|hf://(models|datasets|benchmarks)/).+", max_length=1024)
]
TargetPattern = Annotated[str, Field(pattern=r"^(gs|file|hf)://.+", max_length=1024)]


class ConstraintMode(StrEnum):
    """What applies to what the profile does not list."""

    STRICT = "Strict"
    """Unlisted namespaces, models, repositories and places to read or write are refused."""
    OPEN = "Open"
    """They are allowed, except the folders of other namespaces, the cache, and file:// where the storage is not
    file://."""


class AllowedModels(ApiModel):
    """Models that may be fine-tuned."""

    allow: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
            Field(min_length=1, max_length=128),
        ]
        | None
    ) = None
    """Repositories or URIs; * matches any characters. A repository listed here needs no entry in constraints.uris.read.
    Default: every model that constraints.uris.read allows."""


class ProfileDefaults(ApiModel):
    """Values for fields that a job leaves out. A list of the job replaces the default; a set member of a union removes
    the others."""

    hyperparameters: Hyperparameters | None = None
    """Default values for spec.hyperparameters."""
    resources: Resources | None = None
    """Default values for spec.resources."""
    checkpointing: Checkpointing | None = None
    """Default values for spec.checkpointing."""
    recovery: Recovery | None = None
    """Default values for spec.recovery."""
    hang_policy: HangPolicy | None = None
    """Default values for spec.hangPolicy."""
    preflight: Preflight | None = None
    """Default values for spec.preflight."""
    evaluation: Evaluation | None = None
    """Default values for spec.evaluation."""
    export: Export | None = None
    """Default values for spec.export."""


class Limit(ApiModel):
    """A range for a number of the job, checked on the resolved value."""

    rules: ClassVar = (
        ValidationRule(
            cel="has(self.min) || has(self.max)",
            message="a limit without min and max limits nothing: set one",
            holds=lambda self: self.min is not None or self.max is not None,
        ),
    )

    path: FieldPath
    """Path of the field, for example hyperparameters.epochs."""
    min: Number | None = None
    """Smallest allowed value, inclusive. Default: no limit."""
    max: Number | None = None
    """Largest allowed value, inclusive. Default: no limit."""


class AllowedOverrides(ApiModel):
    """Settings that jobs may set in engineOverrides."""

    allow: Annotated[tuple[EngineKey, ...], Field(max_length=256), distinct()] | None = None
    """Keys of the class Allowed in docs/reference/engine-overrides.md. Default: all of that class; an empty list: none.
    No profile can allow a key of another class."""


class AllowedUris(ApiModel):
    """Places beyond the namespace's own folders; * matches any characters."""

    read: Annotated[tuple[SourcePattern, ...], Field(max_length=64)] | None = None
    """What jobs may read beyond <artifacts>/<namespace>/: gs://bucket/*, and of the Hugging Face Hub hf://models/acme/*
    (including tokenizers), hf://datasets/acme/* and hf://benchmarks/gsm8k (a task of lm-evaluation-harness with the
    dataset that it reads). An entry opens a part of the profile's own artifacts only if it names that folder before its
    first *, <artifacts>/<namespace>/…, and of its cache only below that. Default: nothing in mode Strict, everything
    else in mode Open."""
    write: Annotated[tuple[TargetPattern, ...], Field(max_length=64)] | None = None
    """Where exports may go beyond <artifacts>/<namespace>/exports/; hf://acme/* matches repositories of the Hugging
    Face Hub. An entry opens a part of the profile's own artifacts only if it names that folder before its first *,
    <artifacts>/<namespace>/<folder>/…. Run folders of other namespaces that jobs may resume are listed here, too.
    Default: nothing in mode Strict, everything else in mode Open."""


class Constraints(ApiModel):
    """Limits on what jobs may use and change."""

    mode: ConstraintMode | None = None
    """What applies to what the profile does not list. Default: Strict."""
    max_chip_hours: PositiveNumber | None = None
    """Most TPU chip hours per job, as estimated and as used. Default: no limit."""
    chip_hours_per_month: NonNegativeNumber | None = None
    """Most TPU chip hours that the jobs of one namespace may use under this profile in a calendar month (UTC). When
    they are used up, stages on TPU save and stop, and none starts until the next month begins or the limit is raised.
    The present limit also applies to jobs that were admitted before. Needs the operator's ledger. Default: no limit."""
    limits: Annotated[tuple[Limit, ...], Field(max_length=64), list_map("path")] | None = None
    """Ranges for numbers of the job. Default: none."""
    locked: Annotated[tuple[FieldPath, ...], Field(max_length=64), distinct()] | None = None
    """Fields that only the profile sets: a job that sets one to another value is refused. Default: none."""
    engine_overrides: AllowedOverrides | None = None
    """Settings that jobs may set in engineOverrides."""
    uris: AllowedUris | None = None
    """Places to read from and write to."""
