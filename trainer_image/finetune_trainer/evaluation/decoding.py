"""MaxText's KV cache for a model that was loaded to be trained, adapter included.

MaxText's own way, MaxEngine, wants JetStream (not installable beside it) or stubs of it, takes one prompt at a time and
makes a second model. Here its cache modules are hung into the loaded model, whose prefill and autoregressive modes then
run over a whole batch.
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

from finetune_trainer.sharding import ROW_AXES

_CACHE = "KVCache_0"


def sized(config: Any, *, rows: int, prompt: int, total: int) -> Any:
    """MaxText's configuration for a cache of ``rows`` prompts of at most ``prompt`` tokens, ``total`` with the answer.
    The cache is spread over the devices by rows: MaxText would keep all of it on each."""
    changed = config._pydantic_config.model_copy(  # noqa: SLF001 - what it wraps is read-only elsewhere
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
    """The most tokens, prompt and answer, for which MaxText's cache computes what the model does, however large memory
    is. 0 for attention that keeps another kind of cache. A sliding window ends it: when it decodes, MaxText measures
    the window from the end of the cache, empty places included, not from the token that asks. ``rows``: any number
    that divides among the devices."""
    smallest = sized(config, rows=rows, prompt=1, total=2)
    with logical_axis_rules(smallest.logical_axis_rules):
        return _reach(_twin(smallest, mesh), config)


def with_cache(model: Any, config: Any, mesh: Mesh) -> Any | None:
    """The model, its parameters shared, with empty caches (shapes only) of the sizes that ``config`` says. None where
    they are beyond ``cache_reach``."""
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
    """Modules of the same model as MaxText makes it to decode, by path; shapes only."""
    create = model_creation_utils.get_nnx_create_model_fn(config, mesh, model_mode=MODEL_MODE_AUTOREGRESSIVE)
    return dict(nnx.iter_modules(nnx.eval_shape(create)))


def _reach(twin: dict[Any, Any], config: Any) -> float:
    caches = [getattr(other, _CACHE) for other in twin.values() if hasattr(other, _CACHE)]
    if not caches or None in caches:
        return 0.0
    kinds = [getattr(other, "attention_type", None) for other in twin.values()]
    return float(config.sliding_window_size) if AttentionType.LOCAL_SLIDING in kinds else math.inf


def empty_cache(cache: Any) -> Any:
    """The cache's state, all zeros."""
    return jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), cache)
