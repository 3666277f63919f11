"""Shapes of a model's weights, from its config.json. Pure.

The trainer derives the same shapes from it, together with MaxText's settings, and decides what it can train; here only
sizes are of interest. ``tests/trainer/golden/model_sizes.json`` holds both to the same numbers for published models.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from finetune_contract import LoraSpec, ModelSizes

type _Shapes = dict[str, tuple[int, ...]]

#: Far above any published model; they bound the work that a file can cause.
_MOST_LAYERS, _MOST_EXPERTS, _LARGEST = 1000, 1024, 2**31 - 1
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LATENT = ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class UnknownModelShape(ValueError):
    """The sizes of a model cannot be read from its config.json. The message names the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Architecture:
    """An architecture of config.json: what it adds to a Llama's layers, and transformers' defaults for its keys."""

    defaults: Mapping[str, int | None]
    tied: bool = False
    text_config: bool = False
    """Whether the sizes are those of the text part of an image-and-text model."""
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    block_layers: int = 1
    """Layers that MaxText scans as one block; only the last of them attends to the whole context."""
    experts: str = ""
    """Key of the number of experts. Empty if there are none."""
    expert_width: str = "moe_intermediate_size"
    latent: bool = False
    """Whether keys and values are projections of a latent vector."""


_NAMES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


def _defaults(*values: int | None, **more: int) -> dict[str, int | None]:
    return {**dict(zip(_NAMES, values, strict=True)), **more}


