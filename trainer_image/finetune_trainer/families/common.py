"""Parts of config.json that all model families read in the same way."""

from collections.abc import Mapping
from dataclasses import dataclass

from finetune_contract.text_model import MoEConfig, architectures
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.rope import Rope

#: transformers' activation name -> MaxText's (jax.nn's gelu is the tanh approximation).
_ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}


#: Far above any published model. Bounds the number of tensor names that a plan enumerates.
_MOST_LAYERS, _MOST_EXPERTS = 1000, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """A model's sizes as config.json defines them."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int

    def overrides(self, *, maxtext_layers: int) -> dict[str, object]:
        """Returns MaxText's settings. ``maxtext_layers`` is the number of layers as MaxText counts them."""
        return {
            "base_emb_dim": self.hidden_size,
            "base_mlp_dim": self.intermediate_size,
            "base_num_decoder_layers": maxtext_layers,
            "base_num_query_heads": self.heads,
            "base_num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            # not padded: padding rows would enter the softmax and change every loss
            "vocab_size": self.vocab_size,
        }


#: Settings that all families share; they override those of MaxText's base configuration files.
FIXED: Mapping[str, object] = {
    "attention_bias": False,
    "enable_dropout": False,
    "use_multimodal": False,
    "tokenizer_type": "huggingface",
    # with tied embeddings MaxText's default divides the logits by sqrt(width), which is correct only for Gemma
    "normalize_embedding_logits": False,
}


def silu_decoder(
    config: Fields, block: str, size: Dimensions, rotary: Rope, *, tied: bool, epsilon: float = 1e-6
) -> dict[str, object]:
    """Returns MaxText's settings of a decoder with SiLU and plain rotary embeddings.

    ``block`` is MaxText's name of the decoder block; ``epsilon`` is the norms' epsilon if the file omits it.
    """
    return {
        **FIXED,
        **size.overrides(maxtext_layers=size.layers),
        "decoder_block": block,
        "mlp_activations": activations(config, "hidden_act", "silu"),
        "normalization_layer_epsilon": config.number("rms_norm_eps", epsilon),
        "rope_type": "default",
        "rope_max_timescale": rotary.theta,
        "rope_linear_scaling_factor": rotary.linear,
        "logits_via_embedding": tied,
    }


def dimensions(config: Fields, architecture: str) -> Dimensions:
    """Returns the model's sizes, with transformers' defaults for omitted keys."""
    default = architectures()[architecture].defaults
    hidden = config.integer("hidden_size", default["hidden_size"])
    heads = config.integer("num_attention_heads", default["num_attention_heads"])
    kv_heads = config.integer("num_key_value_heads", default.get("num_key_value_heads", heads))
    if "head_dim" not in default and not config.has("head_dim") and hidden % heads:
        config.refuse(
            "hidden_size", f"a multiple of num_attention_heads ({heads}), or head_dim given", "Add head_dim."
        )
    head_dim = config.integer("head_dim", default.get("head_dim", max(1, hidden // heads)))
    if heads % kv_heads:
        config.refuse(
            "num_key_value_heads", f"a divisor of num_attention_heads ({heads})", "Correct config.json."
        )
    if head_dim % 2:
        config.refuse("head_dim", "an even number", "Rotary embeddings turn pairs of dimensions.")
    return Dimensions(
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size", default["intermediate_size"]),
        layers=config.integer("num_hidden_layers", default["num_hidden_layers"], maximum=_MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size", default["vocab_size"]),
        context_length=config.integer("max_position_embeddings", default["max_position_embeddings"]),
    )


def experts(config: Fields, architecture: str) -> MoEConfig:
    """Returns the configuration of a layer's experts, with transformers' defaults for omitted keys."""
    known = architectures()[architecture]
    default, key, width = known.defaults, str(known.experts_key), known.expert_width_key
    found = MoEConfig(
        number=config.integer(key, default[key], minimum=2, maximum=_MOST_EXPERTS),
        chosen=config.integer("num_experts_per_tok", default["num_experts_per_tok"]),
        width=config.integer(width, default[width]),
    )
    if found.chosen > found.number:
        config.refuse("num_experts_per_tok", f"at most {key} ({found.number})", "Correct config.json.")
    return found


def expert_overrides(experts: MoEConfig) -> dict[str, object]:
    """Returns MaxText's settings for experts, without a load balancing loss, as the published models compute it."""
    return {
        "num_experts": experts.number,
        "num_experts_per_tok": experts.chosen,
        "base_moe_mlp_dim": experts.width,
        "load_balance_loss_weight": 0.0,
        "capacity_factor": -1.0,  # no tokens are dropped
    }


def activations(config: Fields, key: str, default: str) -> list[str]:
    """Returns MaxText's ``mlp_activations`` of a gated MLP."""
    name = config.text(key, default)
    if name not in _ACTIVATIONS:
        config.refuse(key, f"one of {', '.join(_ACTIVATIONS)}", "Use a model with such an activation.")
    return [_ACTIVATIONS[name], "linear"]


def refuse_unsupported_parts(
    config: Fields, *, published: frozenset[str] = frozenset(), biased_attention: bool = False
) -> None:
    """Rejects settings that add weights to the architecture or change its function.

    ``published`` names the classes of the modeling code that the architecture was published with and the plan follows;
    the code itself is never run. ``biased_attention`` is true if the plan includes the biases that ``attention_bias``
    controls.
    """
    if not biased_attention:
        config.must_be_off("attention_bias", "MaxText's decoder for this family has no bias in attention.")
    config.must_be_off("mlp_bias", "MaxText's decoder for this family has no bias in the MLP.")
    config.must_be_off("quantization_config", "Start from the unquantized weights.")
    code = config.get("auto_map")
    if not (isinstance(code, Mapping) and published.issuperset(map(str, code.values()))):
        config.must_be_off(
            "auto_map", "The folder contains its own modeling code, which MaxText does not run."
        )
    if config.has("pretraining_tp") and config.integer("pretraining_tp") != 1:
        config.refuse(
            "pretraining_tp", "1 or absent", "Set it to 1: it only reproduces a different order of summation."
        )


def required_epsilon(config: Fields, expected: float, why: str) -> None:
    """Rejects an epsilon of the norms other than ``expected``."""
    if config.number("rms_norm_eps", expected) != expected:
        config.refuse("rms_norm_eps", f"{expected:g}", why)


def layer_pattern(config: Fields, expected: list[str]) -> None:
    """Rejects ``layer_types`` that differ from the pattern built into MaxText."""
    given = config.get("layer_types")
    if given is not None and given != expected:
        shown = ", ".join(expected[:7]) + (", …" if len(expected) > 7 else "")
        config.refuse(
            "layer_types", f"{len(expected)} entries: {shown}", "MaxText has this pattern built in."
        )
