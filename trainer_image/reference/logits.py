"""Logits of a Hugging Face folder under transformers and torch, in float32 on CPU.

Run with the reference environment's Python:  python logits.py ROWS.json FOLDER OUT.npz [FOLDER OUT.npz …]
ROWS.json holds lists of token ids; OUT.npz gets one array ``[len(row), vocabulary]`` a row, named row0, row1 …
A folder with adapter_config.json is loaded by PEFT on top of the base model that it names.
"""

import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText


def load(folder: Path) -> Any:
    if (folder / "adapter_config.json").is_file():
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))[
            "base_model_name_or_path"
        ].removeprefix("file://")
        warnings.filterwarnings("error", message="Found missing adapter keys")
        return PeftModel.from_pretrained(load(Path(base)), folder).eval()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    multimodal = config["architectures"][0].endswith("ForConditionalGeneration")
    loader = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    _scale_as_published(model)
    return model


def _scale_as_published(model: Any) -> None:
    """DeepSeek 2's attention, whose scale by yarn's mscale this transformers leaves out (later ones have it)."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if model.config.model_type == "deepseek_v2" and rope.get("rope_type") == "yarn":
        for layer in model.model.layers:
            layer.self_attn.scaling *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1.0) ** 2


def main() -> None:
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(2)
    for folder, out in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        model = load(Path(folder))
        with torch.no_grad():
            arrays = [model(torch.tensor([row])).logits[0].numpy() for row in rows]
        np.savez(out, **{f"row{i}": array for i, array in enumerate(arrays)})


if __name__ == "__main__":
    main()
