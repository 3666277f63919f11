"""Converting a model, proving the conversion and exporting it again: seconds for each GB of bfloat16, and memory.

    python -m tests.bench.conversion [--work FOLDER] [--layers 10 22 47]     in the trainer's environment

Qwen3 models of width 2048 with random weights; 10, 22 and 47 layers have 0.6, 1.2 and 2.5 billion parameters. Each
model is written, converted, proven (4 rows of 128 tokens) and exported in bfloat16 in a process of its own, and then
removed. The disk needs four times the size of a model. Seconds are wall time and, in parentheses, CPU time; the last
row is the slope between the smallest and the largest model. Memory is anonymous and shared memory, without the memory
that the process has before it begins.
"""

import argparse
import gc
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import random_weights
from tests.trainer.host_memory import Model, export, held, peak

_CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "num_attention_heads": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 32000,
}  # fmt: skip
_WORKS = ("convert", "proof", "export")

type Row = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="where the models lie; default: a temporary folder")
    parser.add_argument("--layers", type=int, nargs="+", default=[10, 22, 47])
    options = parser.parse_args()
    print(
        "| parameters | source, GB | convert, s | proof, s | export, s | convert and proof, s for each GB ",
        end="",
    )
    print("| export, s for each GB | most memory, GB |\n|---|---|---|---|---|---|---|---|", flush=True)
    rows: list[Row] = []
    for layers in options.layers:
        with (
            tempfile.TemporaryDirectory(dir=options.work) as folder,
            multiprocessing.get_context("spawn").Pool(1) as alone,
        ):
            rows.append(alone.apply(measured, (Path(folder), layers)))
        _print(rows[-1])
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        size = last["gb"] - first["gb"]
        slopes = {work: (last[work][0] - first[work][0]) / size for work in _WORKS}
        both = f"{slopes['convert'] + slopes['proof']:.1f}"
        print(f"| slope | | | | | {both} | {slopes['export']:.1f} | {last['most'] - first['most']:+.2f} |")


def measured(folder: Path, layers: int) -> Row:
    """Returns the wall time, the CPU time and the peak memory of each operation, in a row."""
    import jax

    from finetune_trainer import families
    from finetune_trainer.checkpoints.weights import open_weights
    from finetune_trainer.conversion import streaming
    from finetune_trainer.engine import maxtext
    from finetune_trainer.process import malloc
    from finetune_trainer.storage import open_store
    from finetune_trainer.verification import conversion_check

    malloc.return_freed_arrays()
    random_weights.main(folder / "model", json.dumps({**_CONFIG, "num_hidden_layers": layers}))
    plan = families.read(folder / "model")
    maxtext.prepare(plan)
    model = Model(folder=folder, weights=open_weights(folder / "model", plan), plan=plan, store=open_store())
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, 500, 128).tolist() for _ in range(4)]
    jax.numpy.zeros(4).block_until_ready()
    gc.collect()
    before, most = held(), dict[str, int]()

    def timed(work: str, run: Callable[[], Any]) -> tuple[float, float]:
        started, cpu = time.perf_counter(), time.process_time()
        with peak(most, work):
            run()
        return time.perf_counter() - started, time.process_time() - cpu

    works = {
        "convert": lambda: streaming.convert(model.weights, plan, f"file://{folder}/converted", store=model.store),
        "proof": lambda: conversion_check.check_conversion(model.weights, model.items, plan, rows, scratch=folder),
        "export": lambda: export(model, "BF16", most),
    }  # fmt: skip
    return {
        "parameters": plan.parameters,
        "gb": sum(path.stat().st_size for path in (folder / "model").glob("*.safetensors")) / 1e9,
        **{name: timed(name, run) for name, run in works.items()},
        "most": (max(most.values()) - before) / 1e9,
    }


def _print(row: Row) -> None:
    each = [f"{row[work][0]:.0f} ({row[work][1]:.0f})" for work in _WORKS]
    both = (row["convert"][0] + row["proof"][0]) / row["gb"]
    cells = [f"{row['parameters'] / 1e9:.2f} billion", f"{row['gb']:.2f}", *each, f"{both:.1f}"]
    cells += [f"{row['export'][0] / row['gb']:.1f}", f"{row['most']:.2f}"]
    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