_GEMMA3 = _Architecture(
    defaults=_defaults(262_208, 2304, 9216, 26, 8, 4, 256),
    tied=True,
    qk_norm=True,
    post_norms=True,
    block_layers=6,
)
_ARCHITECTURES: Mapping[str, _Architecture] = {
    "LlamaForCausalLM": _Architecture(defaults=_defaults(32000, 4096, 11008, 32, 32, None, None)),
    "MistralForCausalLM": _Architecture(defaults=_defaults(32000, 4096, 14336, 32, 32, 8, None)),
    "MixtralForCausalLM": _Architecture(
        defaults=_defaults(32000, 4096, 14336, 32, 32, 8, None, num_local_experts=8, num_experts_per_tok=2),
        experts="num_local_experts",
        expert_width="intermediate_size",
    ),
    "Qwen2ForCausalLM": _Architecture(
        defaults=_defaults(151_936, 4096, 22016, 32, 32, 32, None), qkv_bias=True
    ),
    "Qwen3ForCausalLM": _Architecture(
        defaults=_defaults(151_936, 4096, 22016, 32, 32, 32, 128), qk_norm=True
    ),
    "Qwen3MoeForCausalLM": _Architecture(
        defaults=_defaults(
            151_936, 2048, 6144, 24, 32, 4, None,
            num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        ),
        qk_norm=True,
        experts="num_experts",
    ),
    "DeepseekV2ForCausalLM": _Architecture(
        defaults=_defaults(
            32000, 4096, 11008, 32, 32, None, None,
            n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1407, n_shared_experts=2,
            kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        ),
        experts="n_routed_experts",
        latent=True,
    ),
    "Gemma2ForCausalLM": _Architecture(
        defaults=_defaults(256_000, 2304, 9216, 26, 8, 4, 256), tied=True, post_norms=True, block_layers=2
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, text_config=True),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Shapes of the weights of a text model."""

    architecture: str
    hidden_size: int
    vocab_size: int
    layers: int
    heads: int
    head_dims: int
    """Sizes of a head's key and of its value, added."""
    tied_embeddings: bool
    block_layers: int
    """Layers that MaxText scans as one block."""
    dense_layers: int
    """Number of initial layers with a dense MLP; the others have experts."""
    experts_chosen: int = 1
    """Number of experts per token."""
    lora_modules: tuple[str, ...]
    """Modules that LoRA adapts by default."""
    dtype_bytes: int | None
    """Bytes per parameter of the published weights. None if the file does not say, or if they have further parts."""
    dense: _Shapes = field(default_factory=dict)
    """Weights of a layer with a dense MLP by name."""
    mixed: _Shapes = field(default_factory=dict)
    """Weights of a layer with experts by name; the first size of those of experts is their number."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Reads a parsed config.json. Raises UnknownModelShape."""
        names = config.get("architectures")
        name = names[0] if isinstance(names, list) and len(names) == 1 else None
        known = _ARCHITECTURES.get(name) if isinstance(name, str) else None
        if known is None:
            raise UnknownModelShape(
                f"architectures: {str(names)[:80]} is not supported: expected one of {', '.join(_ARCHITECTURES)}"
            )
        return cls(architecture=str(name), **_fields(_Reader(config, known), known))

    @property
    def parameters(self) -> int:
        """Number of parameters; tied embeddings count once."""
        return sum(self._outer()) + sum(
            math.prod(shape) for number in range(self.layers) for shape in self.layer(number).values()
        )

    @property
    def embedding(self) -> int:
        """Number of parameters of the embeddings, and of an output layer."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of all layers."""
        return self.parameters - sum(self._outer())

    @property
    def block_parameters(self) -> int:
        """Number of parameters of the last layers that are scanned as one block."""
        last = self.layer(self.layers - 1)
        return self.block_layers * sum(math.prod(shape) for shape in last.values())

    @property
    def softcapped(self) -> bool:
        """Whether the logits are bounded by a tanh."""
        return self.architecture == "Gemma2ForCausalLM"

    @property
    def sizes(self) -> ModelSizes:
        """Sizes that determine memory and disk of the CPU stages."""
        pieces, stacks, blocks = list(self._outer()), Counter[tuple[str, int]](), Counter[int]()
        for number in range(self.layers):
            block, place = divmod(number, self.block_layers)
            for name, shape in self.layer(number).items():
                size = math.prod(shape)
                pieces.append(size)
                stacks[name, place] += size
                blocks[block] += size
        return ModelSizes(
            largest_piece=max(pieces),
            largest_stack=max(stacks.values()),
            largest_block=max(blocks.values()),
            lora_width=self.lora_width(None),
            weights_bytes=(self.dtype_bytes or 0) * self.parameters,
        )

    def lora_width(self, lora: LoraSpec | None) -> int:
        """Returns the inputs and outputs of all adapted layers: times the rank, the parameters of an adapter."""
        modules = (lora and lora.target_modules) or self.lora_modules
        return sum(
            sum(shape)
            for number in range(self.layers)
            for name, shape in self.layer(number).items()
            if len(shape) == 2 and name.split(".")[-1] in modules
        )

    @property
    def matrices(self) -> int:
        """Number of weights of the matrices by which a token is multiplied, with the chosen experts alone."""
        outer = self.vocab_size * self.hidden_size
        return outer + sum(
            math.prod(shape[-2:]) * (self.experts_chosen if len(shape) == 3 else 1)
            for number in range(self.layers)
            for shape in self.layer(number).values()
            if len(shape) > 1
        )

    @property
    def whole_context_layers(self) -> int:
        """Number of layers without a sliding window."""
        return self.layers // self.block_layers

    def _outer(self) -> Iterator[int]:
        """Yields the sizes of the weights outside the layers: embeddings, last norm, output layer."""
        yield self.vocab_size * self.hidden_size
        yield self.hidden_size
        if not self.tied_embeddings:
            yield self.vocab_size * self.hidden_size

    def layer(self, number: int) -> Mapping[str, tuple[int, ...]]:
        """Returns the weights of that layer by name; those of experts have three sizes, the first is their number."""
        return self.dense if number < self.dense_layers else self.mixed


class _Reader:
    """Sizes of a config.json, with transformers' defaults; null counts as absent."""

    def __init__(self, config: Mapping[str, Any], known: _Architecture) -> None:
        values = config.get("text_config") if known.text_config else config
        if not isinstance(values, Mapping):
            raise UnknownModelShape("text_config: expected an object")
        self._values: Mapping[str, object] = values
        self._defaults = known.defaults

    def size(self, name: str, otherwise: int | None = None, *, least: int = 1, most: int = _LARGEST) -> int:
        value = self._values.get(name)
        if value is None:
            value = self._defaults.get(name) or otherwise
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value <= most  # First: larger integers cannot be converted.
            or value != int(value)
        ):
            raise UnknownModelShape(f"{name}: {str(value)[:40]}, expected an integer from {least} to {most}")
        return int(value)

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self._values.get(name)
        return otherwise if value is None else value is True

    @property
    def dtype_bytes(self) -> int | None:
        names = (self._values.get(key) for key in ("dtype", "torch_dtype"))
        return next(
            (_DTYPE_BYTES[name] for name in names if isinstance(name, str) and name in _DTYPE_BYTES), None
        )


