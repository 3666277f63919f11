"""What to hand over: ``spec.export``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import ApiModel, Flag, HubRepo, SecretKeyRef, distinct
from finetune_operator.api.method import Precision
from finetune_operator.api.rules import exactly_one
from finetune_operator.api.uris import StorageUri


class ExportFormat(StrEnum):
    """What the exported folder holds."""

    HUGGING_FACE = "HuggingFace"
    ORBAX_PARAMS = "OrbaxParams"


class ExportContent(StrEnum):
    """For LoRA: the merged model, the adapter, or both."""

    MERGED = "Merged"
    ADAPTER = "Adapter"
    BOTH = "Both"


class ExportCheckpoint(StrEnum):
    """Which checkpoint is exported."""

    BEST = "Best"
    LAST = "Last"


class OnGateFailure(StrEnum):
    """What happens when a gate is not met."""

    SKIP = "Skip"
    EXPORT = "Export"


class HubDestination(ApiModel):
    """A repository on the Hugging Face Hub to push to."""

    repo: HubRepo
    """Repository; made when it does not exist."""
    private: Flag | None = None
    """Make it private. Default: true."""
    token_secret_ref: SecretKeyRef | None = None
    """A token that may write. Default: spec.huggingFaceTokenSecretRef."""


class Destination(ApiModel):
    """A place to copy the exported model to; exactly one of uri and huggingFaceHub. Preflight tries whether Export may
    write there."""

    rules: ClassVar = (exactly_one("uri", "huggingFaceHub"),)

    uri: StorageUri | None = None
    """A folder in object storage."""
    hugging_face_hub: HubDestination | None = None
    """A repository on the Hugging Face Hub."""


class Serving(ApiModel):
    """Manifests that serve the exported model with vLLM on GKE, for TPU and for GPU, written into its folder. They read
    it from the first destination with a uri, or from the run folder."""

    enabled: Flag | None = None
    """Write them. Default: false."""


class Export(ApiModel):
    """What to hand over. The run folder always holds the export; destinations are copies."""

    formats: Annotated[tuple[ExportFormat, ...], Field(min_length=1, max_length=2), *distinct()] | None = None
    """HuggingFace (config, safetensors, tokenizer) or OrbaxParams (unscanned, for inference).
    Default: HuggingFace."""
    content: ExportContent | None = None
    """For LoRA: Merged, Adapter or Both. Default: Merged."""
    dtype: Precision | None = None
    """Precision of the exported weights. Default: BF16."""
    checkpoint: ExportCheckpoint | None = None
    """Best or Last. Default: Best where training measures which is best (see checkpointing.keep.best), else Last."""
    on_gate_failure: OnGateFailure | None = None
    """Skip: the job fails with GateNotMet. Export: it succeeds with GatePassed=False. Default: Skip."""
    destinations: Annotated[tuple[Destination, ...], Field(min_length=1, max_length=8)] | None = None
    """Copies beside the run folder's own."""
    serving: Serving | None = None
    """Manifests that serve the model."""
