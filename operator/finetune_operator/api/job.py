"""The FineTuneJob that users write."""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from finetune_operator.api.common import (
    API_VERSION,
    ApiModel,
    Flag,
    NonNegative,
    Positive,
    SecretKeyRef,
    Token,
)
from finetune_operator.api.data import Datasets
from finetune_operator.api.evaluation import Evaluation
from finetune_operator.api.export import Export
from finetune_operator.api.meta import ObjectMeta
from finetune_operator.api.method import Hyperparameters, Method
from finetune_operator.api.model import Model
from finetune_operator.api.placement import Resources
from finetune_operator.api.policies import (
    Budget,
    CachePolicy,
    Checkpointing,
    HangPolicy,
    Preflight,
    ProfileRef,
    Profiling,
    Recovery,
    ResumeFrom,
    Retry,
)
from finetune_operator.api.rules import ValidationRule, immutable
from finetune_operator.api.status import FineTuneJobStatus

#: What decides the result and therefore never changes (names as users write them).
IDENTITY_FIELDS = ("profileRef", "resumeFrom", "model", "datasets", "method", "hyperparameters")

MAX_NAME_LENGTH = 28
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAME = re.compile(NAME_PATTERN)

OverrideValue = Annotated[str, Field(max_length=1024)]


class FineTuneJobSpec(ApiModel):
    """What to make. profileRef, resumeFrom, model, datasets, method and hyperparameters cannot be changed."""

    rules: ClassVar = (
        *(immutable(name) for name in IDENTITY_FIELDS),
        ValidationRule(
            cel=("!(has(oldSelf.planOnly) && oldSelf.planOnly) || (has(self.planOnly) && self.planOnly)"),
            message="planOnly cannot be set back: create a job of another name to train",
            holds=None,
        ),
    )

    # --- lifecycle: mutable
    suspend: Flag = False
    """true: save a checkpoint, stop and free the slice; false: go on from the checkpoint."""
    plan_only: Flag = False
    """Plan and check on CPU only; ends in phase Planned. Cannot be set back."""
    retry: Retry | None = None
    """Run a stage again by hand."""
    active_deadline_seconds: Positive | None = None
    """Longest running time over all attempts; goes on counting after a resume. Default: none."""
    pre_running_deadline_seconds: Positive | None = None
    """Longest time from reserved quota to running pods, per kind of capacity; then the next kind is tried, and
    after the last the job fails. Waiting for quota is not limited. Default: 7200."""
    child_ttl_seconds_after_finished: Annotated[
        NonNegative | None, Field(alias="childTTLSecondsAfterFinished")
    ] = None
    """Delete JobSets and pods so long after the end; never the job, never artefacts. Default: keep."""
    budget: Budget | None = None
    """The most that the job may use."""
    cache: CachePolicy | None = None
    """Converted models and prepared data: Use, Refresh (make anew) or Off. Default: Use."""
    hugging_face_token_secret_ref: SecretKeyRef | None = None
    """A token for gated models and datasets, and for pushing."""

    # --- placement and checks: mutable, read when an attempt is created
    resources: Resources | None = None
    """TPU slices to train on."""
    checkpointing: Checkpointing | None = None
    """When to save, and what to keep."""
    recovery: Recovery | None = None
    """How often to start again."""
    hang_policy: HangPolicy | None = None
    """When a silent training is taken for dead."""
    preflight: Preflight | None = None
    """What is checked on CPU before a TPU is claimed."""
    evaluation: Evaluation | None = None
    """What to measure."""
    export: Export | None = None
    """What to hand over."""
    profiling: Profiling | None = None
    """Record a JAX profile."""
    engine_overrides: Annotated[Mapping[Token, OverrideValue], Field(max_length=64)] | None = None
    """MaxText settings by their own names, with values as on its command line. Only those that concern the computation
    alone: docs/reference/engine-overrides.md lists them with their types."""

    # --- identity: immutable
    profile_ref: ProfileRef | None = None
    """The profile to run under. Default: the one marked as default. Immutable."""
    resume_from: ResumeFrom | None = None
    """Go on in another run's folder. Default: start fresh. Immutable."""
    model: Model
    """The model to fine-tune. Immutable."""
    datasets: Datasets
    """What to train and validate on. Immutable."""
    method: Method
    """What the model learns from. Immutable."""
    hyperparameters: Hyperparameters | None = None
    """The numbers of the training. Immutable."""


class FineTuneJob(ApiModel):
    """Fine-tune a language model on TPUs: what to make. The result is a proven model in object storage."""

    rules: ClassVar = (
        ValidationRule(
            cel=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
            message=(
                f"may have at most {MAX_NAME_LENGTH} characters: the names of pods are made from it "
                "and must fit 63"
            ),
            at=("metadata", "name"),
            holds=lambda self: len(self.metadata.name) <= MAX_NAME_LENGTH,
        ),
        ValidationRule(
            cel=f"self.metadata.name.matches('{NAME_PATTERN}')",
            message=(
                "must be lower-case letters, digits and '-', begin with a letter and end with a "
                "letter or digit"
            ),
            at=("metadata", "name"),
            holds=lambda self: _NAME.fullmatch(self.metadata.name) is not None,
        ),
    )

    api_version: Literal["tpu-finetune.dev/v1alpha1"] = API_VERSION
    kind: Literal["FineTuneJob"] = "FineTuneJob"
    metadata: ObjectMeta
    spec: FineTuneJobSpec
    """What to make, and how and where it may run."""
    status: FineTuneJobStatus | None = None
    """What was seen of it; written by the operator alone."""
