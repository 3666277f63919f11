"""A second opinion on the model: the published formulas in numpy, straight from config.json and the weights.

It shares nothing with the engine or with ``families``: transformers' own configuration classes read config.json. So
where the engine's numbers agree with these, dimensions, rotary embeddings, scales, caps and windows are all right. One
layer's weights are in memory at a time; rows are short, speed does not matter. Sources: transformers' modeling files
for Llama, Mistral, Mixtral, Qwen3, Gemma 2, Gemma 3 and DeepSeek 2; for the scale of the last one's attention the code
that DeepSeek published.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig

Read = Callable[[str], np.ndarray]
Array = np.ndarray
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
_MLP = ("gate_proj", "up_proj", "down_proj")
#: Where layers keep their experts, and the names of gate, up and down projection.
_EXPERTS = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", _MLP),
    "deepseek_v2": ("mlp", _MLP),
}


def logits(folder: Path, read: Read, rows: Sequence[Sequence[int]]) -> list[Array]:
    """For each row of token ids, float32 ``[len(row), vocabulary]``. ``read`` gives a weight by its plain name."""
    config = AutoConfig.from_pretrained(folder)
    model = _Model(getattr(config, "text_config", None) or config, lambda name: read(name).astype(np.float32))
    return model.logits([np.asarray(row) for row in rows])


class _Model:
    def __init__(self, config: Any, read: Read) -> None:
        self._config = config
        self._read = read
        self._gemma = config.model_type.startswith("gemma")
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._scale = (getattr(config, "query_pre_attn_scalar", None) or self._head_dim) ** -0.5
        self._latent: int | None = getattr(config, "kv_lora_rank", None)
        if self._latent is not None:
            self._scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5 * _yarn_scale(
                config.rope_parameters
            )
        name = getattr(config, "hidden_activation", None) or config.hidden_act
        self._activation = _ACTIVATIONS[name]

    def logits(self, rows: list[Array]) -> list[Array]:
        table: Array = self._read("model.embed_tokens.weight")
        states: list[Array] = [table[row] for row in rows]
        if self._gemma:
            states = [state * np.float32(self._config.hidden_size**0.5) for state in states]
        for i in range(self._config.num_hidden_layers):
            states = self._layer(i, states)
        states = [self._norm(state, "model.norm.weight") for state in states]
        head = table if self._config.tie_word_embeddings else self._read("lm_head.weight")
        return [
            _capped(state @ head.T, getattr(self._config, "final_logit_softcapping", None))
            for state in states
        ]

    def _layer(self, i: int, states: list[Array]) -> list[Array]:
        layer = f"model.layers.{i}."
        names = ("k_proj", "v_proj") if self._latent is None else ("kv_a_proj_with_mqa", "kv_b_proj")
        w = {name: self._read(f"{layer}self_attn.{name}.weight") for name in ("q_proj", *names, "o_proj")}
        dense = i < getattr(self._config, "first_k_dense_replace", 0)
        mixed = self._config.model_type in _EXPERTS and not dense
        mlp = self._experts(layer) if mixed else self._mlp(f"{layer}mlp")
        after_attention = "post_attention_layernorm.weight"
        before_mlp = "pre_feedforward_layernorm.weight" if self._gemma else after_attention
        results = []
        for state in states:
            attended = self._attention(i, self._norm(state, f"{layer}input_layernorm.weight"), w)
            if self._gemma:
                attended = self._norm(attended, layer + after_attention)
            middle = state + attended
            inner = mlp(self._norm(middle, layer + before_mlp))
            if self._gemma:
                inner = self._norm(inner, f"{layer}post_feedforward_layernorm.weight")
            results.append(middle + inner)
        return results

    def _mlp(self, where: str) -> Callable[[Array], Array]:
        return self._gated(*(self._read(f"{where}.{name}.weight") for name in _MLP))

    def _gated(self, gate: Array, up: Array, down: Array) -> Callable[[Array], Array]:
        def run(x: Array) -> Array:
            result: Array = (self._activation(x @ gate.T) * (x @ up.T)) @ down.T
            return result

        return run

    def _experts(self, layer: str) -> Callable[[Array], Array]:
        """Each token goes to the experts that the router gives the highest probabilities."""
        config = self._config
        part, names = _EXPERTS[config.model_type]
        router = self._read(f"{layer}{part}.gate.weight")
        experts = [
            self._gated(*(self._read(f"{layer}{part}.experts.{e}.{name}.weight") for name in names))
            for e in range(len(router))
        ]
        normed = config.model_type == "mixtral" or config.norm_topk_prob
        scale = np.float32(getattr(config, "routed_scaling_factor", 1.0))
        shared = self._mlp(f"{layer}mlp.shared_experts") if config.model_type == "deepseek_v2" else None

        def run(x: Array) -> Array:
            scores = x @ router.T
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            shares /= shares.sum(axis=-1, keepdims=True)
            chosen = np.argsort(-shares, axis=-1, kind="stable")[:, : config.num_experts_per_tok]
            kept = np.zeros_like(shares)
            np.put_along_axis(kept, chosen, np.take_along_axis(shares, chosen, axis=-1), axis=-1)
            if normed:
                kept /= kept.sum(axis=-1, keepdims=True)
            result: Array = scale * sum(kept[:, [e]] * expert(x) for e, expert in enumerate(experts))
            return result if shared is None else result + shared(x)

        return run

    def _attention(self, i: int, x: Array, w: dict[str, Array]) -> Array:
        length, config = len(x), self._config
        kind = (getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers)[i]
        cos, sin = self._rotation(kind, length)
        split = self._heads if self._latent is None else self._latent_heads
        q, k, v = split(f"model.layers.{i}.self_attn.", x, w, cos, sin)
        group = len(q) // len(k)
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = _capped(
            q @ k.transpose(0, 2, 1) * np.float32(self._scale),
            getattr(config, "attn_logit_softcapping", None),
        )
        ago = np.arange(length)[:, None] - np.arange(length)[None]
        visible = ago >= 0
        if kind == "sliding_attention":
            visible &= ago < config.sliding_window
        scores = np.where(visible, scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
        result: Array = mixed.transpose(1, 0, 2).reshape(length, -1) @ w["o_proj"].T
        return result

    def _heads(
        self, layer: str, x: Array, w: dict[str, Array], cos: Array, sin: Array
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values ``[heads, length, head_dim]``."""

        def heads(name: str, norm: str | None) -> Array:
            y: Array = (x @ w[name].T).reshape(len(x), -1, self._head_dim)
            if norm is not None and self._config.model_type in ("qwen3", "qwen3_moe", "gemma3_text"):
                y = self._norm(y, f"{layer}{norm}.weight")
            return y.transpose(1, 0, 2)

        q, k = heads("q_proj", "q_norm"), heads("k_proj", "k_norm")
        return _rotate(q, cos, sin), _rotate(k, cos, sin), heads("v_proj", None)

    def _latent_heads(
        self, layer: str, x: Array, w: dict[str, Array], cos: Array, sin: Array
    ) -> tuple[Array, Array, Array]:
        """As ``_heads``, of multi-head latent attention: the rotary part of keys is one for all heads."""
        config, length = self._config, len(x)
        plain = config.qk_nope_head_dim

        def heads(y: Array) -> Array:
            return y.reshape(length, config.num_attention_heads, -1).transpose(1, 0, 2)

        latent, turned = np.split(x @ w["kv_a_proj_with_mqa"].T, [config.kv_lora_rank], axis=-1)
        both = heads(self._norm(latent, f"{layer}kv_a_layernorm.weight") @ w["kv_b_proj"].T)
        k, v = np.split(both, [plain], axis=-1)
        turned = np.broadcast_to(_rotate_pairs(turned[None], cos, sin), (len(k), *turned.shape))
        q = heads(x @ w["q_proj"].T)
        q = np.concatenate([q[..., :plain], _rotate_pairs(q[..., plain:], cos, sin)], axis=-1)
        return q, np.concatenate([k, turned], axis=-1), v

    def _rotation(self, kind: str, length: int) -> tuple[Array, Array]:
        parameters = self._config.rope_parameters
        parameters = parameters.get(kind, parameters)
        frequency = parameters["rope_theta"] ** -(np.arange(0, self._head_dim, 2) / self._head_dim)
        if parameters["rope_type"] == "linear":
            frequency = frequency / parameters["factor"]
        elif parameters["rope_type"] == "llama3":
            frequency = _llama3(frequency, parameters)
        elif parameters["rope_type"] == "yarn":
            frequency = _yarn(frequency, parameters)
        elif parameters["rope_type"] != "default":
            raise ValueError(f"rope type {parameters['rope_type']}")
        angle = np.arange(length)[:, None] * np.concatenate([frequency, frequency])
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def _norm(self, x: Array, name: str) -> Array:
        weight = self._read(name)
        normal: Array = x / np.sqrt(
            (x * x).mean(axis=-1, keepdims=True) + np.float32(self._config.rms_norm_eps)
        )
        normal *= weight + 1 if self._gemma else weight
        return normal


