"""Prepares MaxText for one model: adjusts what the pinned release has no setting for, or the wrong default.

One process serves one plan. Nothing here uses a device; importing MaxText takes seconds.
"""

import gc
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import maxtext
import pathwaysutils
from maxtext.configs import pyconfig
from maxtext.inference import kvcache
from maxtext.input_pipeline import multihost_dataloading
from maxtext.layers import attention_mla, embeddings, nnx_decoders

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.families import Llama3Scaling, ModelPlan

CONFIGS = Path(maxtext.__file__).parent / "configs"
BASE = CONFIGS / "base.yml"
SFT = CONFIGS / "post_train" / "sft.yml"

#: MaxText's settings that are the same in every stage and for every model.
_COMMON: dict[str, Any] = {
    "skip_jax_distributed_system": True,  # the stage initializes it, or there is one process
    "enable_goodput_recording": False,  # both would request Google Cloud credentials
    "monitor_goodput": False,
    "scan_layers": True,
    "jax_cache_dir": "",  # JAX_COMPILATION_CACHE_DIR decides, not a folder in the home directory
}


def prepare(plan: ModelPlan) -> None:
    """Adapts MaxText to ``plan``.

    Call it once per process, before the first configuration is made and before a device is used.
    """
    # As MaxText's own programs do. JAX connects to Pathways' proxy if JAX_PLATFORMS names it; else nothing changes.
    pathwaysutils.initialize()
    # It ends every process on the machine that resembles an orphaned worker; ours has none, others' are not ours.
    multihost_dataloading._cleanup_orphaned_multiprocessing_processes = lambda: None  # noqa: SLF001
    # Both modules hold the function by name.
    nnx_decoders.attend_on_embedding = _attend_on_embedding
    embeddings.attend_on_embedding = _attend_on_embedding
    embeddings.LLaMARotaryEmbedding._apply_scaling_factor = _frequency_scaling(plan)  # noqa: SLF001
    attention_mla.MLA.init_kv_caches = _latent_cache
    # Orbax and MaxText log some forty long lines per checkpoint through it; the stages log what users need.
    logging.getLogger("absl").setLevel(logging.WARNING)
    # The converters collect garbage per tensor; half a million import-time objects need not be scanned again.
    gc.collect()
    gc.freeze()


def configure(plan: ModelPlan, file: Path = BASE, **settings: Any) -> pyconfig.HyperParameters:
    """MaxText's configuration: ``file``, then the plan's settings, then ``settings``.

    Raises ``StageError`` 64 for what MaxText refuses. (``pyconfig.initialize`` would end the process instead.)
    """
    values = {**_COMMON, **plan.settings(), **settings}
    _refuse_interpolation(values)
    try:
        return pyconfig.HyperParameters(pyconfig._initialize_pydantic(["", str(file)], **values))  # noqa: SLF001
    except (ValueError, TypeError, KeyError) as error:
        raise refused(error) from error


def _refuse_interpolation(values: Mapping[str, Any], where: str = "") -> None:
    """Raises ``StageError`` 64 for settings that contain ``${``.

    OmegaConf, with which MaxText reads its settings, replaces ``${...}`` in every string: an address could carry what
    the environment holds, a token for example, to another place.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            _refuse_interpolation(value, f"{where}{name}.")
        elif "${" in str(value):
            raise StageError(
                ExitCode.BAD_REQUEST, "EngineRefusedSettings", "a MaxText setting contains ${", where=f"{where}{name}",
                actual=str(value)[:200], expected="plain text", fix="Rename the folder or the value without ${.",
            )  # fmt: skip


def refused(error: Exception) -> StageError:
    """The failure for settings that MaxText does not accept."""
    return StageError(
        ExitCode.BAD_REQUEST, "EngineRefusedSettings", "MaxText does not accept these settings",
        where="spec.engineOverrides or config.json", actual=" ".join(str(error).split())[:400],
        fix="Remove the setting that the message names.",
    )  # fmt: skip


def _attend_on_embedding(
    query: jax.Array,
    embedding_table: jax.Array,
    attend_dtype: Any,
    config: Any,
    out_sharding: Any = None,
) -> jax.Array:
    """MaxText's function, except for the table's dtype and the product's precision.

    MaxText always casts the table to bfloat16, also where the user requested FP32 (logits are then off by up to 0.01,
    and Gemma's by the rounding of its scaled table), and leaves the product's precision to the device.
    """
    if config.shard_mode != embeddings.ShardMode.EXPLICIT:
        out_sharding = None
    if out_sharding is not None:
        out_sharding = embeddings.truncate_out_sharding(out_sharding, query.ndim)
    table = embeddings._maybe_move_embedding_to_device(embedding_table, config)  # noqa: SLF001
    return jnp.dot(
        query,
        jnp.asarray(table, query.dtype).T,
        preferred_element_type=attend_dtype,
        precision=config.matmul_precision,
        out_sharding=out_sharding,
    )


def _latent_cache(attention: attention_mla.MLA, inputs_kv_shape: tuple[int, int, int]) -> Any:
    """MaxText's KV cache for latent attention, except for the width of values.

    In MaxText's that is the width of keys, which have a rotary part besides, so that decoding would add up answers of
    two widths.
    """
    return kvcache.KVCache(
        max_prefill_length=attention.max_prefill_predict_length,
        max_target_length=attention.max_target_length,
        batch=inputs_kv_shape[0],
        key_seq_len=1,
        value_seq_len=1,
        key_heads=attention.num_kv_heads,
        value_heads=attention.num_kv_heads,
        key_head_size=attention.head_dim,
        value_head_size=attention.v_head_dim,
        dtype=attention.dtype,
        kv_quant=attention.kv_quant,
        prefill_cache_axis_order=attention.prefill_cache_axis_order,
        ar_cache_axis_order=attention.ar_cache_axis_order,
        use_chunked_prefill=attention.config.use_chunked_prefill,
        model_mode=attention.model_mode,
        rngs=attention.rngs,
    )


def _frequency_scaling(plan: ModelPlan) -> Any:
    """A replacement for MaxText's Llama 3.1 scaling, whose four factors are constants (8, 1, 4, 8192)."""

    def scale(_: embeddings.LLaMARotaryEmbedding, frequency: jax.Array) -> jax.Array:
        if plan.llama3_scaling is None:
            return frequency / plan.linear_scaling
        return _llama3(frequency, plan.llama3_scaling)

    return scale


def _llama3(frequency: jax.Array, scaling: Llama3Scaling) -> jax.Array:
    """As transformers' ``_compute_llama3_parameters``.

    Long waves are divided by the factor, short ones kept, with a linear blend between.
    """
    turns = (
        scaling.original_context * frequency / (2 * jnp.pi)
    )  # turns of the wave within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = jnp.clip(blend, 0.0, 1.0)
    return (1 - blend) * frequency / scaling.factor + blend * frequency
