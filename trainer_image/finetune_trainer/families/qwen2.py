"""Qwen2ForCausalLM: Qwen2, Qwen2.5 (Coder and Math too), QwQ, DeepSeek-R1-Distill-Qwen.

Sources: transformers' Qwen2Config and modeling file; MaxText's qwen2 block.
"""

from dataclasses import asdict

from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan

#: Qwen2Config's default for the first layer with a sliding window.
_WINDOW_LAYERS = 28


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a Qwen2 model.

    The projections of queries, keys and values always have a bias; transformers does not read ``attention_bias``.
    """
    common.refuse_unsupported_parts(config, biased_attention=True)
    size = common.dimensions(config, architecture)
    if (
        config.flag("use_sliding_window", False)
        and config.integer("max_window_layers", _WINDOW_LAYERS, minimum=0) < size.layers
    ):
        config.refuse(
            "use_sliding_window",
            f"false, or max_window_layers of at least num_hidden_layers ({size.layers})",
            "MaxText's Qwen2 attends to the whole context in every layer.",
        )
    common.layer_pattern(config, ["full_attention"] * size.layers)
    rotary = rope.single(config, default_theta=10_000.0, kinds=("default", "linear"))
    tied = config.flag("tie_word_embeddings", False)
    return ModelPlan(
        architecture=architecture,
        family=Family.QWEN2,
        model_name="qwen2.5-7b",
        overrides={
            **common.silu_decoder(config, "qwen2", size, rotary, tied=tied),
            "attention_bias": True,
        },
        **asdict(size),
        tied_embeddings=tied,
    )
