"""LlamaForCausalLM: Llama 1 to 3, SmolLM2 and others of that shape.

Sources: transformers' LlamaConfig; MaxText's llama2 block.
"""

from dataclasses import asdict

from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a Llama model.

    MaxText's conversion hooks store queries and keys in interleaved order and fold 1/sqrt(head_dim) into the query
    weights.
    """
    common.refuse_unsupported_parts(config)
    size = common.dimensions(config, architecture)
    rotary = rope.single(config, default_theta=10_000.0)
    tied = config.flag("tie_word_embeddings", False)
    return ModelPlan(
        architecture=architecture,
        family=Family.LLAMA,
        model_name="llama3.1-8b",
        overrides={
            **common.FIXED,
            **size.overrides(maxtext_layers=size.layers),
            "decoder_block": "llama2",
            "mlp_activations": common.activations(config, "hidden_act", "silu"),
            "normalization_layer_epsilon": config.number("rms_norm_eps", 1e-6),
            "rope_type": "llama3.1",
            "rope_max_timescale": rotary.theta,
            # MaxText's scaling has fixed factors, which the engine replaces by this model's
            "rope_use_scale": rotary.llama3 is not None or rotary.linear != 1.0,
            "logits_via_embedding": tied,
        },
        **asdict(size),
        tied_embeddings=tied,
        folded_query_scalar=size.head_dim,
        llama3_scaling=rotary.llama3,
        linear_scaling=rotary.linear,
    )
