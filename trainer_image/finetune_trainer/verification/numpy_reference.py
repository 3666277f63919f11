"""An independent reference of the model: the published formulas in numpy, straight from config.json and the weights.

It shares no code with the engine or with ``families``: transformers' own configuration classes read config.json. So
where the engine's numbers agree with these, dimensions, rotary embeddings, scales, caps and windows are all right. One
weight is in memory at a time; rows are short, speed does not matter. Sources: transformers' modeling files for Llama,
Mistral, Mixtral, Qwen2, Qwen3, Gemma 2, Gemma 3 and DeepSeek 2; for the scale of DeepSeek 2's attention the code that
DeepSeek published.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig

Read = Callable[[str], np.ndarray]
Array = np.ndarray
Turn = tuple[Array, Array]
"""Cosines and sines ``[length, head_dim]`` of the rotary embedding."""
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
_MLP = ("gate_proj", "up_proj", "down_proj")
#: The module that holds a layer's experts, and the names of gate, up and down projection.
_EXPERTS = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", _MLP),
    "deepseek_v2": ("mlp", _MLP),
}


class NumpyReference:
    """The model's computation for a few rows of token ids, up to the product with the vocabulary."""

    experts: list[list[Array] | None]
    """By layer, for each row the experts of each token, ``[len(row), experts per token]``; None for a layer without
    experts."""

    def __init__(self, folder: Path, read: Read, rows: Sequence[Sequence[int]]) -> None:
        """``folder`` has config.json; ``read`` returns a weight by its plain name."""
        config = AutoConfig.from_pretrained(folder)
        self._model = _Model(getattr(config, "text_config", None) or config, read)
        self._states = self._model.states([np.asarray(row) for row in rows])
        self.experts = self._model.chosen

    def logits(self, vocabulary: int | None = None) -> Iterator[tuple[int, list[Array]]]:
        """Logits, one part of the vocabulary after the other.

        Each part has at most ``vocabulary`` token ids (None: all). Yields the part's first token id, and for each row
        float32 logits ``[len(row), part]``.
        """
        return self._model.logits(self._states, vocabulary)