def _llama3(frequency: Array, parameters: dict[str, Any]) -> Array:
    context, low, high = (
        parameters["original_max_position_embeddings"], parameters["low_freq_factor"], parameters["high_freq_factor"]
    )  # fmt: skip
    wave = 2 * np.pi / frequency
    smooth = (context / wave - low) / (high - low)
    blended = (1 - smooth) * frequency / parameters["factor"] + smooth * frequency
    kept: Array = np.where(wave < context / high, frequency, blended)
    return np.where(wave > context / low, frequency / parameters["factor"], kept)


def _yarn(frequency: Array, parameters: dict[str, Any]) -> Array:
    """Waves that turn more than ``beta_fast`` times in the original context are kept, those below ``beta_slow`` divided
    by the factor, and between them the share goes with the dimension."""

    def dimension(turns: float) -> float:
        wave = parameters["original_max_position_embeddings"] / (turns * 2 * np.pi)
        return float(len(frequency) * np.log(wave) / np.log(parameters["rope_theta"]))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(frequency) - 1)
    slow = np.clip((np.arange(len(frequency)) - low) / ((high - low) or 0.001), 0, 1)
    blended: Array = frequency * (1 - slow) + frequency / parameters["factor"] * slow
    return blended


def _yarn_scale(parameters: dict[str, Any]) -> float:
    """What DeepSeek's attention is scaled by besides the width of its heads."""
    if parameters["rope_type"] != "yarn":
        return 1.0
    return float(0.1 * parameters["mscale_all_dim"] * np.log(parameters["factor"]) + 1.0) ** 2


def _rotate_pairs(x: Array, cos: Array, sin: Array) -> Array:
    """As ``_rotate``, where the two of a pair lie side by side."""
    half = x.shape[-1] // 2
    even, odd, c, s = x[..., ::2], x[..., 1::2], cos[:, :half], sin[:, :half]
    return np.stack([even * c - odd * s, even * s + odd * c], axis=-1).reshape(x.shape)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    turned: Array = x * cos + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin
    return turned


def _capped(x: Array, cap: float | None) -> Array:
    result: Array = np.tanh(x / cap) * cap if cap else x
    return result
