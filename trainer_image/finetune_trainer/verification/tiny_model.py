"""A model of the same architecture that is small enough for any machine: a few narrow layers with random weights.

Vocabulary, tokenizer and everything that is not a size (activations, rotary embeddings, caps, tied embeddings) stay.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from finetune_trainer import families
from finetune_trainer.checkpoints.weights import SINGLE
from finetune_trainer.families import Family, ModelPlan

_HEADS, _HEAD_DIM = 4, 16
#: Keys of config.json, as the families name them. Every size is a multiple of NF4's smallest block.
_SIZES: Mapping[str, int] = {
    "hidden_size": _HEADS * _HEAD_DIM,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": _HEADS,
    "head_dim": _HEAD_DIM,
    # Gemma's queries are scaled by head_dim or by hidden_size // heads: here they are equal.
    "query_pre_attn_scalar": _HEAD_DIM,
}
_LATENT_SIZES: Mapping[str, int] = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
_EXPERTS: Mapping[Family, str] = {
    Family.MIXTRAL: "num_local_experts",
    Family.QWEN3_MOE: "num_experts",
    Family.DEEPSEEK2: "n_routed_experts",
}
#: One of each kind of layer that MaxText repeats: Gemma 3's pattern is five local ones and a global one.
_LAYERS: Mapping[Family, int] = {Family.GEMMA3: 6}
_FEWEST_LAYERS = 2
_STANDARD_DEVIATION = 0.02


def write(out: Path, model: Path, plan: ModelPlan, *, seed: int) -> Path:
    """Writes a small model, derived from the config.json in ``model``, and returns its folder.

    The folder has config.json and weights. Equal arguments give equal bytes.
    """
    out.mkdir(parents=True)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps(shrink_config(config, plan)), encoding="utf-8")
    small = families.read(out, where=str(out))
    rng = np.random.default_rng(seed)
    weights = {name: _weight(rng, name, shape, small) for name, shape in small.tensors().items()}
    save_file(weights, out / SINGLE, metadata={"format": "pt"})
    return out


def shrink_config(config: Mapping[str, Any], plan: ModelPlan) -> dict[str, Any]:
    """``config``, which ``plan`` was read from, with small sizes."""
    if isinstance(config.get("text_config"), Mapping):
        return {**config, "text_config": shrink_config(config["text_config"], plan)}
    layers = min(plan.layers, _LAYERS.get(plan.family, _FEWEST_LAYERS))
    small = {**config, **_SIZES, "num_hidden_layers": layers, "num_key_value_heads": _kv_heads(plan)}
    if isinstance(config.get("layer_types"), list):
        small["layer_types"] = config["layer_types"][:layers]
    if plan.latent is not None:
        small |= _LATENT_SIZES
        del small["head_dim"]
    if plan.experts is not None:
        small[_EXPERTS[plan.family]] = min(plan.experts.number, 4)
        small["num_experts_per_tok"] = min(plan.experts.chosen, 2)
    if plan.family is Family.DEEPSEEK2 and plan.experts is not None:
        small["first_k_dense_replace"] = min(plan.experts.dense_layers, layers - 1)
    return small


def _kv_heads(plan: ModelPlan) -> int:
    """Number of key and value heads: one for all heads, one for each, or two, as the model shares them."""
    if plan.kv_heads in (1, plan.heads):
        return 1 if plan.kv_heads == 1 else _HEADS
    return 2


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, ...], plan: ModelPlan) -> np.ndarray:
    """A random tensor; norms are ones, less the offset that the family adds."""
    if name.endswith("norm.weight"):
        return np.full(shape, 1.0 - plan.norm_offset, ml_dtypes.bfloat16)
    return (rng.standard_normal(shape, np.float32) * _STANDARD_DEVIATION).astype(ml_dtypes.bfloat16)