class _Model:
    def __init__(self, config: Any, read: Read) -> None:
        self._config = config
        self.chosen: list[list[Array] | None] = []
        self._raw = read
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

    def _read(self, name: str) -> Array:
        return self._raw(name).astype(np.float32)

    def states(self, rows: list[Array]) -> list[Array]:
        """The final hidden states of each row, which the output head is applied to."""
        states = self._embedded(rows)
        for i in range(self._config.num_hidden_layers):
            self.chosen.append(None)
            states = self._layer(i, states)
        return self._normed(states, "model.norm.weight")

    def logits(self, states: list[Array], vocabulary: int | None) -> Iterator[tuple[int, list[Array]]]:
        head = self._raw(
            "model.embed_tokens.weight" if self._config.tie_word_embeddings else "lm_head.weight"
        )
        cap = getattr(self._config, "final_logit_softcapping", None)
        for start in range(0, len(head), vocabulary or len(head)):
            part = head[start : start + (vocabulary or len(head))].astype(np.float32)
            yield start, [_capped(state @ part.T, cap) for state in states]

    def _embedded(self, rows: list[Array]) -> list[Array]:
        table = self._raw("model.embed_tokens.weight")
        scale = np.float32(self._config.hidden_size**0.5 if self._gemma else 1)
        return [table[row].astype(np.float32) * scale for row in rows]

    def _layer(self, i: int, states: list[Array]) -> list[Array]:
        layer = f"model.layers.{i}."
        after_attention = "post_attention_layernorm.weight"
        attended = self._attention(i, self._normed(states, f"{layer}input_layernorm.weight"))
        if self._gemma:
            attended = self._normed(attended, layer + after_attention)
        middle = [state + each for state, each in zip(states, attended, strict=True)]
        before_mlp = "pre_feedforward_layernorm.weight" if self._gemma else after_attention
        inner = self._normed(middle, layer + before_mlp)
        dense = i < getattr(self._config, "first_k_dense_replace", 0)
        mixed = self._config.model_type in _EXPERTS and not dense
        inner = self._experts(layer, inner) if mixed else self._gated(f"{layer}mlp", _MLP, inner)
        if self._gemma:
            inner = self._normed(inner, f"{layer}post_feedforward_layernorm.weight")
        return [state + each for state, each in zip(middle, inner, strict=True)]

    def _linear(self, name: str, states: Sequence[Array]) -> list[Array]:
        together = np.concatenate(states) @ self._read(f"{name}.weight").T
        return np.split(together, np.cumsum([len(state) for state in states[:-1]]))

    def _gated(self, where: str, names: Sequence[str], states: Sequence[Array]) -> list[Array]:
        gate, up, down = (f"{where}.{name}" for name in names)
        gates, ups = self._linear(gate, states), self._linear(up, states)
        return self._linear(down, [self._activation(g) * u for g, u in zip(gates, ups, strict=True)])

    def _experts(self, layer: str, states: list[Array]) -> list[Array]:
        """A mixture of experts: each token's output is the weighted sum of those with the highest router scores.

        Records the experts of each token in ``chosen``. For simplicity, every expert computes every token; its weight
        is zero for tokens that did not choose it.
        """
        config = self._config
        part, names = _EXPERTS[config.model_type]
        normed = config.model_type == "mixtral" or config.norm_topk_prob
        scores = self._linear(f"{layer}{part}.gate", states)
        chosen = [
            np.argsort(-each, axis=-1, kind="stable")[:, : config.num_experts_per_tok] for each in scores
        ]
        self.chosen[-1] = chosen
        shares = [_shares(each, ours, normed=normed) for each, ours in zip(scores, chosen, strict=True)]
        scale = np.float32(getattr(config, "routed_scaling_factor", 1.0))
        results = [np.zeros_like(state) for state in states]
        for expert in range(shares[0].shape[-1]):
            outputs = self._gated(f"{layer}{part}.experts.{expert}", names, states)
            for i, output in enumerate(outputs):
                results[i] += scale * shares[i][:, [expert]] * output
        if config.model_type == "deepseek_v2":
            shared = self._gated(f"{layer}mlp.shared_experts", _MLP, states)
            results = [result + each for result, each in zip(results, shared, strict=True)]
        return results

    def _attention(self, i: int, states: list[Array]) -> list[Array]:
        layer = f"model.layers.{i}.self_attn."
        kind = (
            getattr(self._config, "layer_types", None) or ["full_attention"] * self._config.num_hidden_layers
        )[i]
        split = self._heads if self._latent is None else self._latent_heads
        turns = [self._rotation(kind, len(state)) for state in states]
        mixed = [self._mixed(kind, *heads) for heads in split(layer, states, turns)]
        return self._linear(f"{layer}o_proj", mixed)

    def _mixed(self, kind: str, q: Array, k: Array, v: Array) -> Array:
        length, config = q.shape[1], self._config
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
        mixed: Array = (scores / scores.sum(axis=-1, keepdims=True)) @ v
        return mixed.transpose(1, 0, 2).reshape(length, -1)

    def _heads(
        self, layer: str, states: list[Array], turns: list[Turn]
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Queries, keys and values of each row, ``[heads, length, head_dim]``."""
        normed = self._config.model_type in ("qwen3", "qwen3_moe", "gemma3_text")

        biased = self._config.model_type == "qwen2"

        def heads(name: str) -> list[Array]:
            projected = self._linear(f"{layer}{name}_proj", states)
            if biased:
                bias = self._read(f"{layer}{name}_proj.bias")
                projected = [y + bias for y in projected]
            split = [y.reshape(len(y), -1, self._head_dim) for y in projected]
            if normed and name != "v":
                split = self._normed(split, f"{layer}{name}_norm.weight")
            return [y.transpose(1, 0, 2) for y in split]

        for q, k, v, turn in zip(heads("q"), heads("k"), heads("v"), turns, strict=True):
            yield _rotate(q, *turn), _rotate(k, *turn), v

    def _latent_heads(
        self, layer: str, states: list[Array], turns: list[Turn]
    ) -> Iterator[tuple[Array, Array, Array]]:
        """As ``_heads``, for multi-head latent attention: the rotary part of keys is shared by all heads."""
        config = self._config
        plain = config.qk_nope_head_dim

        def heads(y: Array) -> Array:
            return y.reshape(len(y), config.num_attention_heads, -1).transpose(1, 0, 2)

        narrow = self._linear(f"{layer}kv_a_proj_with_mqa", states)
        latents = self._normed([y[:, : config.kv_lora_rank] for y in narrow], f"{layer}kv_a_layernorm.weight")
        both, queries = self._linear(f"{layer}kv_b_proj", latents), self._linear(f"{layer}q_proj", states)
        for y, wide, asked, turn in zip(narrow, both, queries, turns, strict=True):
            k, v = np.split(heads(wide), [plain], axis=-1)
            turned = _rotate_pairs(y[None, :, config.kv_lora_rank :], *turn)
            turned = np.broadcast_to(turned, (len(k), *turned.shape[1:]))
            q = heads(asked)
            q = np.concatenate([q[..., :plain], _rotate_pairs(q[..., plain:], *turn)], axis=-1)
            yield q, np.concatenate([k, turned], axis=-1), v

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

    def _normed(self, states: Sequence[Array], name: str) -> list[Array]:
        weight = self._read(name) + np.float32(1 if self._gemma else 0)
        epsilon = np.float32(self._config.rms_norm_eps)
        return [
            state / np.sqrt((state * state).mean(axis=-1, keepdims=True) + epsilon) * weight
            for state in states
        ]


def _shares(scores: Array, chosen: Array, *, normed: bool) -> Array:
    """The weight of each expert in each token's output; zero for experts that are not chosen.

    ``normed``: whether the weights of a token's experts sum to 1.
    """
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    kept: Array = np.zeros_like(shares)
    np.put_along_axis(kept, chosen, np.take_along_axis(shares, chosen, axis=-1), axis=-1)
    if normed:
        kept /= kept.sum(axis=-1, keepdims=True)
    return kept


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
    """YaRN frequencies.

    Waves that turn more than ``beta_fast`` times in the original context are kept, those below ``beta_slow`` are
    divided by the factor, and in between they are blended linearly by dimension.
    """

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
    """The factor by which DeepSeek's attention is scaled besides the width of its heads."""
    if parameters["rope_type"] != "yarn":
        return 1.0
    return float(0.1 * parameters["mscale_all_dim"] * np.log(parameters["factor"]) + 1.0) ** 2


def _rotate_pairs(x: Array, cos: Array, sin: Array) -> Array:
    """As ``_rotate``, for pairs whose elements are adjacent."""
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
