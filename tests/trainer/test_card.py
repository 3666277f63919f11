"""The model card of an export."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from finetune_trainer.export.card import CardFacts, licence_of, render
from finetune_trainer.stages.export import method
from tests.trainer.requests import method as asked

PAIRS = {"max_prompt_length": 32}
LORA = {"rank": 8, "alpha": 16.0}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "SFT, full fine-tuning"),
        ({"train_on_prompt": True, "lora": LORA}, "SFT (prompts too), LoRA, rank 8, alpha 16"),
        ({"lora": {**LORA, "quantization": "NF4"}}, "SFT, LoRA on a base model in NF4, rank 8, alpha 16"),
        ({"type": "DPO", **PAIRS, "beta": 0.2}, "DPO (beta 0.2, label smoothing 0), full fine-tuning"),
        ({"type": "ORPO", **PAIRS, "lora": LORA}, "ORPO (weight 0.1), LoRA, rank 8, alpha 16"),
    ],
)  # fmt: skip
def test_the_card_says_what_was_learned_from_and_by_which_weights(spec: dict[str, object], told: str) -> None:
    assert method(asked(spec)) == told


@pytest.mark.parametrize(
    ("front", "licence"),
    [("---\nlicense: apache-2.0\n---\n# X", "apache-2.0"), ("# X", None), ("---\ntags: [a]\n---", None)],
)
def test_the_sources_licence_stands_in_the_card(front: str, licence: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(front)
    found = licence_of(tmp_path)
    assert found == licence
    card = render(
        CardFacts(name="tuned", base_model="acme/base", base_revision="abc"),
        licence=found,
        rank=None,
        dtype="BF16",
    )
    assert ("license: apache-2.0\n" in card) == (licence is not None)
    assert "base_model: acme/base\n" in card


@pytest.mark.parametrize(
    ("rank", "accepted"), [(1, 8), (8, 8), (9, 16), (16, 16), (24, 32), (64, 64), (300, 512)]
)
def test_the_card_of_an_adapter_has_a_command_with_which_vllm_serves_its_rank(
    rank: int, accepted: int
) -> None:
    """vLLM knows the ranks 1, 8, 16, 32, 64, 128, 256, 320 and 512, and accepts only 16 if none is named."""
    facts = CardFacts(name="tuned", base_model="acme/base", base_revision="abc")
    card = render(facts, licence=None, rank=rank, dtype="BF16")
    assert f"vllm serve acme/base --enable-lora --max-lora-rank {accepted} " in card


def test_the_commands_of_a_card_name_a_base_model_only_if_it_is_on_the_hub() -> None:
    """Neither vLLM nor transformers loads a folder of a bucket by its address."""
    facts = CardFacts(name="tuned", base_model="gs://models/base", base_revision="abc")
    card = render(facts, licence=None, rank=8, dtype="BF16")
    assert "vllm serve BASE_MODEL " in card
    assert 'from_pretrained("BASE_MODEL")' in card
    assert "`gs://models/base`" in card


@pytest.mark.parametrize("answer", ["```py\nx = 1", "````\n```", "# a heading", "| a | b |\n|---|---|"])
def test_an_answer_does_not_change_the_rest_of_the_card(answer: str) -> None:
    """It may be cut within a block of code."""
    samples = [("show", answer), ("again", answer)]
    facts = CardFacts(name="tuned", base_model="acme/base", base_revision="abc", samples=samples)
    card = render(facts, licence=None, rank=None, dtype="BF16")
    html = MarkdownIt("commonmark").render(card)
    assert html.count("<h2>") == len(re.findall("^## ", card, re.MULTILINE)) == 3
    assert html.count("<pre>") == 3
