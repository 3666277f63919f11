"""Writes a model folder in Hugging Face format: sharded weights and the source's other files, readable by all users."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from finetune_trainer.checkpoints import shards
from finetune_trainer.checkpoints.declared_tokens import declared
from finetune_trainer.checkpoints.model_files import LICENCES
from finetune_trainer.checkpoints.shards import Slot
from finetune_trainer.checkpoints.tensors import LoraAdapter
from finetune_trainer.checkpoints.weights import Weights, read_tensor
from finetune_trainer.families import ModelPlan
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter

#: Name of a dtype in the API -> numpy's dtype, its name in config.json, its name in safetensors.
DTYPES: Mapping[str, tuple[np.dtype, str, str]] = {
    "BF16": (np.dtype(ml_dtypes.bfloat16), "bfloat16", "BF16"),
    "FP32": (np.dtype(np.float32), "float32", "F32"),
}
MAX_SHARD_BYTES = 4 * 1024**3
_METADATA = {"format": "pt"}
#: Regular expression for modules of the vision part. PEFT matches it against full module names.
_VISION = r".*(vision_tower|multi_modal_projector).*"
#: Files copied unchanged from the tokenizer's folder. ``_MODEL_FILES`` are those copied from the source.
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    "additional_chat_templates/*.jinja",
)  # fmt: skip
_MODEL_FILES = ("preprocessor_config.json", "processor_config.json", *LICENCES)
_CONFIG, _GENERATION = "config.json", "generation_config.json"


def write_weights(
    out: Path,
    tensors: Iterable[tuple[str, np.ndarray]],
    weights: Weights,
    plan: ModelPlan,
    dtype: str,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: StageProgressReporter = SILENT,
) -> None:
    """Writes ``tensors`` under the source's names, followed by the source's foreign tensors unchanged.

    Holds one tensor in memory at a time.
    """
    target, _, name_of_dtype = DTYPES[dtype]
    slots = [
        Slot(name=weights.text[name].name, dtype=name_of_dtype, shape=shape)
        for name, shape in plan.tensors().items()
    ] + [Slot(name=name, dtype=tensor.dtype, shape=tensor.shape) for name, tensor in weights.foreign.items()]

    def values() -> Iterator[tuple[str, np.ndarray]]:
        for name, array in tensors:
            yield weights.text[name].name, array.astype(target)
        for name, tensor in weights.foreign.items():
            yield name, read_tensor(tensor)

    shards.write(out, slots, values(), max_shard_bytes=max_shard_bytes, progress=progress)


def write_config(out: Path, source: Path, dtype: str) -> None:
    """Writes the source's config.json with the exported dtype and without references to code that is not exported."""
    config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
    config.pop("auto_map", None)
    _, named, _ = DTYPES[dtype]
    if "torch_dtype" not in config:
        config["dtype"] = named
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            part |= {key: named for key in ("torch_dtype", "dtype") if key in part}
    write_json(out / _CONFIG, config)


def write_generation_config(out: Path, source: Path, stops: Sequence[int]) -> None:
    """Writes the source's generation_config.json, unchanged if it stops at all of ``stops``, else with these ids.

    If the source has none that is a JSON object, it is derived from config.json.
    """
    files = declared(source)
    content, file = json_object(source / _GENERATION), _GENERATION
    if content is None:
        file = _CONFIG
        content = {
            f"{name}_token_id": ids[0] if len(ids) == 1 else list(ids)
            for name, ids in files.get(file, {}).items()
            if ids
        }
    if not set(stops) <= set(files.get(file, {}).get("eos", ())):
        content["eos_token_id"] = stops[0] if len(stops) == 1 else list(stops)
    elif file == _GENERATION:
        shutil.copyfile(source / file, out / file)
        return
    write_json(out / _GENERATION, content)


def json_object(path: Path) -> dict[str, Any] | None:
    """The file's JSON object; None if it has none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def copy_files(out: Path, source: Path, tokenizer: Path) -> None:
    """Copies tokenizer, chat template and license unchanged."""
    for folder, names in ((source, _files(source, _MODEL_FILES)), (tokenizer, tokenizer_files(tokenizer))):
        for name in names:
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, out / name)


def tokenizer_files(folder: Path) -> list[str]:
    """Returns the names of the tokenizer's files in a folder, chat templates included."""
    return _files(folder, _TOKENIZER_FILES)


def _files(folder: Path, patterns: Sequence[str]) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    ]


def write_adapter(out: Path, lora: LoraAdapter, base_model: str, weights: Weights, dtype: str) -> None:
    """Writes the adapter in PEFT's layout. ``base_model`` is the base's hub name or URI where the adapter is used."""
    target, _, _ = DTYPES[dtype]
    tensors: dict[str, np.ndarray] = {}
    for name, (a, b) in lora.pairs.items():
        module = weights.text[name].name.removesuffix(".weight")
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(target)
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(target)
    save_file(tensors, out / "adapter_model.safetensors", metadata=_METADATA)
    write_json(
        out / "adapter_config.json",
        {
            "base_model_name_or_path": base_model,
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "use_rslora": False,
            "modules_to_save": None,
            "target_modules": lora.modules,
            # the modules of an image-and-text model's vision part have the same names
            **({"exclude_modules": _VISION} if weights.foreign else {}),
            "inference_mode": True,
        },
    )


def make_readable(out: Path) -> None:
    """Sets mode 0644 on every file: safetensors writes 0600, and the model is served by another user."""
    for path in out.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


def write_json(path: Path, value: object) -> None:
    path.write_text(as_json(value), encoding="utf-8")


def as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
