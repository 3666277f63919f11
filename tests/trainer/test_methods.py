"""The table of methods, and the properties of each method."""

from typing import Any

import pytest

from finetune_contract import METHODS, LoraSpec, PreferenceMethod
from finetune_trainer.methods import method_class, method_of
from tests.trainer.requests import method

LORA = LoraSpec(rank=4, alpha=8.0)


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_of_the_contract_has_an_entry(kind: str) -> None:
    made = method_class(kind).example(64, LORA)
    assert type(made.spec) is METHODS[kind]
    assert made.spec.lora == LORA
    assert type(method_of(made.spec)) is method_class(kind)
    for low, high in (made.usual_rates, made.usual_lora_rates):
        assert 0 < low < high


@pytest.mark.parametrize("kind", METHODS)
def test_the_objective_measures_what_the_contract_announces(kind: str) -> None:
    made = method_class(kind).example(64, None)
    objective = made.objective(None)
    beside = ("perplexity",) if objective.per_token else ()
    assert ("loss", *beside, *objective.metrics) == METHODS[kind].metrics
    assert objective.relative == made.reference == METHODS[kind].reference


@pytest.mark.parametrize(
    ("asked", "reference", "whole"),
    [({}, False, False), ({"type": "DPO"}, True, True), ({"type": "ORPO"}, False, True)],
)
def test_dpo_alone_needs_a_reference_and_pairs_need_whole_logits(
    asked: dict[str, Any], reference: bool, whole: bool
) -> None:
    made = method_of(method(asked))
    assert (made.reference, made.whole_logits, made.exact_logits) == (reference, whole, whole)


@pytest.mark.parametrize(("prompts", "length", "kept"), [(600, 128, 64), (40, 128, 40), (9, 1, 1)])
def test_prompts_are_shortened_to_half_of_a_short_sequence(prompts: int, length: int, kept: int) -> None:
    made = method_of(method({"type": "DPO", "beta": 0.3, "max_prompt_length": prompts, "lora": LORA}))
    shorter = made.shortened(length)
    assert isinstance(shorter, PreferenceMethod)
    assert shorter.max_prompt_length == kept
    assert shorter.model_copy(update={"max_prompt_length": prompts}) == made.spec
    assert method_of(method({"train_on_prompt": True})).shortened(8) == method({"train_on_prompt": True})
