"""Tokens and masks: exactly the text that a model would write is trained, with every template."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.tokens import turns
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.example import Conversation, TextPair
from finetune_trainer.tokens.template import Renderer

PLACE = RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=3)
MARKS = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>",
         "<end_of_turn>", "<bos>", "<eos>")  # fmt: skip

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# As in Qwen3's template: thoughts of earlier turns are dropped, and the last turn gets an empty one.
QWEN3 = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% set text = m['content'].split('</think>')[-1].lstrip('\n') %}"
    "<|im_start|>assistant\n{% if loop.last %}<think>\n\n</think>\n\n{% endif %}{{ text }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(template: str | None, *, bos: bool = False) -> Any:
    """Returns a tokenizer with a token for each byte, so that tests can tell all characters apart.

    Turn markers are single tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*MARKS, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(MARKS))
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<eos>", **({"bos_token": "<bos>"} if bos else {})
    )
    made.chat_template = template
    return made


def conversation(*turns: tuple[str, str], trained: Sequence[bool] | None = None) -> Conversation:
    messages = [{"role": role, "content": content} for role, content in turns]
    return Conversation(
        place=PLACE, messages=messages, trained=trained or [role == "assistant" for role, _ in turns]
    )


def trained_text(tokens: TokenizedExample, of: Any) -> list[str]:
    """Returns the trained parts of the text, decoded."""
    found, current = [], []
    for token, wanted in zip([*tokens.ids.tolist(), 0], [*tokens.trained.tolist(), False], strict=True):
        if wanted:
            current.append(token)
        elif current:
            found.append(of.decode(current))
            current = []
    return found


TWO_TURNS = (("user", "one"), ("assistant", "first"), ("user", "two"), ("assistant", "second é"))
# As in Llama 2's template: white space before the token that closes a turn.
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# A turn begins with a special token, but no token closes it.
UNCLOSED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CASES = [
    (CHATML, ["first<|im_end|>", "second é<|im_end|>"]),
    (LLAMA3, ["first<|eot_id|>", "second é<|eot_id|>"]),
    (GEMMA, ["first<end_of_turn>", "second é<end_of_turn>"]),
    (QWEN3, ["first<|im_end|>", "<think>\n\n</think>\n\nsecond é<|im_end|>"]),
    (LLAMA2, ["first <eos>", "second é <eos>"]),
    (UNCLOSED, ["first", "second é"]),
]


@pytest.mark.parametrize(
    ("template", "expected"), CASES, ids=["chatml", "llama3", "gemma", "qwen3", "llama2", "unclosed"]
)
def test_every_assistant_turn_with_its_closing_token_is_trained_and_nothing_else(
    template: str, expected: list[str]
) -> None:
    of = tokenizer(template, bos=True)
    tokens = Renderer(of, train_on_prompt=False).tokens(conversation(*TWO_TURNS))
    assert trained_text(tokens, of) == expected
    whole = of.apply_chat_template(
        [{"role": r, "content": c} for r, c in TWO_TURNS], tokenize=False, add_generation_prompt=False
    )
    assert of.decode(tokens.ids) == whole


def test_only_the_completion_of_a_conversation_is_trained_when_it_is_given_as_such() -> None:
    of = tokenizer(CHATML)
    tokens = Renderer(of, train_on_prompt=False).tokens(
        conversation(*TWO_TURNS, trained=[False, False, False, True])
    )
    assert trained_text(tokens, of) == ["second é<|im_end|>"]


def test_contents_that_look_like_the_template_do_not_shift_the_mask() -> None:
    of = tokenizer(CHATML)
    tricky = conversation(
        ("user", "say assistant\n"), ("assistant", "user\nassistant\n"), ("user", "x"), ("assistant", "x")
    )
    assert trained_text(Renderer(of, train_on_prompt=False).tokens(tricky), of) == [
        "user\nassistant\n<|im_end|>", "x<|im_end|>",
    ]  # fmt: skip


def test_a_key_that_only_the_templates_prose_mentions_is_not_read() -> None:
    prose = "{# Shows the reasoning. #}A tool for internal reasoning. "
    chat = Renderer(
        tokenizer(prose + CHATML.replace("m['content']", "m.thinking")), train_on_prompt=False
    ).chat
    assert [key for key in ("role", "thinking", "reasoning", "content") if chat.reads_key(key)] == [
        "role",
        "thinking",
    ]


