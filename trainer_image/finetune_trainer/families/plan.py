"""The plan of a model: its config.json translated into MaxText's settings and tensor shapes."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError

_Shapes = dict[str, tuple[int, ...]]


class Family(StrEnum):
    """Models that share MaxText's decoder block and tensor names."""

    LLAMA = "llama"
    MIXTRAL = "mixtral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3-moe"
    GEMMA2 = "gemma2"
    GEMMA3 = "gemma3"
    DEEPSEEK2 = "deepseek2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """The frequency scaling of Llama 3.1 and 3.2 (transformers' rope type ``llama3``)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


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


#: Hugging Face module of a layer that contains the router and experts, and the names of the experts' gate, up and down
#: projections.
_EXPERT_NAMES: Mapping[Family, tuple[str, tuple[str, str, str]]] = {
    Family.MIXTRAL: ("block_sparse_moe", ("w1", "w3", "w2")),
    Family.QWEN3_MOE: ("mlp", ("gate_proj", "up_proj", "down_proj")),
    Family.DEEPSEEK2: ("mlp", ("gate_proj", "up_proj", "down_proj")),
}
#: Number of layers that MaxText scans as one block, for families with more than one.
_BLOCK_LAYERS: Mapping[Family, int] = {Family.GEMMA2: 2, Family.GEMMA3: 6}
#: Hugging Face module name -> last part of MaxText's module path, the same for all families.
LORA_MODULES: Mapping[str, str] = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "kv_a_proj_with_mqa": "wkv_a",
    "kv_b_proj": "wkv_b",
    "o_proj": "out",
    "gate_proj": "wi_0",
    "up_proj": "wi_1",
    "down_proj": "wo",
}
_MLP_MODULES = ("gate_proj", "up_proj", "down_proj")
_ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
_LATENT_MODULES = ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Everything that config.json determines, resolved.

    ``model_name`` only selects MaxText's code path and tensor names: ``overrides`` replaces every number of that
    catalogue entry. Values for which MaxText has no setting have fields of their own (``folded_query_scalar``,
    ``llama3_scaling``, ``linear_scaling``), which ``engine`` and ``conversion`` apply.
    """

    architecture: str
    family: Family
    model_name: str
    overrides: Mapping[str, object]
    hidden_size: int
    intermediate_size: int
    layers: int
    """Number of layers as config.json counts them; MaxText counts pairs of layers for Gemma 2."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    tied_embeddings: bool
    context_field: str = "max_position_embeddings"
    """The key of config.json that sets ``context_length``."""
    folded_query_scalar: float | None = None
    """Conversion divides the query weights by its square root. None if MaxText scales queries at run time."""
    embedding_scale: float = 1.0
    """Factor by which conversion multiplies the embedding table (Gemma: sqrt(hidden size))."""
    norm_offset: float = 0.0
    """Value that conversion adds to the norms' weights (Gemma: 1)."""
    qk_norm: bool = False
    qkv_bias: bool = False
    """Whether the projections of queries, keys and values have a bias (Qwen2)."""
    post_norms: bool = False
    """Whether norms also follow attention and MLP (Gemma)."""
    llama3_scaling: Llama3Scaling | None = None
    linear_scaling: float = 1.0
    """Linear RoPE factor of a Llama model, for which MaxText has no setting."""
    experts: MoEConfig | None = None
    latent: MLAConfig | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the text model's weights as in a plain ``…ForCausalLM`` checkpoint."""
        hidden = self.hidden_size
        norms: _Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        if self.post_norms:
            norms |= {
                "pre_feedforward_layernorm.weight": (hidden,),
                "post_feedforward_layernorm.weight": (hidden,),
            }
        shared = self._attention() | norms
        dense = shared | _gated("mlp", self.intermediate_size, hidden)
        dense_layers, mixed = self.layers, shared
        if self.experts is not None:
            dense_layers, mixed = self.experts.dense_layers, shared | self._mixture(self.experts)
        named: _Shapes = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        for i in range(self.layers):
            layer = dense if i < dense_layers else mixed
            named |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        if not self.tied_embeddings:
            named["lm_head.weight"] = (self.vocab_size, hidden)
        return named

    def _attention(self) -> _Shapes:
        hidden, queries, keys = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        named: _Shapes = {"q_proj.weight": (queries, hidden)}
        if self.latent is None:
            named |= {
                "k_proj.weight": (keys, hidden),
                "v_proj.weight": (keys, hidden),
                "o_proj.weight": (hidden, queries),
            }
        else:
            rank, values = self.latent.rank, self.latent.value_dim
            named |= {
                "kv_a_proj_with_mqa.weight": (rank + self.latent.rope_dim, hidden),
                "kv_a_layernorm.weight": (rank,),
                "kv_b_proj.weight": (self.heads * (self.latent.nope_dim + values), rank),
                "o_proj.weight": (hidden, self.heads * values),
            }
        if self.qkv_bias:
            named |= {"q_proj.bias": (queries,), "k_proj.bias": (keys,), "v_proj.bias": (keys,)}
        if self.qk_norm:
            named |= {"q_norm.weight": (self.head_dim,), "k_norm.weight": (self.head_dim,)}
        return {f"self_attn.{name}": shape for name, shape in named.items()}

    def _mixture(self, experts: MoEConfig) -> _Shapes:
        hidden = self.hidden_size
        where, names = _EXPERT_NAMES[self.family]
        named: _Shapes = {f"{where}.gate.weight": (experts.number, hidden)}
        for expert in range(experts.number):
            named |= _gated(f"{where}.experts.{expert}", experts.width, hidden, names)
        if experts.shared:
            named |= _gated(f"{where}.shared_experts", experts.shared * experts.width, hidden)
        return named

    @property
    def parameters(self) -> int:
        """Number of the text model's parameters; tied embeddings count once."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    @property
    def block_layers(self) -> int:
        """Number of layers that MaxText scans as one block."""
        return _BLOCK_LAYERS.get(self.family, 1)

    @property
    def windowed_layers(self) -> int:
        """Number of layers with a sliding window: all but the last of each block."""
        return self.layers - self.layers // self.block_layers

    def settings(self) -> dict[str, object]:
        """Settings for ``pyconfig.initialize(argv, **settings)``; the caller adds dtypes and layer scanning."""
        return {"model_name": self.model_name, "override_model_config": True, **self.overrides}

    def arguments(self) -> list[str]:
        """``settings`` as command-line arguments for MaxText."""
        return [f"{key}={_word(value)}" for key, value in self.settings().items()]

    @property
    def lora_modules(self) -> tuple[str, ...]:
        """Modules that LoRA can adapt: all linear layers, or only those of attention in a mixture of experts."""
        attention = _ATTENTION_MODULES if self.latent is None else _LATENT_MODULES
        return attention + (_MLP_MODULES if self.experts is None else ())

    def lora_module_path(self, target_modules: Sequence[str] | None = None) -> str:
        """MaxText's regular expression for the modules to adapt.

        ``target_modules`` are Hugging Face names; None selects all of ``lora_modules``. Raises ``StageError`` 64 for
        an empty list or a module that LoRA cannot adapt.
        """
        chosen = self.lora_modules if target_modules is None else tuple(dict.fromkeys(target_modules))
        unknown = [name for name in chosen if name not in self.lora_modules]
        if unknown or not chosen:
            raise StageError(
                ExitCode.BAD_REQUEST,
                "UnknownLoraModule",
                "LoRA can adapt the linear layers of attention and MLP only"
                if self.experts is None
                else "in a mixture of experts, LoRA can adapt the linear layers of attention only",
                where="spec.method.lora.targetModules",
                actual=", ".join(unknown) or "an empty list",
                expected=f"some of {', '.join(self.lora_modules)}",
                fix="Choose modules from that list, or remove targetModules to adapt them all.",
            )
        return module_path(chosen)


def module_path(modules: Iterable[str]) -> str:
    """MaxText's regular expression for these modules of every layer. ``modules`` are keys of ``LORA_MODULES``."""
    chosen = tuple(modules)
    attention = [LORA_MODULES[name] for name in chosen if name not in _MLP_MODULES]
    mlp = [LORA_MODULES[name] for name in chosen if name in _MLP_MODULES]
    parts = []
    if attention:
        parts.append(rf"self_attention[a-z_]*/({'|'.join(attention)})")
    if mlp:
        parts.append(rf"mlp[a-z_]*/({'|'.join(mlp)})")
    return f"decoder/.*({'|'.join(parts)})"


def _gated(where: str, inner: int, hidden: int, names: tuple[str, str, str] = _MLP_MODULES) -> _Shapes:
    """Names and shapes of an MLP's gate, up and down projections."""
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    return {f"{where}.{name}.weight": shape for name, shape in zip(names, shapes, strict=True)}


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list) else str(value)
