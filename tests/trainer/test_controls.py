"""Which texts are blank, and which contain a special token."""

from typing import Any

import pytest
from tokenizers import AddedToken, normalizers

from finetune_trainer.tokens.contents import ControlTokens
from tests.trainer.published_templates import template
from tests.trainer.published_templates import tokenizer as published
from tests.trainer.test_template import CHATML, tokenizer

CONTROLS = ControlTokens(tokenizer(CHATML))
BLANK = {
    "nothing": "", "spaces": "  \t", "line breaks": "\r\n\n", "no-break space": "\xa0", "ideographic space": "\u3000",
    "line separator": "\u2028", "zero width": "\u200b\u200d", "byte order mark": "\ufeff", "word joiner": "\u2060",
    "soft hyphen": "\xad", "Hangul filler": "\u3164", "Braille blank": "\u2800", "direction": "\u200e\u202a\u2066",
    "variation selector": "\ufe0f", "controls": "\x00\x1f\x7f\x85", "tags": "\U000e0020", "a special token": "<eos>",
    "special tokens": " <|im_end|>\n<eos> ", "an empty thought": "<think>\n\n</think>\n\n",
    "the end of a thought that the prompt opens": "</think>\n\n", "Magistral's thought": "[THINK][/THINK]",
}  # fmt: skip
SEEN = {
    "a letter": "x", "punctuation": ".", "a digit": "0", "an emoji": "🙂", "a combining accent": "\u0301", "a thought":
    "<think>hm</think>", "a part of a special token": "<|im_end|", "an unknown character": "\ufffd", "an Arabic sign":
    "\u0600", "a tag of no thought": "<answer></answer>", "after much white space": " \n" * 2000 + "x",
}  # fmt: skip


@pytest.mark.parametrize("text", BLANK.values(), ids=BLANK)
def test_a_text_without_anything_to_see_is_blank(text: str) -> None:
    assert CONTROLS.blank(text)
    assert CONTROLS.blank_message({"role": "assistant", "content": text})
    assert not CONTROLS.blank(text + "x")


@pytest.mark.parametrize("text", SEEN.values(), ids=SEEN)
def test_a_text_with_anything_to_see_is_not_blank(text: str) -> None:
    assert not CONTROLS.blank(text)


CALL = {"type": "function", "function": {"name": "count", "arguments": {}}}


@pytest.mark.parametrize(
    ("more", "blank"),
    [
        ({}, True),
        ({"tool_calls": [CALL]}, False),
        ({"tool_calls": []}, True),
        ({"reasoning_content": "Two and two."}, False),
        ({"reasoning_content": " \n"}, True),
        ({"thinking": None}, True),
    ],
)
def test_a_message_with_calls_or_reasoning_alone_is_not_blank(more: dict[str, Any], blank: bool) -> None:
    assert CONTROLS.blank_message({"role": "assistant", "content": " ", **more}) == blank


@pytest.mark.parametrize(
    ("value", "within"),
    [
        ("It <|im_end|> closes.", True),
        ("<|im_end|>", True),
        ("<|im_end", False),
        ("< |im_end|>", False),
        ("<|IM_END|>", False),
        ("a <b>tag</b> [INST] <think>hm</think>", False),
        ({"role": "assistant", "content": "", "reasoning_content": "x <eos>"}, True),
        ([{"function": {"name": "f", "arguments": {"text": ["a", {"b": "<eos>"}]}}}], True),
        ({"content": "x", "n": 3, "none": None}, False),
    ],
)
def test_special_tokens_are_found_in_texts_at_any_depth(value: Any, within: bool) -> None:
    assert CONTROLS.within(value) == within


def added(**options: Any) -> ControlTokens:
    of = tokenizer(None)
    of.backend_tokenizer.normalizer = normalizers.Lowercase()
    of.add_tokens([AddedToken("<stop>", special=True, **options)])
    return ControlTokens(of)


@pytest.mark.parametrize(
    ("options", "text", "within"),
    [
        ({"normalized": True}, "<STOP>", True),
        ({"normalized": False}, "x<stop>y", True),
        ({"normalized": False, "single_word": True}, "x<stop>y", False),
        ({"normalized": False, "single_word": True}, "x <stop>.", True),
        ({"normalized": False, "single_word": True}, "<stop>", True),
    ],
)
def test_a_text_contains_a_special_token_where_the_tokenizer_reads_one(
    options: dict[str, Any], text: str, within: bool
) -> None:
    assert added(**options).within(text) == within


@pytest.mark.parametrize("name", ["gptoss", "gemma4", "qwen3"])
def test_an_empty_thought_as_templates_write_it_is_blank(name: str) -> None:
    of = ControlTokens(published(template(name)))
    empty = {
        "gptoss": "<|channel|>final<|message|><|return|>",
        "gemma4": "<|channel>thought\n<channel|>",
        "qwen3": "<think>\n\n</think>\n\n<|im_end|>",
    }
    assert of.blank(empty[name])
