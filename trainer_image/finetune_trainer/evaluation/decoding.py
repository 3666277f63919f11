"""Adds MaxText's KV cache to a model that was loaded for training, including an adapter.

MaxText's own inference engine, MaxEngine, needs JetStream (which cannot be installed beside it) or stubs of it,
processes one prompt at a time and creates a second model. This module instead attaches MaxText's cache modules to the
loaded model, whose prefill and autoregressive modes then process a whole batch.
"""

import math
from typing import Any

import jax
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh
from maxtext.common.common_types import MODEL_MODE_AUTOREGRESSIVE, AttentionType
from maxtext.configs import pyconfig
from maxtext.utils import model_creation_utils

from finetune_trainer.engine.sharding import ROW_AXES

_CACHE = "KVCache_0"


def sized(config: Any, *, rows: int, prompt: int, total: int) -> Any:
    """Returns MaxText's configuration for a cache of ``rows`` prompts.

    Prompts have at most ``prompt`` tokens, prompt and answer together ``total``. The cache's rows are sharded over the
    devices; MaxText would replicate the cache on each device.
    """
    changed = config._pydantic_config.model_copy(  # noqa: SLF001 - the wrapper is read-only
        update={
            "max_prefill_predict_length": prompt,
            "max_target_length": total,
            "micro_batch_size_to_train_on": rows,
            "logical_axis_rules": [
                (name, ROW_AXES if name in ("cache_batch", "cache_batch_prefill") else axes)
                for name, axes in config.logical_axis_rules
            ],
        }
    )
    return pyconfig.HyperParameters(changed)


def max_cache_length(config: Any, mesh: Mesh, *, rows: int) -> float:
    """Returns the largest number of tokens, prompt and answer, for which MaxText's cache gives correct results.

    Memory is not considered. 0 for attention with another kind of cache; the window's size for a model with sliding
    windows: when decoding, MaxText measures the window from the end of the cache, including its empty positions, and
    not from the current token. ``rows`` is any number that divides evenly among the devices.
    """
    smallest = sized(config, rows=rows, prompt=1, total=2)
    with logical_axis_rules(smallest.logical_axis_rules):
        return _reach(_twin(smallest, mesh), config)


def with_cache(model: Any, config: Any, mesh: Mesh) -> Any | None:
    """Returns the model with empty caches (shapes only) of the sizes in ``config``. The parameters are shared.

    None if the sizes exceed ``max_cache_length``.
    """
    twin = _twin(config, mesh)
    if config.max_target_length > _reach(twin, config):
        return None
    caches = {path: getattr(other, _CACHE) for path, other in twin.items() if hasattr(other, _CACHE)}
    decoding = nnx.merge(*nnx.split(model))
    for path, module in nnx.iter_modules(decoding):
        if path in caches:
            setattr(module, _CACHE, nnx.data(caches[path]))
        if hasattr(module, "model_mode"):
            module.model_mode = MODEL_MODE_AUTOREGRESSIVE
    return decoding


def _twin(config: Any, mesh: Mesh) -> dict[Any, Any]:
    """Returns the modules, by path, of the same model as MaxText creates it for decoding; shapes only."""
    create = model_creation_utils.get_nnx_create_model_fn(config, mesh, model_mode=MODEL_MODE_AUTOREGRESSIVE)
    return dict(nnx.iter_modules(nnx.eval_shape(create)))


def _reach(twin: dict[Any, Any], config: Any) -> float:
    caches = [getattr(other, _CACHE) for other in twin.values() if hasattr(other, _CACHE)]
    if not caches or None in caches:
        return 0.0
    kinds = [getattr(other, "attention_type", None) for other in twin.values()]
    return float(config.sliding_window_size) if AttentionType.LOCAL_SLIDING in kinds else math.inf


def empty_cache(cache: Any) -> Any:
    """Returns the cache's state with all values zero."""
    return jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), cache)
