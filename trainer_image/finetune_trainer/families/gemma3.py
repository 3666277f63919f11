"""Gemma3ForCausalLM, and the text part of Gemma3ForConditionalGeneration.

Sources: transformers' Gemma3TextConfig; MaxText's gemma3 block of five local layers and one global.
"""

from dataclasses import asdict

from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan

#: Of so many consecutive layers, the last attends to the whole context and the others to a sliding window.
_PATTERN = 6


def text_config(config: Fields) -> Fields:
    """Returns the text model's settings in the config.json of an image-and-text model."""
    table = config.table("text_config")
    if table is None:
        config.refuse("text_config", "an object", "Use the config.json that the model was published with.")
    if config.has("tie_word_embeddings") and not config.flag("tie_word_embeddings", True):
        config.refuse(
            "tie_word_embeddings", "true or absent", "MaxText's Gemma shares input and output embeddings."
        )
    common.refuse_unsupported_parts(config)
    return table


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a Gemma 3 text model.

    Conversion folds sqrt(hidden_size) into the embeddings and adds 1 to the norms' weights; MaxText scales queries at
    run time. Raises ``StageError`` 64 for a configuration that MaxText's block does not compute.
    """
    common.refuse_unsupported_parts(config)
    config.must_be_off("use_bidirectional_attention", "MaxText's Gemma 3 attends to earlier tokens only.")
    common.required_epsilon(config, 1e-6, "MaxText's Gemma layers have this value built in.")
    size = common.dimensions(config, architecture)
    if config.integer("sliding_window_pattern", _PATTERN) != _PATTERN:
        config.refuse("sliding_window_pattern", str(_PATTERN), "MaxText has this pattern built in.")
    common.layer_pattern(
        config, ["sliding_attention" if (i + 1) % _PATTERN else "full_attention" for i in range(size.layers)]
    )
    global_rope, local_rope = rope.by_attention(config, default_global=1_000_000.0, default_local=10_000.0)
    if not config.flag("tie_word_embeddings", True):
        config.refuse(
            "tie_word_embeddings", "true or absent", "MaxText's Gemma shares input and output embeddings."
        )
    return ModelPlan(
        architecture=architecture,
        family=Family.GEMMA3,
        model_name=_name_by_query_scale(config, size),
        overrides={
            **common.FIXED,
            **size.overrides(maxtext_layers=size.layers),
            "decoder_block": "gemma3",
            "mlp_activations": common.activations(config, "hidden_activation", "gelu_pytorch_tanh"),
            "normalization_layer_epsilon": 1e-6,
            "rope_type": "default",
            "rope_max_timescale": global_rope.theta,
            "local_rope_max_timescale": local_rope.theta,
            "rope_linear_scaling_factor": global_rope.linear,
            "sliding_window_size": config.integer("sliding_window", 4096),
            "attn_logits_soft_cap": config.optional_number("attn_logit_softcapping", None) or 0.0,
            "final_logits_soft_cap": config.optional_number("final_logit_softcapping", None) or 0.0,
            "use_qk_norm": True,
            "use_post_attn_norm": True,
            "use_post_ffw_norm": True,
            "logits_via_embedding": True,
            # undoes the sqrt(hidden_size) that conversion folds into the shared table
            "normalize_embedding_logits": True,
        },
        **asdict(size),
        tied_embeddings=True,
        embedding_scale=size.hidden_size**0.5,
        norm_offset=1.0,
    )


def _name_by_query_scale(config: Fields, size: common.Dimensions) -> str:
    """Returns the catalogue name with this model's query scale.

    MaxText derives the scale from the name: 1/sqrt(width // heads) for 27b, 1/sqrt(head_dim) for all others.
    """
    scalar = config.number("query_pre_attn_scalar", 256.0)
    if scalar == size.head_dim:
        return "gemma3-4b"
    if scalar == size.hidden_size // size.heads:
        return "gemma3-27b"
    return config.refuse(
        "query_pre_attn_scalar",
        f"head_dim ({size.head_dim}) or hidden_size // num_attention_heads ({size.hidden_size // size.heads})",
        "MaxText's Gemma 3 supports these two query scales.",
    )
