"""Architectures of config.json (``text_models.csv``), and the shapes of a model's weights by its sizes.

Operator and trainer both count with them. Each reads config.json itself: the trainer also derives MaxText's settings,
and decides what it can train.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from finetune_contract.method import LoraSpec
from finetune_contract.result import ModelSizes

type Shapes = dict[str, tuple[int, ...]]

#: Bytes of a value of each precision.
VALUE_BYTES: Mapping[str, int] = {"BF16": 2, "FP32": 4}
MLP_MODULES = ("gate_proj", "up_proj", "down_proj")
_ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
_LATENT_MODULES = ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


#: Keys of config.json for the number of experts.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One row of the table: what an architecture adds to a Llama's layers."""

    defaults: Mapping[str, int]
    """Values that transformers uses for keys that config.json omits. Without ``num_key_value_heads`` there are as many
    as query heads; without ``head_dim`` it is ``hidden_size / heads``."""
    tied_embeddings: bool
    """Whether embeddings are tied if config.json does not say."""
    text_config: bool
    """Whether the sizes are those of the text part of an image-and-text model."""
    qkv_bias: bool
    """Whether the projections of queries, keys and values have a bias (Qwen2)."""
    qk_norm: bool
    """Whether queries and keys are normalized."""
    post_norms: bool
    """Whether norms also follow attention and MLP (Gemma)."""
    block_layers: int
    """Number of layers that MaxText scans as one block; only the last of them attends to the whole context."""

    @property
    def experts_key(self) -> str | None:
        """Key of the number of experts. None if there are none."""
        return next((key for key in _EXPERTS if key in self.defaults), None)

    @property
    def expert_width_key(self) -> str:
        """Key of the size of an expert's hidden layer."""
        own = "moe_intermediate_size"
        return own if own in self.defaults else "intermediate_size"


