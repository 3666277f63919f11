"""Peak host memory of a stage's work on a model of 0.14 billion parameters, as a program of its own:
``python -m tests.trainer.host_memory FOLDER convert|proof|BF16|FP32|orbax|adapter``. The last line is bytes and parameters.
"""

import gc
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

#: Shards of an export are bounded, and so is the slack for them: smaller ones show what grows with the model.
SHARD_BYTES = 64 * 2**20
RANK = 16


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


@contextmanager
def peak() -> Iterator[list[int]]:
    """A list with the most that the process held meanwhile above what it held before."""
    gc.collect()
    before, found, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            found[0] = max(found[0], anonymous() - before)
            time.sleep(0.004)  # memory has no event that could be awaited

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield found
    done.set()
    watcher.join()


def main(folder: Path, work: str) -> None:
    """Makes model and what the work starts from below ``folder``, measures, prints."""
    import jax

    from devcluster.fixtures.tiny_models import Spec, write_model
    from finetune_trainer import conversion, engine, families
    from finetune_trainer.forward import Forward
    from finetune_trainer.storage import open_store
    from finetune_trainer.weights import open_weights

    spec = Spec(
        family="qwen3", layers=8, hidden=1024, heads=16, kv_heads=4, head_dim=64, intermediate=4096, vocab=8000,
        tied=False,
    )  # fmt: skip
    model, store = folder / "model", open_store()
    if not model.exists():
        write_model(model, spec)
    plan = families.read(model)
    engine.prepare(plan)
    weights = open_weights(model, plan)
    parameters = sum(math.prod(shape) for shape in plan.tensors().values())
    jax.numpy.zeros(4).block_until_ready()
    converted = folder / "converted"
    if work == "convert":
        with peak() as most:
            conversion.convert(weights, plan, f"file://{converted}", store=store)
    elif work == "proof":
        with peak() as most:
            forward = Forward(f"file://{converted}/0/items", plan, rows=2, length=6, scratch=folder)
            forward.logits([[5, 7, 9, 20, 33, 44], [6, 8, 10, 12]])
    else:
        most = _export(folder, work, weights, plan, f"file://{converted}/0/items", store)
    print(most[0], parameters)


def _export(folder: Path, work: str, weights: Any, plan: Any, items: str, store: Any) -> list[int]:
    from finetune_trainer import export
    from finetune_trainer.export import CardFacts, ExportInputs, Lora, build

    assert export.folder.write_weights.__kwdefaults__ is not None
    export.folder.write_weights.__kwdefaults__["max_shard_bytes"] = SHARD_BYTES
    facts = CardFacts(
        name="x", base_model="b", base_revision=None, training={}, data={}, evaluation={}, samples=[]
    )
    lora = None
    if work == "adapter":
        items, lora = _adapter(folder, plan), Lora(rank=RANK, alpha=2.0 * RANK)
    out, scratch = folder / f"out-{work}", folder / f"scratch-{work}"
    scratch.mkdir()
    inputs = ExportInputs(
        source=folder / "model", tokenizer=folder / "model", weights=weights, plan=plan, params=items, lora=lora,
        content="Merged", dtype="BF16" if work == "adapter" else "FP32" if work == "orbax" else work, facts=facts,
        orbax=work == "orbax",
    )  # fmt: skip
    with peak() as most:
        build(inputs, out, scratch, store)
    return most


def _adapter(folder: Path, plan: Any) -> str:
    """A trained adapter's checkpoint, with random numbers."""
    import jax.numpy as jnp
    from orbax import checkpoint as ocp

    from finetune_trainer import engine, mapping

    config = engine.configure(
        plan, weight_dtype="float32", run_name="lora", base_output_directory=str(folder)
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
        writer.save(folder / "lora", tree)
    return f"file://{folder}/lora"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
