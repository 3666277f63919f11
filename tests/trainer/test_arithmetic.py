"""Counts of operations for published models, compared with sums computed by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_trainer import families
from finetune_trainer.training.flops import forward_flops, step_flops
from finetune_trainer.training.utilization import ideal_step_seconds
from tests.trainer.requests import method as method_of
from tests.trainer.requests import request

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
#: Computed by hand: layers x (attention + MLP) + head.
QWEN3_8B_WEIGHTS = 36 * (4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 12288) + 4096 * 151936
MIXTRAL_WEIGHTS = 32 * (4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 14336 * 2 + 8 * 4096) + 4096 * 32000


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (QWEN3_8B, QWEN3_8B_WEIGHTS),
        (QWEN3_8B | {"tie_word_embeddings": True}, QWEN3_8B_WEIGHTS),
        (MIXTRAL, MIXTRAL_WEIGHTS),
    ],
)
def test_a_pass_takes_two_operations_for_each_weight_that_a_token_meets(
    config: dict[str, Any], weights: int
) -> None:
    one = forward_flops(families.resolve(config), rows=3, length=1)
    attention = 2 * config["num_hidden_layers"] * 4096
    assert one == 3 * (2 * weights + attention)


def test_attention_grows_with_the_square_of_the_length() -> None:
    plan = families.resolve(QWEN3_8B)
    in_one, in_two = (forward_flops(plan, rows=rows, length=8192 // rows) for rows in (1, 2))
    assert in_one - in_two == 2 * 36 * 4096 * (8192**2 - 2 * 4096**2)


def test_latent_attention_has_narrower_values() -> None:
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    made: dict[str, Any] = {
        "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 10944,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, **latent,
    }  # fmt: skip
    plan = families.resolve(made)
    in_one, in_two = (forward_flops(plan, rows=rows, length=8192 // rows) for rows in (1, 2))
    assert in_one - in_two == 27 * 16 * (192 + 128) * (8192**2 - 2 * 4096**2)


@pytest.mark.parametrize(("name", "whole"), [("gemma-3-1b-it", 4), ("gemma-2-2b-it", 13)])
def test_attention_in_a_window_is_to_the_tokens_in_it(name: str, whole: int) -> None:
    """Gemma 3's last two layers are of an incomplete block, and have a window."""
    config = json.loads((Path(__file__).parent / "published.json").read_text())[name]["config"]
    plan = families.resolve(config)
    window, long = config["sliding_window"], 32768
    in_one, in_two = (forward_flops(plan, rows=rows, length=long // rows) for rows in (1, 2))
    heads = config["num_attention_heads"] * 2 * config["head_dim"]
    outside = (long - window) ** 2 - 2 * (long // 2 - window) ** 2
    assert in_one - in_two == heads * (
        config["num_hidden_layers"] * (long**2 // 2) - (config["num_hidden_layers"] - whole) * outside
    )


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ({}, 3.0),
        # the gradients of frozen weights are not computed; attention itself has no weights
        ({"lora": {"rank": 1, "alpha": 1.0, "target_modules": ["q_proj"]}}, 2.0),
        ({"type": "ORPO", "max_prompt_length": 8}, 3.0),
        ({"type": "DPO", "max_prompt_length": 8}, 4.0),
        ({"type": "DPO", "max_prompt_length": 8, "lora": {"rank": 1, "alpha": 1.0}}, 3.0),
    ],
)
def test_a_step_is_so_many_passes(method: dict[str, Any], passes: float) -> None:
    plan = families.resolve(QWEN3_8B)
    step = step_flops(plan, method_of(method), rows=2, length=16)
    assert step == pytest.approx(passes * forward_flops(plan, rows=2, length=16), rel=2e-3)


def test_a_wide_adapter_counts() -> None:
    plan = families.resolve(QWEN3_8B)
    narrow, wide = (
        step_flops(plan, method_of({"lora": {"rank": rank, "alpha": 1.0}}), rows=1, length=1)
        for rank in (1, 257)
    )
    attention, mlp = 2 * (4096 + 4096) + 2 * (4096 + 1024), 3 * (4096 + 12288)
    assert wide - narrow == 6 * 256 * 36 * (attention + mlp)


@pytest.mark.parametrize(
    ("kinds", "rate"),
    [
        (["TPU v5 lite"] * 4, 4 * 197e12),
        (["TPU v5"] * 4, 4 * 459e12),
        (["TPU v6 lite"] * 16, 16 * 918e12),
        (["TPU7x"] * 2, 2307e12),  # two devices of one chip
        (["cpu"], None),
        (["TPU v6 lite", "TPU v99"], None),
    ],
)
@pytest.mark.parametrize(("method", "rows"), [({}, 8), ({"type": "ORPO", "max_prompt_length": 8}, 16)])
def test_a_step_at_the_chips_full_rate(
    kinds: list[str], rate: float | None, method: dict[str, Any], rows: int
) -> None:
    plan, made = families.resolve(QWEN3_8B), request(Path("/run"), "Train", method=method)
    needed = step_flops(plan, made.method, rows=rows, length=64)
    assert ideal_step_seconds(plan, made, kinds) == (None if rate is None else pytest.approx(needed / rate))