@cache
def architectures() -> Mapping[str, Architecture]:
    """Returns every architecture by the name that config.json gives it."""
    text = files("finetune_contract").joinpath("text_models.csv").read_text(encoding="utf-8")
    flags = ("tied_embeddings", "text_config", "qkv_bias", "qk_norm", "post_norms")
    return {
        row["architecture"]: Architecture(
            **{name: row[name] == "true" for name in flags},
            block_layers=int(row["block_layers"]),
            defaults={
                key: int(value) for key, value in row.items() if value.isdecimal() and key != "block_layers"
            },
        )
        for row in csv.DictReader(text.splitlines())
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """A mixture of experts that replaces a layer's dense MLP."""

    number: int
    chosen: int
    """Number of experts per token."""
    width: int
    """Size of each expert's hidden layer."""
    shared: int = 0
    """Number of additional experts of the same width that process every token; stored as one MLP."""
    dense_layers: int = 0
    """Number of initial layers with a dense MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAConfig:
    """Multi-head latent attention: all heads' keys and values are projections of one narrow latent vector per token."""

    rank: int
    """Size of the latent vector."""
    nope_dim: int
    """Size of the part of a head's query and key without rotary embedding."""
    rope_dim: int
    """Size of the part with rotary embedding; all heads share the key's."""
    value_dim: int


@dataclass(frozen=True, kw_only=True)  # without slots: the cached properties
class TextModel:
    """A text model. Names of weights are those of Hugging Face, below the layer and without ``.weight``."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    """Number of layers as config.json counts them; MaxText counts pairs of layers for Gemma 2."""
    heads: int
    kv_heads: int
    head_dim: int
    """Size of a head's query and key."""
    vocab_size: int
    tied_embeddings: bool
    experts: MoEConfig | None = None
    latent: MLAConfig | None = None

    def layer(self, number: int) -> Mapping[str, tuple[int, ...]]:
        """Returns the weights of that layer by name; those of experts have three sizes, the first is their number."""
        dense = self.experts is None or number < self.experts.dense_layers
        return self._dense_layer if dense else self._mixed_layer

    @property
    def features(self) -> Architecture:
        return architectures()[self.architecture]

    @property
    def block_layers(self) -> int:
        """Number of layers that MaxText scans as one block."""
        return self.features.block_layers

    @property
    def embedding(self) -> int:
        """Number of parameters of the embeddings, and of an output layer."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of all layers."""
        return sum(math.prod(shape) for _, _, shape in self._weights())

    @property
    def parameters(self) -> int:
        """Number of parameters; tied embeddings count once."""
        outer = self.embedding * (1 if self.tied_embeddings else 2) + self.hidden_size
        return outer + self.layer_parameters

    @property
    def value_dim(self) -> int:
        """Size of a head's value."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @property
    def experts_chosen(self) -> int:
        """Number of experts per token; 1 without experts."""
        return self.experts.chosen if self.experts else 1

    @property
    def matrices(self) -> int:
        """Number of weights of the matrices by which a token is multiplied, with the chosen experts alone. Embeddings
        count only as the output layer."""
        return self.embedding + sum(
            math.prod(shape[-2:]) * (self.experts_chosen if len(shape) == 3 else 1)
            for _, _, shape in self._weights()
            if len(shape) > 1
        )

    @property
    def whole_context_layers(self) -> int:
        """Number of layers without a sliding window: the last of each block."""
        return self.layers // self.block_layers

    @property
    def lora_modules(self) -> tuple[str, ...]:
        """Modules that LoRA can adapt: all linear layers, or only those of attention in a mixture of experts."""
        attention = _ATTENTION_MODULES if self.latent is None else _LATENT_MODULES
        return attention + (MLP_MODULES if self.experts is None else ())

    def lora_width(self, lora: LoraSpec | None = None) -> int:
        """Returns the inputs and outputs of all adapted layers: times the rank, the parameters of an adapter.

        ``lora`` names the modules; None, or an adapter that names none: all that LoRA can adapt.
        """
        modules = (lora and lora.target_modules) or self.lora_modules
        return sum(
            sum(shape)
            for _, name, shape in self._weights()
            if len(shape) == 2 and name.rpartition(".")[2] in modules
        )

    def sizes(self, *, weights_bytes: int = 0) -> ModelSizes:
        """Returns the sizes that determine memory and disk of the CPU stages.

        ``weights_bytes`` is the total size of the source's weight files; 0 if it is unknown or none are fetched.
        """
        largest, stacks, blocks = self.embedding, Counter[tuple[str, int]](), Counter[int]()
        for number, name, shape in self._weights():
            block, place = divmod(number, self.block_layers)
            size = math.prod(shape)
            largest = max(largest, size)
            stacks[name, place] += size
            blocks[block] += size
        return ModelSizes(
            largest_piece=largest,
            largest_stack=max(stacks.values()),
            largest_block=max(blocks.values()),
            lora_width=self.lora_width(),
            weights_bytes=weights_bytes,
        )

    def _weights(self) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        """Yields layer, name and shape of every weight of the layers."""
        for number in range(self.layers):
            for name, shape in self.layer(number).items():
                yield number, name, shape

    @cached_property
    def _dense_layer(self) -> Shapes:
        return self._shared_weights() | _gated("mlp", (self.intermediate_size, self.hidden_size))

    @cached_property
    def _mixed_layer(self) -> Shapes:
        experts, hidden = self.experts, self.hidden_size
        assert experts is not None
        shapes = self._shared_weights() | {"mlp.gate": (experts.number, hidden)}
        shapes |= {
            name: (experts.number, *shape)
            for name, shape in _gated("mlp.experts", (experts.width, hidden)).items()
        }
        if experts.shared:
            shapes |= _gated("mlp.shared_experts", (experts.shared * experts.width, hidden))
        return shapes

    def _shared_weights(self) -> Shapes:
        """Returns the weights of attention and the norms, which layers of both kinds have."""
        hidden, queries, keys = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: Shapes = {"q_proj": (queries, hidden)}
        if self.latent is None:
            shapes |= {"k_proj": (keys, hidden), "v_proj": (keys, hidden), "o_proj": (hidden, queries)}
        else:
            rank, value = self.latent.rank, self.latent.value_dim
            shapes |= {
                "kv_a_proj_with_mqa": (rank + self.latent.rope_dim, hidden),
                "kv_a_layernorm": (rank,),
                "kv_b_proj": (self.heads * (self.latent.nope_dim + value), rank),
                "o_proj": (hidden, self.heads * value),
            }
        if self.features.qkv_bias:
            shapes |= {"q_proj.bias": (queries,), "k_proj.bias": (keys,), "v_proj.bias": (keys,)}
        if self.features.qk_norm:
            shapes |= {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
        norms = ["input_layernorm", "post_attention_layernorm"]
        if self.features.post_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        return {f"self_attn.{name}": shape for name, shape in shapes.items()} | dict.fromkeys(
            norms, (hidden,)
        )


def _gated(where: str, size: tuple[int, int]) -> Shapes:
    """Returns an MLP's gate, up and down projections. ``size``: of the hidden layer, and of its input."""
    return {f"{where}.{name}": size[::-1] if name == "down_proj" else size for name in MLP_MODULES}
