"""Remarks on hyperparameters: learning rates, warm-up and weights that are rounded."""

from typing import Any

import pytest

from finetune_trainer.training import remarks
from tests.trainer.requests import hyperparameters
from tests.trainer.requests import method as method_of

PAIRS = {"type": "DPO", "max_prompt_length": 8}
LORA = {"lora": {"rank": 8, "alpha": 16.0}}


@pytest.mark.parametrize(
    ("rate", "method", "optimizer", "parameters", "told"),
    [
        (2e-5, {}, "AdamW", 8e9, None),
        (2e-4, {}, "AdamW", 8e9, "SFT of all weights (1e-06 to 0.0001): the model may forget or diverge"),
        (1e-7, {}, "AdamW", 8e9, "may learn very little"),
        (2e-4, LORA, "AdamW", 8e9, None),
        (1e-6, LORA, "AdamW", 8e9, "SFT with LoRA"),
        (5e-7, PAIRS, "AdamW", 8e9, None),
        (2e-5, PAIRS, "AdamW", 8e9, "DPO of all weights"),
        (2e-5, {**PAIRS, **LORA}, "AdamW", 8e9, None),
        (1e-2, {}, "AdamW", 5e5, None),
        (1e-2, {}, "SGD", 8e9, None),
    ],
)
def test_a_learning_rate_that_no_recipe_uses_is_remarked(
    rate: float, method: dict[str, Any], optimizer: str, parameters: float, told: str | None
) -> None:
    chosen = hyperparameters(learning_rate=rate, optimizer=optimizer)
    found = list(remarks.of_learning_rate(method_of(method), chosen, int(parameters)))
    assert [remark.level for remark in found] == ["Problem"] * (told is not None)
    assert all(told is not None and told in remark.text for remark in found)


@pytest.mark.parametrize(
    ("numbers", "steps", "expected"),
    [
        ({"warmup_steps": 5}, 6, None),
        ({"warmup_steps": 0}, 1, None),
        ({"warmup_ratio": 1.0}, 3, None),
        ({"warmup_steps": 6}, 6, "spans all 6 steps, so the learning rate never reaches its full value"),
        ({"warmup_steps": 9}, 1, "spans all 1 steps, so the learning rate is 0 in the only step"),
    ],
)
def test_a_warm_up_that_takes_all_steps_is_remarked_on(
    numbers: dict[str, Any], steps: int, expected: str | None
) -> None:
    chosen = hyperparameters(steps=steps, **numbers)
    found = list(remarks.of_warmup(chosen, steps))
    assert [each.level for each in found] == ["Problem"] * bool(expected)
    assert not expected or expected in found[0].text


@pytest.mark.parametrize(
    ("precision", "rate", "method", "told"),
    [
        ("BF16", 1e-5, {}, True),
        ("BF16", 9e-5, PAIRS, True),
        ("BF16", 1e-4, {}, False),
        ("BF16", 1e-5, LORA, False),
        ("FP32", 1e-5, {}, False),
    ],
)
def test_weights_in_bfloat16_that_a_small_rate_hardly_moves_are_remarked(
    precision: str, rate: float, method: dict[str, Any], told: bool
) -> None:
    chosen = hyperparameters(learning_rate=rate, weight_precision=precision)
    found = list(remarks.of_weight_precision(method_of(method), chosen))
    assert [remark.level for remark in found] == ["Problem"] * told