def _fields(read: _Reader, known: _Architecture) -> dict[str, Any]:
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    layers = read.size("num_hidden_layers", most=_MOST_LAYERS)
    attention, head_dims = _attention(read, known, hidden, heads)
    norms: _Shapes = {f"norm{number}": (hidden,) for number in range(4 if known.post_norms else 2)}
    shared = attention | norms
    fields: dict[str, Any] = {
        "hidden_size": hidden,
        "vocab_size": read.size("vocab_size"),
        "layers": layers,
        "heads": heads,
        "head_dims": head_dims,
        "tied_embeddings": read.flag("tie_word_embeddings", known.tied),
        "block_layers": known.block_layers,
        "dense_layers": layers,
        "dtype_bytes": None if known.text_config else read.dtype_bytes,
        "lora_modules": (_LATENT if known.latent else _ATTENTION) + (() if known.experts else _MLP),
        "dense": shared | _mlp("mlp", read.size("intermediate_size"), hidden),
    }
    if not known.experts:
        return fields
    number, width = read.size(known.experts, least=2, most=_MOST_EXPERTS), read.size(known.expert_width)
    mixed = shared | {"mlp.gate": (number, hidden)}
    mixed |= {name: (number, *shape) for name, shape in _mlp("experts", width, hidden).items()}
    if known.latent and (more := read.size("n_shared_experts", least=0, most=_MOST_EXPERTS)):
        mixed |= _mlp("shared", more * width, hidden)
    dense = read.size("first_k_dense_replace", 0, least=0, most=layers) if known.latent else 0
    chosen = read.size("num_experts_per_tok", most=number)
    return fields | {"dense_layers": dense, "mixed": mixed, "experts_chosen": chosen}


def _attention(read: _Reader, known: _Architecture, hidden: int, heads: int) -> tuple[_Shapes, int]:
    """Returns the weights of attention, and the sizes of a head's key and value, added."""
    if known.latent:
        rank, value = read.size("kv_lora_rank"), read.size("v_head_dim")
        nope, rope = read.size("qk_nope_head_dim"), read.size("qk_rope_head_dim")
        return {
            "q_proj": (heads * (nope + rope), hidden),
            "kv_a_proj_with_mqa": (rank + rope, hidden),
            "kv_a_layernorm": (rank,),
            "kv_b_proj": (heads * (nope + value), rank),
            "o_proj": (hidden, heads * value),
        }, nope + rope + value
    head = read.size("head_dim", max(1, hidden // heads))
    queries, keys = heads * head, read.size("num_key_value_heads", heads) * head
    shapes: _Shapes = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
    }
    if known.qkv_bias:
        shapes |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if known.qk_norm:
        shapes |= {"q_norm": (head,), "k_norm": (head,)}
    return shapes, 2 * head


def _mlp(where: str, inner: int, hidden: int) -> _Shapes:
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    return {f"{where}.{name}": shape for name, shape in zip(_MLP, shapes, strict=True)}
