"""Peak host memory of the CPU stages' operations on a generated model, as a separate program.

Prints a line of JSON: the number of parameters of the model, of its largest piece, of its largest stack and of the
adapter, the memory of the process before it begins, and the peak memory of each operation. Memory is anonymous and
shared memory: all that is not backed by a file.
"""

import argparse
import gc
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

#: Orbax's export is last: its save does not release all of its memory, which the other exports must not include.
EXPORTS = ("BF16", "FP32", "trained", "adapter", "orbax")
RANK = 16
#: Number of chunks of each array of a training checkpoint, as if it were saved by that many chips.
SHARES = 32
#: Replaces the bounds of what is queued or held at once, which are part of the fixed memory: with lower bounds, small
#: models show which memory grows with the model.
LOWERED = 16 * 2**20


def held() -> int:
    """Returns the bytes of this process's memory that no file backs."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return sum(int(status.split(f"{name}:")[1].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


@contextmanager
def peak(into: dict[str, int], work: str) -> Iterator[None]:
    """Records the peak memory of the process during the block as ``into[work]``."""
    gc.collect()
    into[work], done = held(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            into[work] = max(into[work], held())
            time.sleep(0.004)  # there is no event for a change of memory

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    folder: Path
    """Root of all files."""
    weights: Any
    plan: Any
    store: Any

    @property
    def items(self) -> str:
        return f"file://{self.folder}/converted/0/items"


def lower_bounds() -> None:
    from finetune_trainer.checkpoints import folder, unstacking, writing
    from finetune_trainer.verification import forward

    writing._WAITING = LOWERED
    unstacking._SMALL = LOWERED
    forward._IN_MEMORY = LOWERED
    forward.VOCABULARY = 1024
    assert folder.write_weights.__kwdefaults__ is not None
    folder.write_weights.__kwdefaults__["max_shard_bytes"] = 4 * LOWERED


def measured(folder: Path, spec: Any, works: list[str]) -> dict[str, Any]:
    """Runs Convert and its proof always; the other operations start from their results."""
    import jax

    from finetune_trainer import families
    from finetune_trainer.checkpoints.weights import open_weights
    from finetune_trainer.conversion import streaming
    from finetune_trainer.engine import maxtext
    from finetune_trainer.process import malloc
    from finetune_trainer.storage import open_store
    from finetune_trainer.verification import conversion_check
    from tests.doubles.tiny_models import write_model

    malloc.return_freed_arrays()
    folder.mkdir(parents=True)
    write_model(folder / "model", spec)
    plan = families.read(folder / "model")
    maxtext.prepare(plan)
    model = Model(folder=folder, weights=open_weights(folder / "model", plan), plan=plan, store=open_store())
    jax.numpy.zeros(4).block_until_ready()
    gc.collect()
    before, most = held(), dict[str, int]()
    with peak(most, "convert"):
        streaming.convert(model.weights, plan, f"file://{folder}/converted", store=model.store)
    with peak(most, "proof"):
        rows = [[5, 7, 9, 20, 33, 44], [6, 8, 10, 12]]
        conversion_check.check_conversion(model.weights, model.items, plan, rows, scratch=folder)
    for work in works:
        export(model, work, most)
    found = plan.sizes()
    return {
        "parameters": plan.parameters,
        "piece": found.largest_piece,
        "stack": spec.layers * spec.hidden * spec.intermediate,
        "adapter": RANK * found.lora_width,
        "before": before,
        "most": most,
    }


def export(model: Model, work: str, most: dict[str, int]) -> None:
    """Runs one of ``EXPORTS`` and records its peak memory in ``most`` under that name."""
    from finetune_trainer.export import CardFacts, ExportInputs, LoraConfig, build

    facts = CardFacts(
        name="x", base_model="b", base_revision=None, training={}, data={}, evaluation={}, samples=[]
    )
    lora, items = None, model.items
    if work == "adapter":
        items, lora = _adapter(model), LoraConfig(rank=RANK, alpha=2.0 * RANK)
    if work == "trained":
        items = _trained(model)
    out, scratch, source = (model.folder / name for name in (f"out-{work}", f"scratch-{work}", "model"))
    scratch.mkdir()
    inputs = ExportInputs(
        source=source, tokenizer=source, weights=model.weights, plan=model.plan, params=items, lora=lora,
        content="Merged" if lora is None else "Both", dtype="FP32" if work == "FP32" else "BF16", facts=facts,
        orbax=work == "orbax",
    )  # fmt: skip
    with peak(most, work):
        build(inputs, out, scratch, model.store)


def _trained(model: Model) -> str:
    """Writes a checkpoint of full fine-tuning with random numbers. A chunk is one chip's share of every layer."""
    from finetune_trainer.conversion import streaming

    def share(shape: Sequence[int], *_: Any, single: Sequence[int], **__: Any) -> tuple[int, ...]:
        axis = max(
            (axis for axis in range(len(shape)) if axis not in single), key=shape.__getitem__, default=0
        )
        return tuple(-(-size // SHARES) if i == axis else size for i, size in enumerate(shape))

    def values(
        _: Any, parameter: Any, shape: tuple[int, ...], axis: int, dtype: np.dtype, progress: Any
    ) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        chunk = share(shape, single=parameter.stack_axes(len(shape), axis))
        drawn = np.random.default_rng(3).standard_normal(chunk).astype(dtype)
        for corner in np.ndindex(*(-(-size // part) for size, part in zip(shape, chunk, strict=True))):
            index = tuple(
                slice(at * part, min((at + 1) * part, size))
                for at, part, size in zip(corner, chunk, shape, strict=True)
            )
            yield index, drawn[tuple(slice(0, each.stop - each.start) for each in index)]

    out = f"file://{model.folder}/trained"
    with (
        patch("finetune_trainer.conversion.streaming.chunk_shape", share),
        patch("finetune_trainer.conversion.streaming._slices", values),
    ):
        return streaming.convert(model.weights, model.plan, out, store=model.store).items


def _adapter(model: Model) -> str:
    """Writes the checkpoint of a trained adapter with random numbers."""
    import jax.numpy as jnp
    from orbax import checkpoint as ocp

    from finetune_trainer.checkpoints import mapping
    from finetune_trainer.engine import maxtext

    plan = model.plan
    config = maxtext.configure(
        plan, weight_dtype="float32", run_name="lora", base_output_directory=str(model.folder)
    )
    draw, shapes, tree = np.random.default_rng(3), plan.tensors(), {}
    for parameter in mapping.parameters(plan, config):
        if parameter.names[0].split(".")[-2] not in plan.lora_modules:
            continue
        outputs, inputs = shapes[parameter.names[0]]
        layers = (len(parameter.names),) if parameter.stacked else ()
        *path, last = parameter.key.split("-")[1:]
        node: dict[str, Any] = tree
        for part in path:
            node = node.setdefault(part, {})
        for suffix, shape in (("_lora_a", (inputs, *layers, RANK)), ("_lora_b", (RANK, *layers, outputs))):
            node[last + suffix] = {"value": jnp.asarray(draw.standard_normal(shape) * 0.1, jnp.float32)}
    with ocp.StandardCheckpointer() as writer:
        writer.save(model.folder / "lora", tree)
    return f"file://{model.folder}/lora"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where models of these sizes are made; absent or empty")
    parser.add_argument("--layers", type=int, nargs="+", default=[4])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--exports", nargs="*", default=EXPORTS, choices=EXPORTS)
    parser.add_argument("--lower-bounds", action="store_true", help="for small models; see LOWERED")
    options = parser.parse_args()
    from tests.doubles.tiny_models import TinyModelSpec

    if options.lower_bounds:
        lower_bounds()
    for layers in options.layers:
        hidden = options.hidden
        spec = TinyModelSpec(
            family="qwen3", layers=layers, hidden=hidden, heads=hidden // 64, kv_heads=hidden // 256, head_dim=64,
            intermediate=4 * hidden, vocab=options.vocab, tied=False,
        )  # fmt: skip
        folder = options.folder / str(layers)
        print(json.dumps({"layers": layers, **measured(folder, spec, options.exports)}), flush=True)


if __name__ == "__main__":
    main()
