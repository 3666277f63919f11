"""MixtralForCausalLM. Sources: transformers' MixtralConfig, MaxText's mixtral block."""

from dataclasses import asdict

from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a Mixtral model.

    The softmax of the expert weights covers only the chosen experts. Conversion folds 1/sqrt(head_dim) into the query
    weights. Raises ``StageError`` 64 for a configuration that MaxText's block does not compute.
    """
    common.refuse_unsupported_parts(config)
    config.must_be_off("sliding_window", "MaxText's Mixtral attends to the whole context.")
    size = common.dimensions(config, architecture)
    experts = common.experts(config, architecture)
    rotary = rope.single(config, default_theta=1_000_000.0, kinds=("default",))
    tied = config.flag("tie_word_embeddings", False)
    return ModelPlan(
        architecture=architecture,
        family=Family.MIXTRAL,
        model_name="mixtral-8x7b",
        overrides={
            **common.silu_decoder(config, "mixtral", size, rotary, tied=tied, epsilon=1e-5),
            **common.expert_overrides(experts),
        },
        **asdict(size),
        tied_embeddings=tied,
        folded_query_scalar=size.head_dim,
        experts=experts,
    )
