"""Exports a trained checkpoint to folders in Hugging Face format: the whole model, the LoRA adapter, or both.

LoRA is merged here, in float32: MaxText's merging export silently writes the unchanged base model, and its adapter
export leaves Llama's rotary order and query scale in the adapter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from finetune_trainer.checkpoints import folder, tensors
from finetune_trainer.checkpoints.reading import CheckpointReader
from finetune_trainer.checkpoints.weights import Weights, open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.engine import maxtext
from finetune_trainer.export import card, serving
from finetune_trainer.export.card import CardFacts
from finetune_trainer.export.marker import UploadOwner
from finetune_trainer.export.publish import (
    MANIFEST,
    Content,
    Published,
    folder_names,
    publish,
    write_manifest,
)
from finetune_trainer.families import ModelPlan
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter
from finetune_trainer.storage import StorageClient, engine_path

__all__ = [
    "MANIFEST",
    "CardFacts",
    "Content",
    "ExportInputs",
    "LoraConfig",
    "Published",
    "UploadOwner",
    "build",
    "publish",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Rank and alpha of the LoRA adapter that was trained."""

    rank: int
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportInputs:
    """What an export reads and which formats it writes."""

    source: Path
    """Folder of the base model."""
    tokenizer: Path
    """Folder of the tokenizer, usually the same as ``source``."""
    weights: Weights
    plan: ModelPlan
    params: str
    """The checkpoint's ``…/<step>/model_params``, or a converted model's ``…/0/items``."""
    lora: LoraConfig | None
    """None after full fine-tuning, for which ``content`` must be Merged and selects the tuned model."""
    content: Content
    dtype: Literal["BF16", "FP32"]
    facts: CardFacts
    stops: Mapping[int, str] = field(default_factory=dict)
    """Tokens that end an answer, text by id: those of the base model and those that training added."""
    orbax: bool = False
    """Whether to write the model in MaxText's format too. Not valid with ``content`` Adapter."""
    served: serving.ServedModel | None = None
    """Serving manifests to write into the model's folder; None for none. Not valid with ``content`` Adapter."""


def build(
    inputs: ExportInputs,
    out: Path,
    scratch: Path,
    store: StorageClient,
    *,
    progress: StageProgressReporter = SILENT,
) -> dict[str, Path]:
    """Writes the requested folders of ``out/model``, ``out/adapter`` and ``out/orbax`` and returns them by name.

    Each folder contains a model card and a manifest. ``engine.prepare(plan)`` must be called first. Holds a few tensors
    in memory at a time, and the whole adapter.
    """
    wanted = folder_names(inputs.content, orbax=False)
    if inputs.lora is None and wanted != ("model",):
        raise ValueError("full fine-tuning has no adapter")
    checkpoint = CheckpointReader(inputs.params)
    config = maxtext.configure(
        inputs.plan, weight_dtype="float32", run_name="export", base_output_directory=str(scratch)
    )
    lora = None
    if inputs.lora is not None:
        lora = tensors.adapter(
            checkpoint, inputs.plan, config, rank=inputs.lora.rank, alpha=inputs.lora.alpha
        )
    folders = {name: out / name for name in wanted}
    licence = card.licence_of(inputs.source)
    for name, path in folders.items():
        path.mkdir(parents=True)
        if name == "model":
            found = (
                tensors.full(checkpoint, inputs.plan, config, scratch)
                if lora is None
                else tensors.merged(inputs.weights, lora)
            )
            folder.write_weights(path, found, inputs.weights, inputs.plan, inputs.dtype, progress=progress)
            folder.write_config(path, inputs.source, inputs.dtype)
            if inputs.served is not None:
                serving.write(path, inputs.served)
        else:
            assert lora is not None
            folder.write_adapter(path, lora, inputs.facts.base_model, inputs.weights, inputs.dtype)
        folder.copy_files(path, inputs.source, inputs.tokenizer)
        folder.write_generation_config(path, inputs.source, list(inputs.stops))
        rank = lora.rank if lora is not None and name == "adapter" else None
        text = card.render(inputs.facts, licence=licence, rank=rank, dtype=inputs.dtype, stops=inputs.stops)
        (path / "README.md").write_text(text, encoding="utf-8")
        folder.make_readable(path)
        progress.begin(f"computing the checksums of the {name}")
        write_manifest(path, "HuggingFace" if name == "model" else "Adapter")
    if inputs.orbax:
        folders["orbax"] = _orbax(folders["model"], inputs, out / "orbax", scratch, store, progress)
    return folders


def _orbax(  # noqa: PLR0917
    model: Path,
    inputs: ExportInputs,
    out: Path,
    scratch: Path,
    store: StorageClient,
    progress: StageProgressReporter,
) -> Path:
    """Writes an exported model in MaxText's format to the new folder ``out``, with card and manifest; returns ``out``.

    ``model`` is the exported folder in Hugging Face format, whose weights are converted again. ``out/items`` is a
    ``load_parameters_path`` for ``scan_layers=False``. ``scratch`` must be on the file system of ``out``.
    """
    converted = streaming.convert(
        open_weights(model, inputs.plan, where=str(model)),
        inputs.plan,
        f"file://{scratch}/orbax",
        store=store,
        scanned=False,
        dtype=folder.DTYPES[inputs.dtype][0],
        progress=progress,
    )
    out.mkdir(parents=True)
    Path(engine_path(converted.items)).rename(out / "items")
    text = card.render_orbax(inputs.facts, dtype=inputs.dtype, settings=inputs.plan.arguments())
    (out / "README.md").write_text(text, encoding="utf-8")
    folder.make_readable(out)
    write_manifest(out, "OrbaxParams")
    return out
