"""Of a profile: what it sets for a job, and what a job may not exceed or change."""

from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import ApiModel, Decimal, EngineKey, PositiveDecimal, distinct, list_map
from finetune_operator.api.evaluation import Evaluation
from finetune_operator.api.export import Export
from finetune_operator.api.method import Hyperparameters
from finetune_operator.api.placement import Resources
from finetune_operator.api.policies import Checkpointing, HangPolicy, Preflight, Recovery
from finetune_operator.api.rules import Rule

FieldPath = Annotated[
    str, Field(pattern=r"^[a-z][A-Za-z0-9]*(\.[a-z][A-Za-z0-9]*)*$", min_length=1, max_length=128)
]
"""A place in a job's spec, without the leading spec."""
UriPattern = Annotated[str, Field(pattern=r"^(gs|file)://.*", max_length=1024)]
TargetPattern = Annotated[str, Field(pattern=r"^(gs|file|hf)://.*", max_length=1024)]


class AllowedModels(ApiModel):
    """Models that may be tuned."""

    allow: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=256)], ...],
            Field(min_length=1, max_length=128),
        ]
        | None
    ) = None
    """Repositories or URIs, * stands for any characters. Default: all."""


class Defaults(ApiModel):
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
        Rule(
            cel="has(self.min) || has(self.max)",
            message="a limit without min and max limits nothing: set one",
            holds=lambda self: self.min is not None or self.max is not None,
        ),
    )

    path: FieldPath
    """The field, for example hyperparameters.epochs."""
    min: Decimal | None = None
    """Least value."""
    max: Decimal | None = None
    """Highest value."""


class AllowedOverrides(ApiModel):
    """engineOverrides that jobs may set."""

    allow: Annotated[tuple[EngineKey, ...], Field(max_length=256), *distinct()] | None = None
    """Keys of the class Allowed in docs/reference/engine-overrides.md. Default: all of that class; an empty list: none.
    No profile can allow a key of another class."""


class AllowedUris(ApiModel):
    """Places beyond the profile's own storage; * stands for any characters."""

    read: Annotated[tuple[UriPattern, ...], Field(max_length=64)] | None = None
    """Where models and datasets may lie. Default: anywhere."""
    write: Annotated[tuple[TargetPattern, ...], Field(max_length=64)] | None = None
    """Where exports may go; hf://acme/* stands for repositories of the Hugging Face Hub. Default: anywhere."""


class Constraints(ApiModel):
    """What jobs may not exceed or change."""

    max_chip_hours: PositiveDecimal | None = None
    """Most chip hours per job, as estimated and as used."""
    limits: Annotated[tuple[Limit, ...], Field(max_length=64), *list_map("path")] | None = None
    """Ranges for numbers."""
    locked: Annotated[tuple[FieldPath, ...], Field(max_length=64), *distinct()] | None = None
    """Fields that only the profile sets: a job that sets one to another value is refused."""
    engine_overrides: AllowedOverrides | None = None
    """engineOverrides that jobs may set."""
    uris: AllowedUris | None = None
    """Places to read from and write to."""
