"""The tokens that close a turn are trained and those that open the next one are not, also if special tokens strip."""

from typing import Any

import pytest

from finetune_trainer.tokens.template import Renderer
from tests.trainer.small_tokenizers import stripping
from tests.trainer.test_template import UNCLOSED, conversation, trained_text

#: As phi-4's: no white space around the markers.
PHI4 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_sep|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
SPACED = PHI4.replace("}}<|im_end|>", "}}\n<|im_end|>\n").replace("<|im_sep|>", "<|im_sep|>\n")
OPTIONS: dict[str, dict[str, bool]] = {
    "plain": {},
    "phi-4": {"lstrip": True, "rstrip": True, "normalized": False},
    "lstrip": {"lstrip": True, "normalized": False},
    "rstrip": {"rstrip": True, "normalized": False},
    "normalized": {"lstrip": True, "rstrip": True, "normalized": True},
}


def trained(of: Any, *answers: str) -> list[str]:
    turns = [turn for answer in answers for turn in (("user", "Peru?"), ("assistant", answer))]
    return trained_text(Renderer(of, train_on_prompt=False).tokens(conversation(*turns)), of)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("end", ["", "\n", " ", "\n\n \t"])
@pytest.mark.parametrize("begin", ["", " ", "\n"])
def test_a_turn_is_trained_up_to_its_own_closing_token(
    options: dict[str, bool], begin: str, end: str
) -> None:
    of = stripping(PHI4, **options)
    before = "" if options.get("rstrip") else begin
    after = "" if options.get("lstrip") else end
    expected = f"{before}Lima.{after}<|im_end|>"
    assert trained(of, f"{begin}Lima.{end}", f"{begin}Lima.{end}") == [expected, expected]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_white_space_that_the_template_writes_before_a_closing_token_does_not_hide_it(
    options: dict[str, bool],
) -> None:
    found = trained(stripping(SPACED, **options), "Lima.", "Lima.\n")
    assert [text.replace("\n", "") for text in found] == ["Lima.<|im_end|>"] * 2


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_token_that_opens_the_next_turn_is_not_trained(options: dict[str, bool], end: str) -> None:
    found = trained(stripping(UNCLOSED, **options), f"Lima.{end}", "Ada.")
    assert [text.strip() for text in found] == ["Lima.", "Ada."]


@pytest.mark.parametrize("end", ["", "!", "\n"])
def test_markers_that_are_tokens_only_beside_other_characters_than_letters(end: str) -> None:
    spaced = PHI4.replace("<|im_start|>", " <|im_start|> ").replace("<|im_sep|>", " <|im_sep|> ")
    of = stripping(spaced.replace("<|im_end|>", " <|im_end|>"), single_word=True, lstrip=True, rstrip=True)
    expected = [f"Lima{end.strip()}<|im_end|>"] * 2
    assert trained(of, f"Lima{end}", f"Lima{end}") == expected
