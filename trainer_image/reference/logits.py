"""Logits of a Hugging Face folder under transformers and torch, in float32 on CPU.

Run with the reference environment's Python:  python logits.py ROWS.json MODEL OUT.npz [MODEL OUT.npz …]
ROWS.json holds lists of token ids; OUT.npz gets one array ``[len(row), vocabulary]`` a row, named row0, row1 …
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText


def main() -> None:
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(2)
    for model_path, out in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
        multimodal = config["architectures"][0].endswith("ForConditionalGeneration")
        loader = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
        model = loader.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            arrays = [model(torch.tensor([row])).logits[0].numpy() for row in rows]
        np.savez(out, **{f"row{i}": array for i, array in enumerate(arrays)})


if __name__ == "__main__":
    main()
