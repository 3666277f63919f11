"""Merges a PEFT LoRA adapter into its base model, as a folder that conversion can read."""

import json
import re
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from finetune_contract import ExitCode
from finetune_trainer.checkpoints import folder, tensors
from finetune_trainer.checkpoints.weights import Weights
from finetune_trainer.conversion.peft_settings import require_plain
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import StorageClient

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")


def merged_folder(base: Weights, plan: ModelPlan, address: str, scratch: Path, store: StorageClient) -> Path:
    """The merged model's folder (weights in float32) below ``scratch``.

    Raises ``StageError`` 64 or 66 for an adapter that does not exist or does not fit this model.
    """
    source = store.fetch_folder(address, scratch / "adapter", include=("adapter_*",))
    try:
        config = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
        halves = load_file(source / "adapter_model.safetensors")
        rank, alpha = require_plain(config, address)
    except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        raise StageError(
            ExitCode.INPUT_MISSING, "AdapterUnreadable",
            "this is not a LoRA adapter", where=address, actual=str(error)[:200],
            expected="adapter_config.json and adapter_model.safetensors in PEFT's layout", fix="Correct the address.",
        ) from error  # fmt: skip
    names = {tensor.name.removesuffix(".weight"): name for name, tensor in base.text.items()}
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, value in halves.items():
        match = _KEY.fullmatch(key)
        name = names.get(match["module"]) if match else None
        if match is None or name is None:
            raise StageError(
                ExitCode.BAD_REQUEST, "AdapterMismatch",
                "the adapter does not belong to this model", where=address, actual=key,
                expected="modules of the base model", fix="Use the model that the adapter was trained on.",
            )  # fmt: skip
        found.setdefault(name, {})[match["half"]] = value.astype(np.float32)
    shapes = plan.tensors()
    for name, parts in found.items():
        high, low = shapes[name]  # numpy would broadcast a single column over all
        actual = {half: array.shape for half, array in parts.items()}
        if actual != (wanted := {"A": (rank, low), "B": (high, rank)}):
            raise StageError(
                ExitCode.BAD_REQUEST, "AdapterMismatch",
                f"the adapter's matrices for {name} have the wrong shapes", where=address,
                actual=str(actual), expected=f"{wanted}, from the adapter's rank and the model's sizes",
                fix="Use the adapter as it was saved, and the model that it was trained on.",
            )  # fmt: skip
    pairs = {name: (parts["A"], parts["B"]) for name, parts in found.items()}
    out = scratch / "merged"
    out.mkdir()
    adapter = tensors.LoraAdapter(pairs=pairs, rank=rank, alpha=alpha)
    folder.write_weights(out, tensors.merged(base, adapter), base, plan, "FP32")
    folder.write_config(out, base.folder, "FP32")
    return out
