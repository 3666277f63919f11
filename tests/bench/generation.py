"""Answers with a KV cache against whole forward passes: new tokens per second, in pairs, on a tiny Qwen3 on CPU.

Run in the trainer's environment: python -m tests.bench.generation [--runs 3]   Prints a Markdown table of medians.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.engine import maxtext
from finetune_trainer.evaluation.generate import Generator
from finetune_trainer.evaluation.models import LoadedModel, load
from finetune_trainer.evaluation.sampling import Sampling
from finetune_trainer.storage import engine_path, open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.fixed_rows import FixedRowCapacity

ROWS, PROMPT = 8, 64
LENGTHS = (64, 256)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        loaded = tiny(Path(folder))
        print("| new tokens | KV cache, tokens/s | whole passes, tokens/s | ratio |\n|---|---|---|---|")
        for new in LENGTHS:
            ways = {cached: generator(loaded, new, cached=cached) for cached in (True, False)}
            rates: dict[bool, list[float]] = {cached: [] for cached in ways}
            for _ in range(runs):
                for cached, each in ways.items():
                    rates[cached].append(rate(each, new))
            ratio = statistics.median(a / b for a, b in zip(rates[True], rates[False], strict=True))
            cache, whole = (statistics.median(rates[cached]) for cached in (True, False))
            print(f"| {new} | {cache:,.0f} | {whole:,.0f} | {ratio:.1f} |", flush=True)


def tiny(root: Path) -> LoadedModel:
    folder = write_model(root / "hf", TinyModelSpec())
    plan = families.read(folder)
    maxtext.prepare(plan)
    converted = streaming.convert(
        open_weights(folder, plan), plan, f"file://{root}/converted", store=open_store()
    )
    config = maxtext.configure(
        plan, maxtext.SFT, run_name="x", base_output_directory=str(root), hardware="cpu", packing=False,
        load_parameters_path=engine_path(converted.items), dtype="float32", weight_dtype="float32",
        attention="dot_product", per_device_batch_size=ROWS, max_target_length=PROMPT,
    )  # fmt: skip
    return load(config)


def generator(loaded: LoadedModel, new: int, *, cached: bool) -> Generator:
    """Returns a compiled generator whose answers never end early."""
    made = Generator(
        loaded,
        Sampling(max_new_tokens=new),
        end_ids=frozenset(),
        row_capacity=FixedRowCapacity(number=ROWS),
        longest=1024,
        cached=cached,
    )
    rate(made, new)
    return made


def rate(of: Generator, new: int) -> float:
    """Returns the new tokens per second."""
    prompts = np.random.default_rng(0).integers(6, 500, (ROWS, PROMPT)).tolist()
    started = time.perf_counter()
    answers = of.answers(prompts)
    seconds = time.perf_counter() - started
    assert [len(answer) for answer in answers] == [new] * ROWS
    return ROWS * new / seconds


if __name__ == "__main__":
    main()
