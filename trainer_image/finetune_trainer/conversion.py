"""A Hugging Face folder to a MaxText checkpoint (Orbax, layers scanned, float32).

Float32 also for bfloat16 sources: the query scale that Llama and Gemma 2 carry inside their weights would otherwise
round (at head_dim 128 it changed 14.6 % of the weights on a round trip).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from maxtext.checkpoint_conversion.to_maxtext import get_maxtext_model_info
from maxtext.checkpoint_conversion.utils.utils import save_weights_to_checkpoint

from finetune_contract.exit_codes import ExitCode
from finetune_trainer import engine, mapping
from finetune_trainer.checkpoint_layout import OCDBT, CheckpointLayout
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import Store, join, local_path
from finetune_trainer.weights import Weights

#: MaxText's converter would put the arrays on that many simulated devices, so that they are stored in as many pieces.
#: Orbax cuts an array above 2 GiB into chunks by itself, and a host of the slice then reads those that it needs.
_AS_THEY_ARE = 1
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """``items`` is what MaxText takes as ``load_parameters_path``."""

    items: str
    size_bytes: int
    seconds: float


def convert(
    weights: Weights,
    plan: ModelPlan,
    out: str,
    *,
    store: Store,
    layout: CheckpointLayout = OCDBT,
    scanned: bool = True,
    dtype: np.dtype = _FLOAT32,
) -> Converted:
    """Writes the checkpoint below ``out`` (``gs://`` or ``file://``, empty or absent) and returns its address.

    ``scanned``: layers stacked, as training wants them; inference in MaxText wants each by itself. Takes
    ``host_memory.CONVERT`` bytes per parameter. ``engine.prepare(plan)`` comes first.
    """
    started = time.monotonic()
    config = engine.configure(
        plan,
        weight_dtype="float32",
        run_name="convert",
        base_output_directory=engine_path(out),
        scan_layers=scanned,
    )
    shapes, tree = get_maxtext_model_info(config)
    arrays: list[np.ndarray | None] = [None] * len(shapes)
    for parameter in mapping.parameters(plan, config):
        position, shape = shapes[parameter.key]
        tensors = [_finite(name, weights.read(name)) for name in parameter.names]
        encoded = parameter.encode(tensors, tuple(shape), config.param_scan_axis)
        arrays[position] = encoded.astype(dtype, copy=False)
    _all_filled(shapes, arrays)
    save_weights_to_checkpoint(
        engine_path(out),
        jax.tree_util.tree_unflatten(tree, arrays),
        _AS_THEY_ARE,
        layout.ocdbt,
        layout.zarr3,
        config=config,
    )
    items = join(out, "0", "items")
    size = sum(entry.size for entry in store.entries(items))
    return Converted(items=items, size_bytes=size, seconds=time.monotonic() - started)


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    """The values. Raises ``StageError`` 64 where some are no numbers: they would come back as they are, so the proof
    would blame the conversion."""
    bad = int(values.size - np.count_nonzero(np.isfinite(values)))
    if bad:
        raise StageError(
            ExitCode.BAD_REQUEST, "WeightsNotFinite", "some weights are no numbers", where=name,
            saw=f"{bad} of {values.size} values NaN or infinite", expected="finite numbers",
            fix="Save the model again from a sound checkpoint; its training may have diverged.",
        )  # fmt: skip
    return values


def engine_path(uri: str) -> str:
    """An address as MaxText and Orbax spell it: local folders as plain paths."""
    local = local_path(uri)
    return uri if local is None else str(local)


def _all_filled(shapes: Mapping[str, Any], arrays: list[np.ndarray | None]) -> None:
    """The tables and the model come from one release of MaxText, so a gap is a fault of ours."""
    empty = [key for key, (position, _) in shapes.items() if arrays[position] is None]
    if empty:
        raise RuntimeError(f"no weights for MaxText parameters {empty[:5]}")


def restore(items: str, plan: ModelPlan, scratch: Path) -> dict[str, np.ndarray]:
    """Every parameter of a MaxText or Tunix checkpoint as float32, by MaxText's dashed key.

    Works for converted checkpoints (``…/0/items``) and for training's ``checkpoints/<step>/model_params``, full or
    LoRA (then keys end in ``_lora_a`` and ``_lora_b``), in either layout: Orbax sees which it is.
    """
    from maxtext.checkpoint_conversion.utils.utils import detect_and_extract_checkpoint, load_orbax_checkpoint

    config = engine.configure(
        plan, weight_dtype="float32", run_name="restore", base_output_directory=str(scratch),
        load_parameters_path=engine_path(items),
    )  # fmt: skip
    state = detect_and_extract_checkpoint(load_orbax_checkpoint(config))
    return {key: np.asarray(value) for key, value in state.items()}
