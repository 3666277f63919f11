"""Of a profile: what it sets for a job, and what a job may not exceed or change."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import ApiModel, EngineKey, Number, PositiveNumber, distinct, list_map
from finetune_operator.api.evaluation import Evaluation
from finetune_operator.api.export import Export
from finetune_operator.api.method import Hyperparameters
from finetune_operator.api.placement import Resources
from finetune_operator.api.policies import Checkpointing, HangPolicy, Preflight, Recovery
from finetune_operator.api.rules import ValidationRule

FieldPath = Annotated[
    str, Field(pattern=r"^[a-z][A-Za-z0-9]*(\.[a-z][A-Za-z0-9]*)*$", min_length=1, max_length=128)
]
"""A place in a job's spec, without the leading spec."""
SourcePattern = Annotated[
    str, Field(pattern=r"^((gs|file)://|hf://(models|datasets|benchmarks)/).+", max_length=1024)
]
TargetPattern = Annotated[str, Field(pattern=r"^(gs|file|hf)://.+", max_length=1024)]


class ConstraintMode(StrEnum):
    """What holds where a profile says nothing."""

    STRICT = "Strict"
    OPEN = "Open"


class AllowedModels(ApiModel):
    """Models that may be tuned."""

    allow: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
            Field(min_length=1, max_length=128),
        ]
        | None
    ) = None
    """Repositories or URIs, * stands for any characters. A repository that stands here needs no entry in
    constraints.uris.read. Default: every model that constraints.uris.read allows."""


class ProfileDefaults(ApiModel):
    """Values for what a job leaves out. Lists replace; setting one member of a union drops the others."""

    hyperparameters: Hyperparameters | None = None
    """Defaults of spec.hyperparameters."""
    resources: Resources | None = None
    """Defaults of spec.resources."""
    checkpointing: Checkpointing | None = None
    """Defaults of spec.checkpointing."""
    recovery: Recovery | None = None
    """Defaults of spec.recovery."""
    hang_policy: HangPolicy | None = None
    """Defaults of spec.hangPolicy."""
    preflight: Preflight | None = None
    """Defaults of spec.preflight."""
    evaluation: Evaluation | None = None
    """Defaults of spec.evaluation."""
    export: Export | None = None
    """Defaults of spec.export."""


class Limit(ApiModel):
    """A range for a number of the job, judged on the resolved value."""

    rules: ClassVar = (
        ValidationRule(
            cel="has(self.min) || has(self.max)",
            message="a limit without min and max limits nothing: set one",
            holds=lambda self: self.min is not None or self.max is not None,
        ),
    )

    path: FieldPath
    """The field, for example hyperparameters.epochs."""
    min: Number | None = None
    """Least value."""
    max: Number | None = None
    """Highest value."""


class AllowedOverrides(ApiModel):
    """engineOverrides that jobs may set."""

    allow: Annotated[tuple[EngineKey, ...], Field(max_length=256), *distinct()] | None = None
    """Keys of the class Allowed in docs/reference/engine-overrides.md. Default: all of that class; an empty list: none.
    No profile can allow a key of another class."""


class AllowedUris(ApiModel):
    """Places beyond the namespace's own folders; * stands for any characters."""

    read: Annotated[tuple[SourcePattern, ...], Field(max_length=64)] | None = None
    """What jobs may read beyond <artifacts>/<namespace>/: gs://bucket/*, and of the Hugging Face Hub
    hf://models/acme/* (tokenizers, too), hf://datasets/acme/* and hf://benchmarks/gsm8k (a task of
    lm-evaluation-harness with the dataset that it reads). An entry opens a part of the profile's own artifacts only
    where it names that folder before its first *, <artifacts>/<namespace>/…, and of its cache only below that.
    Default: nothing in mode Strict, everything else in mode Open."""
    write: Annotated[tuple[TargetPattern, ...], Field(max_length=64)] | None = None
    """Where exports may go beyond <artifacts>/<namespace>/exports/; hf://acme/* stands for repositories of the Hugging
    Face Hub. An entry opens a part of the profile's own artifacts only where it names that folder before its first *,
    <artifacts>/<namespace>/<folder>/…. Run folders of other namespaces that jobs may resume stand here, too. Default:
    nothing in mode Strict, everything else in mode Open."""


class Constraints(ApiModel):
    """What jobs may not exceed or change."""

    mode: ConstraintMode | None = None
    """Strict: what the profile does not list is refused: namespaces, models and repositories, places to read and write.
    Open: what it does not list is allowed, but for the folders of other namespaces and the cache, and file:// where the
    storage is none. Default: Strict."""
    max_chip_hours: PositiveNumber | None = None
    """Most chip hours per job, as estimated and as used."""
    limits: Annotated[tuple[Limit, ...], Field(max_length=64), *list_map("path")] | None = None
    """Ranges for numbers."""
    locked: Annotated[tuple[FieldPath, ...], Field(max_length=64), *distinct()] | None = None
    """Fields that only the profile sets: a job that sets one to another value is refused."""
    engine_overrides: AllowedOverrides | None = None
    """engineOverrides that jobs may set."""
    uris: AllowedUris | None = None
    """Places to read from and write to."""
