"""The FineTuneJob object."""

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

#: Fields that decide the result and are therefore immutable (names as users write them).
IDENTITY_FIELDS = ("profileRef", "resumeFrom", "model", "datasets", "method", "hyperparameters")

MAX_NAME_LENGTH = 28
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAME = re.compile(NAME_PATTERN)

OverrideValue = Annotated[str, Field(max_length=1024)]


class FineTuneJobSpec(ApiModel):
    """Desired training run. profileRef, resumeFrom, model, datasets, method and hyperparameters are immutable."""

    rules: ClassVar = (
        *(immutable(name) for name in IDENTITY_FIELDS),
        ValidationRule(
            cel=("!(has(oldSelf.planOnly) && oldSelf.planOnly) || (has(self.planOnly) && self.planOnly)"),
            message="planOnly cannot be set back: create a job of another name to train",
            holds=None,
        ),
        ValidationRule(
            cel="!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)",
            message="cancel cannot be taken back: create a job of another name; its resumeFrom continues this one",
            holds=None,
        ),
    )

    # --- lifecycle: mutable
    suspend: Flag = False
    """true saves a checkpoint, stops the job and frees the slice; false resumes from the checkpoint. Default: false."""
    cancel: Flag = False
    """true saves a checkpoint, stops the job, frees the slice, and ends the job: phase Failed, class User, reason
    Cancelled. It cannot be retried; another job can continue it with resumeFrom. A job that has ended stays as it is.
    true cannot be set back to false. Default: false."""
    plan_only: Flag = False
    """Plans and checks on CPU only; the job ends in phase Planned. true cannot be set back to false. Default: false."""
    retry: Retry | None = None
    """Manual retry of a stage. Default: none."""
    active_deadline_seconds: Positive | None = None
    """Longest running time in seconds over all attempts, including those after a resume. Default: none."""
    pre_running_deadline_seconds: Positive | None = None
    """Longest time in seconds from reserved quota to running pods, for each flavor of the profile; then the next is
    tried, and after the last the job fails. Waiting for quota is not limited. Default: 7200."""
    child_ttl_seconds_after_finished: Annotated[
        NonNegative | None, Field(alias="childTTLSecondsAfterFinished")
    ] = None
    """Seconds after the end at which JobSets and pods are deleted, 0 at once; the job and its artifacts stay. Default:
    keep."""
    budget: Budget | None = None
    """Chip hours and cost that the job may use. Default: none."""
    cache: CachePolicy | None = None
    """Use of the cache of converted models and prepared data. Default: Use."""
    hugging_face_token_secret_ref: SecretKeyRef | None = None
    """Token for gated models and datasets on the Hugging Face Hub, and for pushing. Default: none, so that only public
    repositories can be read."""

    # --- placement and checks: mutable, read when an attempt is created
    resources: Resources | None = None
    """TPU slices to train on."""
    checkpointing: Checkpointing | None = None
    """When checkpoints are saved and which are kept."""
    recovery: Recovery | None = None
    """How often failed attempts are repeated."""
    hang_policy: HangPolicy | None = None
    """When a stage without progress is restarted."""
    preflight: Preflight | None = None
    """Checks on CPU before a TPU is claimed."""
    evaluation: Evaluation | None = None
    """Evaluation during and after training."""
    export: Export | None = None
    """Formats and destinations of the tuned model."""
    profiling: Profiling | None = None
    """JAX profile of a few steps. Default: none."""
    engine_overrides: Annotated[Mapping[Token, OverrideValue], Field(max_length=64)] | None = None
    """MaxText settings by their own names, with values as on its command line. Only settings that concern the
    computation alone are allowed: docs/reference/engine-overrides.md lists them with their types. Default: none."""

    # --- identity: immutable
    profile_ref: ProfileRef | None = None
    """Profile that the job runs under. Immutable. Default: of the profiles that serve the namespace the one marked as
    default, or else the only one."""
    resume_from: ResumeFrom | None = None
    """Run to resume in its own folder. Immutable. Default: a new run."""
    model: Model
    """The model to fine-tune. Immutable."""
    datasets: Datasets
    """Training and validation data. Immutable."""
    method: Method
    """Training objective and adapter. Immutable."""
    hyperparameters: Hyperparameters | None = None
    """Hyperparameters of the training. Immutable."""


class FineTuneJob(ApiModel):
    """Fine-tunes a language model on TPU slices. The result is an evaluated model in object storage."""

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
    """Desired training run, and how and where it may run."""
    status: FineTuneJobStatus | None = None
    """Observed state of the job; written by the operator alone."""
