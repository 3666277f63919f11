"""Converts a Hugging Face folder to a MaxText checkpoint (Orbax, layers scanned, float32), one tensor at a time.

Float32 also for bfloat16 sources: the query scale that Llama and Gemma 2 carry inside their weights would otherwise
round (at head_dim 128 it changed 14.6 % of the weights on a round trip).
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import linen
from maxtext.checkpoint_conversion.utils.utils import param_key_parts_from_path
from maxtext.common.common_types import MODEL_MODE_TRAIN
from maxtext.models import models
from maxtext.utils import maxtext_utils

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.checkpoints import mapping
from finetune_trainer.checkpoints.chunks import chunk_shape
from finetune_trainer.checkpoints.layout import OCDBT, CheckpointLayout
from finetune_trainer.checkpoints.mapping import Parameter
from finetune_trainer.checkpoints.weights import Weights
from finetune_trainer.checkpoints.writing import Index, StreamedArray, save
from finetune_trainer.engine import maxtext
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter
from finetune_trainer.storage import StorageClient, engine_path, join

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionResult:
    """A written checkpoint. ``items`` is the address that MaxText takes as ``load_parameters_path``."""

    items: str
    size_bytes: int
    seconds: float


def convert(
    weights: Weights,
    plan: ModelPlan,
    out: str,
    *,
    store: StorageClient,
    layout: CheckpointLayout = OCDBT,
    scanned: bool = True,
    dtype: np.dtype = _FLOAT32,
    progress: StageProgressReporter = SILENT,
) -> ConversionResult:
    """Writes the checkpoint below ``out`` (``gs://`` or ``file://``, empty or absent) and returns its address.

    ``scanned``: layers stacked, as for training; MaxText's inference needs them separate. Takes ``host_memory.PIECE``
    bytes per parameter of the largest piece. Call ``engine.prepare(plan)`` first.
    """
    started = time.monotonic()
    config = maxtext.configure(
        plan,
        weight_dtype="float32",
        run_name="convert",
        base_output_directory=engine_path(out),
        scan_layers=scanned,
    )
    parameters = {parameter.key: parameter for parameter in mapping.parameters(plan, config)}

    def streamed(path: Any, leaf: Any) -> StreamedArray:
        parameter, shape = parameters[_key(path)], tuple(leaf.value.shape)
        axis = config.param_scan_axis
        chunks = chunk_shape(
            shape, leaf.names, config.logical_axis_rules, single=parameter.stack_axes(len(shape), axis),
            itemsize=dtype.itemsize, least_bytes=layout.least_chunk_bytes, tensor_pieces=layout.tensor_pieces,
        )  # fmt: skip
        slices = partial(_slices, weights, parameter, shape, axis, dtype, progress)
        return StreamedArray(shape=shape, dtype=dtype, chunks=chunks, slices=slices)

    tree = jax.tree_util.tree_map_with_path(streamed, _abstract(config), is_leaf=_is_parameter)
    progress.begin(
        "converting the weights",
        sum(len(parameter.names) for parameter in parameters.values()),
        "tensors",
        total_bytes=sum(array.nbytes for array in jax.tree_util.tree_leaves(tree)),
    )
    state = {"params": tree, "step": 0, "opt_state": {}}
    save(join(out, "0"), state, layout, {"scan_layers": scanned})
    items = join(out, "0", "items")
    size = sum(entry.size for entry in store.entries(items))
    return ConversionResult(items=items, size_bytes=size, seconds=time.monotonic() - started)


def _abstract(config: Any) -> Mapping[str, Any]:
    """The shapes of MaxText's parameters and their logical axes, in MaxText's tree."""
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    model = models.transformer_as_linen(config, mesh, quant=None, model_mode=MODEL_MODE_TRAIN)
    tree: Mapping[str, Any] = maxtext_utils.get_abstract_param(model, config)
    return tree


def _is_parameter(node: Any) -> bool:
    return isinstance(node, linen.LogicallyPartitioned)


def _key(path: Any) -> str:
    return "-".join(param_key_parts_from_path(path))


def _slices(  # noqa: PLR0917
    weights: Weights,
    parameter: Parameter,
    shape: tuple[int, ...],
    axis: int,
    dtype: np.dtype,
    progress: StageProgressReporter,
) -> Iterator[tuple[Index, np.ndarray]]:
    """The tensors of one of MaxText's arrays, each encoded and with its index in the array."""
    stacked = parameter.stack_axes(len(shape), axis)
    part = tuple(size for i, size in enumerate(shape) if i not in stacked)
    for place, name in enumerate(parameter.names):
        tensor = _finite(name, weights.read(name))
        encoded = parameter.encode(tensor, part).astype(dtype, copy=False)
        nbytes = encoded.nbytes
        yield parameter.index(place, shape, axis), encoded
        progress.advance(1, nbytes)


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    """The values, unchanged. Raises ``StageError`` 64 if some are not finite.

    They would survive the round trip unchanged, so the proof would attribute the failure to the conversion.
    """
    bad = int(values.size - np.count_nonzero(np.isfinite(values)))
    if bad:
        raise StageError(
            ExitCode.BAD_REQUEST, "WeightsNotFinite", "some weights are NaN or infinite", where=name,
            actual=f"{bad} of {values.size} values NaN or infinite", expected="finite numbers",
            fix="Save the model again from an earlier checkpoint; its training may have diverged.",
        )  # fmt: skip
    return values
