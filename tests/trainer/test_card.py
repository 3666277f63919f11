"""The model card of an export."""

from pathlib import Path

import pytest

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
        adapter=False,
        dtype="BF16",
    )
    assert ("license: apache-2.0\n" in card) == (licence is not None)
    assert "base_model: acme/base\n" in card
