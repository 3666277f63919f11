"""Training's tokens begin with those of the prompt as Evaluate and a server encode it, whatever the answer begins with."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_trainer.data.preference import split_common_prompt
from finetune_trainer.tokens.example import Conversation, TextPair
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer
from tests.trainer.small_tokenizers import KINDS, small
from tests.trainer.test_template import CHATML, PLACE

#: As Llama 2's template: its last special token before an answer is the one that begins the text.
INST = (
    "{{ bos_token or '' }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)
TEMPLATES = {"no template": None, "ChatML": CHATML, "[INST]": INST}
#: Texts whose tokens depend on what is beside them.
PIECES = st.lists(
    st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "A:", "The", "capital", "12", "345", "x", "=", ".", "'s", "é", "日"]),
    min_size=1, max_size=6,
).map("".join)  # fmt: skip
#: A prompt of which only the end is compared.
LONG = "The capital of Peru is Lima. " * 4 + "\n\n"


def renderer(kind: str, template: str | None) -> Renderer:
    return Renderer(small(kind, template), train_on_prompt=False)


def pair(prompt: str, completion: str) -> TextPair:
    return TextPair(place=PLACE, prompt=prompt, completion=completion)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_tokens_begin_with_those_of_its_prompt(kind: str, template: str | None) -> None:
    of = renderer(kind, template)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(prompt=st.one_of(PIECES, PIECES.map(LONG.__add__)), answer=PIECES)
    def holds(prompt: str, answer: str) -> None:
        asked = of.prompt(prompt)
        (tokens,) = of.many([pair(prompt, answer)])
        if tokens.dropped:
            assert not answer.strip()
            return
        first = int(tokens.trained.argmax())
        assert tokens.ids[: len(asked)].tolist() == asked
        assert first == len(asked)
        decode = of._tokenizer.decode  # type: ignore[attr-defined]
        written = decode(tokens.ids[first:].tolist())
        assert written.rstrip().endswith(("</s>", "<|im_end|>"))
        end = "</s>" if template != CHATML else "<|im_end|>"
        # Decoded alone, some tokenizers' first token has a space that the text does not have.
        assert written.split(end)[0] in (answer, " " + answer)

    holds()


@pytest.mark.parametrize("kind", KINDS)
def test_both_answers_of_a_pair_follow_the_same_prompt(kind: str) -> None:
    of = renderer(kind, None)
    chosen, rejected = of.many([pair("Q: Peru?\nA: ", "The capital"), pair("Q: Peru?\nA: ", "\nx")])
    made = split_common_prompt(chosen, rejected)
    assert made.prompt.tolist() == of.prompt("Q: Peru?\nA: ")


MERGING = [
    ("Qwen", None, "A: ", "The", True),
    ("Qwen", None, "A:", " The", False),
    ("Qwen", None, "A:  ", "5", True),  # no token spans the boundary, but two spaces are one token
    ("Qwen", None, "A: 34", "5", True),
    ("Qwen", None, "A: 34", " 5", False),
    ("Qwen", None, "A:\n", "The", False),
    ("Qwen", None, LONG + "A:\n", "The", False),
    ("Qwen", None, LONG + "A:  ", "5", True),
    ("Llama 3", None, LONG + "A:  ", "5", True),
    ("Llama 2", None, LONG + "A: ", "The", True),
    ("Llama 2", None, LONG + "A: 1", " 2", False),
    ("Qwen", CHATML, "hi", "\nThe", True),
    ("Qwen", CHATML, "hi", "The", False),
    ("Llama 3", CHATML, "hi", "The", False),
    ("Llama 3", CHATML, "hi", "\nThe", True),
    ("Llama 3", None, "A: ", "The", True),
    ("Llama 2", None, "A: ", "The", True),
    ("Llama 2", None, "A:", " The", False),
    ("Gemma", CHATML, "hi", "\n\nThe", True),
]


@pytest.mark.parametrize(("kind", "template", "prompt", "answer", "merged"), MERGING)
def test_only_rows_where_it_makes_a_difference_are_encoded_apart_and_counted(
    kind: str, template: str | None, prompt: str, answer: str, merged: bool
) -> None:
    (tokens,) = renderer(kind, template).many([pair(prompt, answer)])
    assert (Note.MERGED in tokens.notes) == merged


def conversation(*contents: str, **fields: Any) -> Conversation:
    roles = ["user", "assistant"] * (len(contents) // 2)
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    return Conversation(place=PLACE, messages=messages, trained=[r == "assistant" for r in roles], **fields)


def test_every_trained_turn_begins_with_a_token_of_its_own() -> None:
    of = renderer("Qwen", CHATML)
    row = conversation("a", "\nThe", "b", "Lima", "c", "\n\nThe")
    (tokens,) = of.many([row])
    header = of.ids("<|im_start|>assistant\n")
    starts = [n for n, trained in enumerate(tokens.trained) if trained and not (n and tokens.trained[n - 1])]
    assert len(starts) == 3
    assert all(tokens.ids[n - len(header) : n].tolist() == header for n in starts)
    asked = of.asking(row.messages[:1], PLACE)
    assert tokens.ids[: len(asked)].tolist() == asked


def test_a_continuation_gets_no_space_from_the_tokenizer() -> None:
    of = renderer("Llama 2", None)
    (tokens,) = of.many([pair("A: ", "The")])
    assert small("Llama 2").decode(tokens.ids) == "<s> A: The</s>"


def test_what_a_tokenizer_file_says_about_truncation_and_padding_has_no_effect() -> None:
    row = pair("Q: Peru?\nA:", " The capital of Peru is Lima.")
    expected = renderer("Qwen", None).tokens(row)
    of = small("Qwen")
    try:
        of.backend_tokenizer.enable_truncation(3)
        of.backend_tokenizer.enable_padding(length=64)
        tokens = Renderer(of, train_on_prompt=False).many([row, pair("x", "y")])[0]
    finally:
        of.backend_tokenizer.no_truncation()
        of.backend_tokenizer.no_padding()
    assert tokens.ids.tolist() == expected.ids.tolist()
