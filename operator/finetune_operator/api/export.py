"""Export of the tuned model: ``spec.export``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import ApiModel, Flag, HubRepo, SecretKeyRef, distinct
from finetune_operator.api.method import Precision
from finetune_operator.api.rules import exactly_one
from finetune_operator.api.uris import StorageUri


class ExportFormat(StrEnum):
    """Format of the exported folder."""

    HUGGING_FACE = "HuggingFace"
    """config.json, safetensors and tokenizer."""
    ORBAX_PARAMS = "OrbaxParams"
    """Unscanned Orbax parameters for inference with MaxText."""


class ExportContent(StrEnum):
    """What to export of a LoRA run."""

    MERGED = "Merged"
    """The base model with the adapter merged."""
    ADAPTER = "Adapter"
    """The adapter alone."""
    BOTH = "Both"
    """The merged model and the adapter."""


class ExportCheckpoint(StrEnum):
    """Checkpoint to export."""

    BEST = "Best"
    """The best by checkpointing.bestBy."""
    LAST = "Last"
    """The one after the last step."""


class OnGateFailure(StrEnum):
    """Consequence of a gate that is not met."""

    SKIP = "Skip"
    """Nothing is exported; the job fails with GateNotMet."""
    EXPORT = "Export"
    """The job succeeds with GatePassed=False."""


class HubDestination(ApiModel):
    """A repository on the Hugging Face Hub to push to."""

    repo: HubRepo
    """Name of the repository, which is created if it does not exist."""
    private: Flag | None = None
    """Whether the repository is private; true refuses an existing public one. Default: true."""
    token_secret_ref: SecretKeyRef | None = None
    """Token with write access to the repository. Default: spec.huggingFaceTokenSecretRef."""


class Destination(ApiModel):
    """A place to copy the exported model to; exactly one of uri and huggingFaceHub. Preflight checks that Export may
    write to it."""

    rules: ClassVar = (exactly_one("uri", "huggingFaceHub"),)

    uri: StorageUri | None = None
    """Folder in object storage to copy to."""
    hugging_face_hub: HubDestination | None = None
    """A repository on the Hugging Face Hub to push to."""


class Serving(ApiModel):
    """Manifests that serve the exported model with vLLM on GKE, for TPU and for GPU, written into its folder. They read
    it from the first destination with a uri, or from the run folder."""

    enabled: Flag | None = None
    """Whether to write the manifests. Default: false."""


class Export(ApiModel):
    """Export of the tuned model. The run folder always holds the export; destinations are copies."""

    formats: Annotated[tuple[ExportFormat, ...], Field(min_length=1, max_length=2), distinct()] | None = None
    """Formats of the exported model. Default: HuggingFace."""
    content: ExportContent | None = None
    """For LoRA: what to export. Default: Merged."""
    dtype: Precision | None = None
    """Precision of the exported weights. Default: BF16."""
    checkpoint: ExportCheckpoint | None = None
    """Checkpoint to evaluate and export. Default: Best where training measures which is best (see
    checkpointing.keep.best), else Last."""
    on_gate_failure: OnGateFailure | None = None
    """Consequence of a gate that is not met. Default: Skip."""
    destinations: Annotated[tuple[Destination, ...], Field(min_length=1, max_length=8)] | None = None
    """Copies in addition to the run folder's. Default: none."""
    serving: Serving | None = None
    """Manifests that serve the exported model."""
