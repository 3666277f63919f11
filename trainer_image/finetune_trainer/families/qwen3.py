"""Qwen3ForCausalLM (dense). Sources: transformers' Qwen3Config, MaxText's qwen3 block."""

from dataclasses import asdict

from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a dense Qwen3 model.

    Queries and keys are normalized per head; MaxText scales queries at run time. Raises ``StageError`` 64 for a
    configuration that MaxText's block does not compute.
    """
    common.refuse_unsupported_parts(config)
    config.must_be_off("use_sliding_window", "MaxText's Qwen3 attends to the whole context in every layer.")
    size = common.dimensions(config, architecture)
    common.layer_pattern(config, ["full_attention"] * size.layers)
    rotary = rope.single(config, default_theta=10_000.0, kinds=("default", "linear"))
    tied = config.flag("tie_word_embeddings", False)
    return ModelPlan(
        architecture=architecture,
        family=Family.QWEN3,
        model_name="qwen3-0.6b",
        overrides={
            **common.silu_decoder(config, "qwen3", size, rotary, tied=tied),
            "use_qk_norm": True,
        },
        **asdict(size),
        tied_embeddings=tied,
    )
