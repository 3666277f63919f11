"""Gemma2ForCausalLM.

Sources: transformers' Gemma2Config; MaxText's gemma2 block, which contains one local and one global layer.
"""

from dataclasses import asdict

from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a Gemma 2 model.

    Conversion folds the query scale into the query weights and sqrt(hidden_size) into the embeddings, and adds 1 to the
    norms' weights. Raises ``StageError`` 64 for a configuration that MaxText's block does not compute.
    """
    common.refuse_unsupported_parts(config)
    config.must_be_off("use_bidirectional_attention", "MaxText's Gemma 2 attends to earlier tokens only.")
    common.required_epsilon(config, 1e-6, "MaxText's Gemma layers have this value built in.")
    size = common.dimensions(config, architecture)
    if size.layers % 2:
        config.refuse("num_hidden_layers", "an even number", "MaxText builds Gemma 2 from pairs of layers.")
    common.layer_pattern(config, ["sliding_attention", "full_attention"] * (size.layers // 2))
    rotary = rope.single(config, default_theta=10_000.0, kinds=("default", "linear"))
    if not config.flag("tie_word_embeddings", True):
        config.refuse(
            "tie_word_embeddings", "true or absent", "MaxText's Gemma shares input and output embeddings."
        )
    return ModelPlan(
        architecture=architecture,
        family=Family.GEMMA2,
        model_name="gemma2-2b",
        overrides={
            **common.FIXED,
            **size.overrides(maxtext_layers=size.layers // 2),
            "decoder_block": "gemma2",
            "mlp_activations": common.activations(config, "hidden_activation", "gelu_pytorch_tanh"),
            "normalization_layer_epsilon": 1e-6,
            "rope_type": "default",
            "rope_max_timescale": rotary.theta,
            "rope_linear_scaling_factor": rotary.linear,
            "sliding_window_size": config.integer("sliding_window", 4096),
            "attn_logits_soft_cap": config.optional_number("attn_logit_softcapping", 50.0) or 0.0,
            "final_logits_soft_cap": config.optional_number("final_logit_softcapping", 30.0) or 0.0,
            "use_post_attn_norm": True,
            "use_post_ffw_norm": True,
            "logits_via_embedding": True,
            # undoes the sqrt(hidden_size) that conversion folds into the shared table
            "normalize_embedding_logits": True,
        },
        **asdict(size),
        tied_embeddings=True,
        folded_query_scalar=config.number("query_pre_attn_scalar", 256.0),
        embedding_scale=size.hidden_size**0.5,
        norm_offset=1.0,
    )
