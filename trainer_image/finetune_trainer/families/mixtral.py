"""MixtralForCausalLM. Sources: transformers' MixtralConfig, MaxText's mixtral block."""

from dataclasses import asdict

from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan

DEFAULTS = common.Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=None,
    context_length=131072,
    tied_embeddings=False,
)


def plan(config: Fields, architecture: str) -> ModelPlan:
    """The chosen experts' weights are softmaxed among themselves; conversion folds 1/sqrt(head_dim) into queries."""
    common.refuse_foreign_parts(config)
    config.must_be_off("sliding_window", "MaxText's Mixtral attends to the whole context.")
    size = common.dimensions(config, DEFAULTS)
    experts = common.experts(config, "num_local_experts", 8, 2, size.intermediate_size)
    rotary = rope.single(config, default_theta=1_000_000.0, kinds=("default",))
    tied = config.flag("tie_word_embeddings", DEFAULTS.tied_embeddings)
    return ModelPlan(
        architecture=architecture,
        family=Family.MIXTRAL,
        model_name="mixtral-8x7b",
        overrides={
            **common.FIXED,
            **size.overrides(maxtext_layers=size.layers),
            **common.expert_overrides(experts),
            "decoder_block": "mixtral",
            "mlp_activations": common.activations(config, "hidden_act", "silu"),
            "normalization_layer_epsilon": config.number("rms_norm_eps", 1e-5),
            "rope_type": "default",
            "rope_max_timescale": rotary.theta,
            "logits_via_embedding": tied,
        },
        **asdict(size),
        tied_embeddings=tied,
        folded_query_scalar=size.head_dim,
        experts=experts,
    )
