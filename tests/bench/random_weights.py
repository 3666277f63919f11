"""Writes a model of any size with random bfloat16 weights, with one tensor in memory at a time.

    python -m tests.bench.random_weights FOLDER CONFIG_JSON

The tokenizer is a small one for tests.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from finetune_trainer import families
from finetune_trainer.checkpoints import shards
from finetune_trainer.checkpoints.shards import Slot
from tests.doubles.tiny_models import TinyModelSpec, write_model

_SHARD_BYTES = 2 * 2**30


def main(folder: Path, config: str) -> int:
    """Returns the number of parameters."""
    with tempfile.TemporaryDirectory() as small:
        shutil.copytree(
            write_model(Path(small), TinyModelSpec()), folder, ignore=shutil.ignore_patterns("*.safetensors")
        )
    (folder / "config.json").write_text(config)
    shapes = families.read(folder).tensors()
    slots = [Slot(name=name, dtype="BF16", shape=shape) for name, shape in shapes.items()]
    draw = np.random.default_rng(0)

    def values() -> Iterator[tuple[str, np.ndarray]]:
        for name, shape in shapes.items():
            if len(shape) == 1:
                yield name, np.ones(shape, ml_dtypes.bfloat16)
            else:
                yield name, (draw.standard_normal(shape, np.float32) * 0.02).astype(ml_dtypes.bfloat16)

    shards.write(folder, slots, values(), max_shard_bytes=_SHARD_BYTES)
    return sum(slot.size for slot in slots) // 2


if __name__ == "__main__":
    print(json.dumps({"parameters": main(Path(sys.argv[1]), sys.argv[2])}))