#: Templates whose prompts depend on more than a conversation's first and last messages.
WHOLE = {
    "by number": CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant {{ messages | length }}\n{% endif"),
    "by length": CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n{% if messages | length > 90 %}Late: {% endif %}{% endif"),
    "by an early call": CHATML.replace(
        "<|im_start|>assistant\n{% endif",
        "<|im_start|>assistant\n{% if messages[4].name == 'Ana' %}Ana: {% endif %}{% endif",
    ),
}  # fmt: skip


def long_talk(number: int) -> Conversation:
    example = conversation(*[(("user", "assistant")[n % 2], f"turn {n}") for n in range(number)])
    return replace(example, messages=[{**message, "name": "Ana"} if n == 4 else message
                                      for n, message in enumerate(example.messages)])  # fmt: skip


@pytest.mark.parametrize("template", WHOLE.values(), ids=WHOLE)
def test_a_template_that_depends_on_all_messages_is_rendered_before_each_turn(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, of = long_talk(160), tokenizer(template)
    found = Renderer(of, train_on_prompt=False).tokens(row)
    monkeypatch.setattr(turns, "LONG", len(row.messages))
    whole = Renderer(of, train_on_prompt=False).tokens(row)
    assert (found.ids.tolist(), found.trained.tolist()) == (whole.ids.tolist(), whole.trained.tolist())
    assert found.trained.any()


def test_a_row_of_too_many_messages_for_such_a_template_is_refused() -> None:
    row = long_talk(1024)
    with pytest.raises(StageError, match=r"row 3: 1024 messages are too many .* at most 512 messages"):
        Renderer(tokenizer(WHOLE["by number"]), train_on_prompt=False).tokens(row)
    assert Renderer(tokenizer(CHATML), train_on_prompt=False).tokens(row).trained.any()
    assert Renderer(tokenizer(WHOLE["by number"]), train_on_prompt=True).tokens(row).trained.all()


def test_a_trimmed_content_is_found() -> None:
    of = tokenizer(LLAMA3)
    tokens = Renderer(of, train_on_prompt=False).tokens(conversation(("user", "a"), ("assistant", "  b \n")))
    assert trained_text(tokens, of) == ["b<|eot_id|>"]


def test_an_answer_with_a_thought_that_the_template_drops_is_found() -> None:
    of = tokenizer(QWEN3)
    turns = (("user", "a"), ("assistant", "<think>hm</think>\n\nb"), ("user", "c"), ("assistant", "d"))
    tokens = Renderer(of, train_on_prompt=False).tokens(conversation(*turns))
    assert trained_text(tokens, of) == ["b<|im_end|>", "<think>\n\n</think>\n\nd<|im_end|>"]


def test_with_train_on_prompt_everything_is_trained() -> None:
    of = tokenizer(CHATML)
    assert Renderer(of, train_on_prompt=True).tokens(conversation(*TWO_TURNS)).trained.all()


def test_a_prompt_and_its_completion_are_a_chat_where_there_is_a_template() -> None:
    of = tokenizer(CHATML)
    tokens = Renderer(of, train_on_prompt=False).tokens(TextPair(place=PLACE, prompt="2+2=", completion="4"))
    asked = "<|im_start|>user\n2+2=<|im_end|>\n<|im_start|>assistant\n"
    assert of.decode(tokens.ids) == f"{asked}4<|im_end|>\n"
    assert trained_text(tokens, of) == ["4<|im_end|>"]


def test_texts_are_joined_without_a_template_and_ended_with_eos() -> None:
    of = tokenizer(None)
    tokens = Renderer(of, train_on_prompt=False).tokens(TextPair(place=PLACE, prompt="2+2=", completion=" 4"))
    assert of.decode(tokens.ids) == "2+2= 4<eos>"
    assert trained_text(tokens, of) == [" 4<eos>"]


def test_what_a_template_refuses_is_reported_with_its_own_words_and_the_row() -> None:
    with pytest.raises(StageError, match=r"train\[0\], row 3: .*System role not supported"):
        Renderer(tokenizer(GEMMA, bos=True), train_on_prompt=False).tokens(
            conversation(("system", "x"), *TWO_TURNS)
        )


def test_a_template_that_leaves_a_message_out_is_reported() -> None:
    only_user = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(StageError, match=r"does not show message 2 \(assistant\)"):
        Renderer(tokenizer(only_user), train_on_prompt=False).tokens(conversation(*TWO_TURNS))


def test_conversations_need_a_template() -> None:
    with pytest.raises(StageError, match="has no chat template"):
        Renderer(tokenizer(None), train_on_prompt=False).tokens(conversation(*TWO_TURNS))


def test_prompts_are_put_as_the_data_were_and_answers_end_where_turns_do() -> None:
    of = tokenizer(CHATML)
    chat, plain = (Renderer(each, train_on_prompt=False) for each in (of, tokenizer(None)))
    assert of.decode(chat.prompt("hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert of.decode(plain.prompt("hi")) == "hi"
    assert {of.decode([token]) for token in chat.end_ids()} == {"<eos>", "<|im_end|>"}
    assert {of.decode([token]) for token in plain.end_ids()} == {"<eos>"}
