"""Model to fine-tune: ``spec.model``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import ApiModel, HubModelRef, NonNegative
from finetune_operator.api.rules import ValidationRule, exactly_one
from finetune_operator.api.uris import StorageUri


class SourceCheckpoint(StrEnum):
    """Checkpoint of another job to start from."""

    BEST = "Best"
    """The best by its checkpointing.bestBy."""
    LAST = "Last"
    """The one after its last step."""
    STEP = "Step"
    """The one at the given step."""


class TokenizerSource(ApiModel):
    """Source of a tokenizer that is not stored with the model; exactly one of huggingFace and uri."""

    rules: ClassVar = (exactly_one("huggingFace", "uri"),)

    hugging_face: HubModelRef | None = None
    """A repository on the Hugging Face Hub."""
    uri: StorageUri | None = None
    """Folder in Hugging Face format."""


class OrbaxModel(ApiModel):
    """A checkpoint that MaxText can read unchanged, with stacked layers (scan_layers)."""

    rules: ClassVar = (
        ValidationRule(
            cel="self.uri.endsWith('/items')",
            message="uri names the items folder of a checkpoint: it ends in /items",
            holds=lambda self: self.uri.endswith("/items"),
        ),
    )

    uri: StorageUri
    """The checkpoint's items folder, for example gs://bucket/run/checkpoints/0/items."""


class JobModel(ApiModel):
    """The model that another FineTuneJob in the same namespace has exported; this job waits until that job has
    succeeded."""

    rules: ClassVar = (
        ValidationRule(
            cel="has(self.step) == (has(self.checkpoint) && self.checkpoint == 'Step')",
            message="step and checkpoint: Step belong together: set both, or remove step",
            holds=lambda self: (self.step is not None) == (self.checkpoint == SourceCheckpoint.STEP),
        ),
    )

    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=28)]
    """Name of the other FineTuneJob."""
    checkpoint: SourceCheckpoint | None = None
    """Checkpoint to start from, which must be the exported one. Default: the exported one."""
    step: NonNegative | None = None
    """Step of the checkpoint, with checkpoint: Step."""


class Model(ApiModel):
    """Model to fine-tune, from exactly one source."""

    rules: ClassVar = (
        exactly_one("huggingFace", "uri", "orbax", "fromJob"),
        ValidationRule(
            cel="!has(self.orbax) || (has(self.maxtextModel) && has(self.tokenizer))",
            message="orbax needs maxtextModel and tokenizer: a checkpoint contains neither",
            holds=lambda self: (
                self.orbax is None or (self.maxtext_model is not None and self.tokenizer is not None)
            ),
        ),
    )

    hugging_face: HubModelRef | None = None
    """A repository on the Hugging Face Hub."""
    uri: StorageUri | None = None
    """Folder in Hugging Face format (config.json, safetensors, tokenizer); file:// on a local cluster only."""
    orbax: OrbaxModel | None = None
    """A MaxText checkpoint; needs maxtextModel, and a tokenizer stored with the model's config.json."""
    from_job: JobModel | None = None
    """Result of another job; LoRA adapters are merged."""
    maxtext_model: Annotated[str, Field(pattern=r"^[-._a-z0-9]+$", min_length=1, max_length=64)] | None = None
    """MaxText's name of a model of the family, checked against config.json, which decides. Default: any."""
    tokenizer: TokenizerSource | None = None
    """Source of the tokenizer. Default: the model's own folder."""
