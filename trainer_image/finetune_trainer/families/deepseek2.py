"""DeepseekV2ForCausalLM: DeepSeek-V2-Lite and others with full-rank queries and experts in one group.

Sources: transformers' DeepseekV2Config; the modeling code published with the models, which scales attention by yarn's
mscale (transformers 5.12 does not); MaxText's deepseek block.
"""

from dataclasses import asdict, replace

from finetune_contract.text_model import MLAConfig, architectures
from finetune_trainer.families import common, rope
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, ModelPlan

_EPSILON = 1e-6
#: Values of ``auto_map`` in the models that DeepSeek published.
_PUBLISHED = frozenset(
    {
        "configuration_deepseek.DeepseekV2Config",
        "modeling_deepseek.DeepseekV2Model",
        "modeling_deepseek.DeepseekV2ForCausalLM",
    }
)


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a DeepSeek-V2 model.

    MaxText scales queries at run time. The chosen experts' weights are not normalized, only multiplied by
    ``routed_scaling_factor``.
    """
    common.refuse_unsupported_parts(config, published=_PUBLISHED)
    common.required_epsilon(config, _EPSILON, "The norm of the latent vector has this value built in.")
    _refuse_other_routing(config)
    if config.has("q_lora_rank"):
        config.refuse(
            "q_lora_rank", "null", "Only models without a query LoRA are verified, such as DeepSeek-V2-Lite."
        )
    size = common.dimensions(config, architecture)
    if size.kv_heads != size.heads:
        config.refuse("num_key_value_heads", f"num_attention_heads ({size.heads})", "Correct config.json.")
    default = architectures()[architecture].defaults
    latent = MLAConfig(
        rank=config.integer("kv_lora_rank", default["kv_lora_rank"]),
        nope_dim=config.integer("qk_nope_head_dim", default["qk_nope_head_dim"]),
        rope_dim=config.integer("qk_rope_head_dim", default["qk_rope_head_dim"]),
        value_dim=config.integer("v_head_dim", default["v_head_dim"]),
    )
    if latent.rope_dim % 2:
        config.refuse("qk_rope_head_dim", "an even number", "Rotary embeddings turn pairs of dimensions.")
    size = replace(size, head_dim=latent.nope_dim + latent.rope_dim)
    experts = replace(
        common.experts(config, architecture),
        shared=config.integer("n_shared_experts", default["n_shared_experts"]),
        dense_layers=config.integer("first_k_dense_replace", 0),
    )
    if experts.dense_layers >= size.layers:
        config.refuse(
            "first_k_dense_replace", f"less than num_hidden_layers ({size.layers})", "Correct config.json."
        )
    tied = config.flag("tie_word_embeddings", False)
    return ModelPlan(
        architecture=architecture,
        family=Family.DEEPSEEK2,
        model_name="deepseek2-16b",
        overrides={
            **common.FIXED,
            **size.overrides(maxtext_layers=size.layers),
            **common.expert_overrides(experts),
            "shared_experts": experts.shared,
            "first_num_dense_layers": experts.dense_layers,
            "routed_scaling_factor": config.number("routed_scaling_factor", 1.0),
            "routed_score_func": "softmax",
            "routed_bias": False,
            "decoder_block": "deepseek",
            "mlp_activations": common.activations(config, "hidden_act", "silu"),
            "normalization_layer_epsilon": _EPSILON,
            "attention_type": "mla",
            "q_lora_rank": 0,
            "kv_lora_rank": latent.rank,
            "qk_nope_head_dim": latent.nope_dim,
            "qk_rope_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
            **_rope(config, size.context_length),
            "logits_via_embedding": tied,
        },
        **asdict(size),
        tied_embeddings=tied,
        experts=experts,
        latent=latent,
    )


def _refuse_other_routing(config: Fields) -> None:
    """Rejects routing other than a greedy choice among all experts by the softmax of their scores."""
    if config.text("topk_method", "greedy") != "greedy":
        config.refuse("topk_method", "greedy", "MaxText chooses DeepSeek 2's experts from one group.")
    if config.text("scoring_func", "softmax") != "softmax":
        config.refuse("scoring_func", "softmax", "DeepSeek 2 scores experts this way.")
    config.must_be_off("norm_topk_prob", "MaxText does not normalize the weights of DeepSeek 2's experts.")
    if config.integer("moe_layer_freq", 1) != 1:
        config.refuse("moe_layer_freq", "1", "MaxText has experts in every layer after the dense ones.")


def _rope(config: Fields, context: int) -> dict[str, object]:
    """Returns MaxText's settings of the rotary embedding, always of type yarn.

    The embedding rotates adjacent dimensions, which MaxText implements only for yarn. Without scaling, the yarn factor
    is 1, which has no effect.
    """
    rotary = rope.single(config, default_theta=10_000.0, kinds=("default", "yarn"))
    yarn = rotary.yarn or rope.Yarn(
        factor=1, original_context=context, beta_fast=32, beta_slow=1, mscale=1.0, truncate=True
    )
    return {
        "rope_type": "yarn",
        "rope_max_timescale": rotary.theta,
        "rope_factor": yarn.factor,
        "max_position_embeddings": context,
        "original_max_position_embeddings": yarn.original_context,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "mscale": yarn.mscale,
        "rope_truncate": yarn.truncate,
        "rope_interleave": True,
        "rope_attention_scaling": False,
    }
