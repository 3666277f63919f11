"""Qwen3MoeForCausalLM. Sources: transformers' Qwen3MoeConfig, MaxText's qwen3_moe block."""

from dataclasses import replace

from finetune_trainer.families import common, qwen3
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a Qwen3 model with experts in every layer.

    The file's ``intermediate_size`` is ignored: it applies to dense layers, which the model does not have.
    """
    config.must_be_off("mlp_only_layers", "MaxText's Qwen3 MoE has experts in every layer.")
    if config.integer("decoder_sparse_step", 1) != 1:
        config.refuse("decoder_sparse_step", "1", "MaxText's Qwen3 MoE has experts in every layer.")
    if not config.flag("norm_topk_prob", False):
        config.refuse(
            "norm_topk_prob", "true", "MaxText weights the selected experts differently: its logits differ."
        )
    made = qwen3.plan(config, architecture)
    experts = common.experts(config, architecture)
    return replace(
        made,
        family=Family.QWEN3_MOE,
        model_name="qwen3-30b-a3b",
        intermediate_size=experts.width,
        experts=experts,
        overrides={
            **made.overrides,
            **common.expert_overrides(experts),
            "decoder_block": "qwen3_moe",
            "base_mlp_dim": experts.width,
            "norm_topk_prob": True,
        },
    )
