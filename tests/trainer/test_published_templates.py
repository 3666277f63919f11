"""The chat templates that models are published with: the tokens that we train on, compared with marks by other authors.

For many templates, ``trl`` has a variant that marks the text that the model writes. The tests allow for two ways in
which these marks cover more than the model writes: some begin inside the text that prompts for the turn, and most end
with the white space (Phi: the end of sequence) after the token that closes the turn."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from finetune_contract import DatasetSpec
from finetune_trainer.data.schema import DatasetSchema
from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import Row, RowLocation
from finetune_trainer.tokens import turns
from finetune_trainer.tokens.chat import Chat
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.example import Conversation
from finetune_trainer.tokens.template import Renderer
from tests.trainer.published_templates import template, tokenizer

type Message = dict[str, Any]

TODAY = date(2025, 4, 1)
MARKED = (
    "cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "gemma", "gemma3", "glm4moe", "gptoss",
    "lfm2", "lfm2_v2", "llama3", "muse_glimmer", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "phi3",
    "phi3_5", "qwen2_5", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8", "qwen3_instruct_2507",
)  # fmt: skip
UNMARKED = ("llama3_1", "llama3_2", "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def thought(reasoning: str, text: str) -> Message:
    return answer(f"<think>\n{reasoning}\n</think>\n\n{text}")


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 17, "b": 4}}}
RESULT = {"role": "tool", "name": "add", "content": "21"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "One."}}},
        },
    }
]
CASES: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [user("How much?"), answer("Twenty-one.")]},
    "several turns": {"messages": [user("Who?"), answer("Ada."), user("When?"), answer("In 1815, é.")]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, user("Who?"), answer("Ada.")]},
    "reasoning": {"messages": [user("Who?"), answer("Ada.", reasoning_content="She wrote it.")]},
    "reasoning in the content": {"messages": [user("Who?"), thought("She wrote it.", "Ada.")]},
    "reasoning in every turn": {
        "messages": [user("Who?"), thought("She wrote it.", "Ada."), user("When?"), thought("Then.", "In 1815.")]
    },
    "tools": {
        "messages": [user("How much?"), answer("", tool_calls=[CALL]), RESULT, answer("Twenty-one.")],
        "tools": TOOLS,
    },
    "tools without content": {
        "messages": [user("How much?"), answer(None, tool_calls=[CALL]), RESULT, answer("Twenty-one.")],
        "tools": TOOLS,
    },
}  # fmt: skip


def example(case: str) -> Conversation:
    row = Row(
        place=RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1), value=CASES[case]
    )
    read = DatasetSchema(DatasetSpec(path="p", name="n", uri="file:///a.jsonl"), row).example(row)
    assert isinstance(read, Conversation)
    return read


def ours(of: Any, case: str, **options: Any) -> TokenizedExample:
    return Renderer(of, train_on_prompt=False, today=TODAY, **options).tokens(example(case))


def marked(of: Any, messages: Any, tools: Any) -> tuple[list[int], list[bool]]:
    """Returns the ids and the mask that transformers computes from the template's own marks."""
    found = of.apply_chat_template(
        list(messages),
        tools=tools,
        return_dict=True,
        return_assistant_tokens_mask=True,
        strftime_now=TODAY.strftime,
    )
    return found["input_ids"], [bool(each) for each in found["assistant_masks"]]


def forms(case: str) -> Iterator[list[Message]]:
    """Yields variants of the case's messages: empty content as a text or None, arguments as an object or as JSON."""
    for content, text in itertools.product(("", None), (False, True)):
        arguments = {"a": 17, "b": 4}
        call = {
            **CALL,
            "function": {"name": "add", "arguments": json.dumps(arguments) if text else arguments},
        }
        yield [
            {**each, "content": content, "tool_calls": [call]} if "tool_calls" in each else dict(each)
            for each in example(case).messages
        ]


def marked_alike(of: Any, case: str, ids: list[int]) -> list[bool] | None:
    """Returns the marks of the variant of the messages that has the same tokens, or None if there is none."""
    for messages in forms(case):
        with contextlib.suppress(Exception):
            found, mask = marked(of, messages, example(case).tools)
            if found == ids:
                return mask
    return None


def stretches(mask: list[bool]) -> list[tuple[int, int]]:
    edges = [n for n in range(len(mask) + 1) if (n < len(mask) and mask[n]) != (n > 0 and mask[n - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def trained_text(of: Any, tokens: TokenizedExample) -> list[str]:
    ids = tokens.ids.tolist()
    return [of.decode(ids[first:past]) for first, past in stretches(tokens.trained.tolist())]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MARKED)
def test_a_template_that_marks_the_models_words_is_taken_at_them(name: str, case: str) -> None:
    of = tokenizer(template(f"{name}_training"))
    try:
        tokens = ours(of, case)
    except StageError as error:
        assert refuses(of, case, error)
        return
    assert tokens.trained.tolist() == marked_alike(of, case, tokens.ids.tolist())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MARKED)
def test_what_is_trained_is_what_others_mark(name: str, case: str) -> None:
    of = tokenizer(template(name))
    try:
        tokens = ours(of, case)
    except StageError as error:
        assert refuses(of, case, error)
        return
    variant = tokenizer(template(name))
    variant.chat_template = template(f"{name}_training")
    ids = tokens.ids.tolist()
    mask = marked_alike(variant, case, ids)
    if (
        mask is None
    ):  # the variant writes another text: with reasoning in earlier turns, or with ends that it adds
        other, mask = marked(variant, example(case).messages, example(case).tools)
        whole = [variant.decode(other[first:past]) for first, past in stretches(mask)]
        assert all(part in text for part, text in zip(trained_text(of, tokens), whole, strict=True))
        return
    own, theirs = stretches(tokens.trained.tolist()), stretches(mask)
    assert len(own) == len(theirs)
    for (first, past), (begin, end) in zip(own, theirs, strict=True):
        assert of.decode(ids[begin:first]).strip() in PROMPTS.get(name, ("",))
        assert of.decode(ids[past:end]).strip() in ("", "<eos>")
        assert of.decode(ids[first:begin]).strip() in BEYOND.get(name, ("",))
        assert of.decode(ids[end:past]).strip() in BEYOND.get(name, ("",))


#: Trained text after the marks: the token at which the model stops for a tool, and a header that the template does not
#: add to prompt for the text after the tool's response.
BEYOND = {"diffusion_gemma": ("", "<|tool_response>", "<|turn>model")}
#: Text that prompts for a turn and is also within the marks.
PROMPTS = {
    "deepseek_r1_distill": ("<｜Assistant｜>", "<｜tool▁outputs▁end｜>"),
    "deepseekv3": ("<｜Assistant｜>", "<｜tool▁outputs▁end｜>"),
    "gptoss": ("<|start|>assistant",),
    "muse_glimmer": ("<|start|>assistant", "<|start|>assistant to="),
    **dict.fromkeys(
        ("qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"),
        ("", "<think>"),
    ),
    "qwen3_5_nothink": ("", "<think>", "<think>\n\n</think>"),
}


def refuses(of: Any, case: str, error: StageError) -> bool:
    """Whether the error is true of the template: the template refuses the row, or does not show its tool calls."""
    texts = []
    for messages in forms(case):
        with contextlib.suppress(Exception):
            texts.append(of.apply_chat_template(messages, tools=example(case).tools, tokenize=False,
                                                strftime_now=TODAY.strftime))  # fmt: skip
    if not texts:
        return "chat template rejects" in error.what
    return "does not show the tool calls of message 2" in error.what and not any(
        "17" in text for text in texts
    )


@pytest.mark.parametrize("name", MARKED + UNMARKED)
def test_every_trained_turn_ends_with_a_token_that_ends_answers(name: str) -> None:
    """The exception is GLM's template, which does not close its last turn; the report contains that."""
    of = tokenizer(template(name))
    tokens = ours(of, "several turns")
    renderer = Renderer(of, train_on_prompt=False, today=TODAY)
    first, last = stretches(tokens.trained.tolist())
    assert of.added_tokens_decoder[int(tokens.ids[first[1] - 1])].special
    ends = {int(index) for index in tokens.ids[last[0] : last[1]]} & renderer.end_ids()
    assert bool(ends) == (name != "glm4moe")


def steps(number: int, words: str) -> list[Message]:
    """Returns the calls and results of a long task, some with reasoning, ids and text beside the calls."""
    turns: list[Message] = [user(f"Do {words}.")]
    for step in range(number):
        call = {
            **CALL,
            "id": f"{words}{step}",
            "function": {"name": "add", "arguments": {"a": step, "b": words}},
        }
        more = {"reasoning_content": f"{words} {step}?"} if step % 3 == 1 else {}
        turns.append(
            answer(f"{words} {step}" if step % 2 else "", tool_calls=[call] * (1 + step % 2), **more)
        )
        turns += [{**RESULT, "tool_call_id": f"{words}{step}", "content": f"{words} = {step}"}] * (
            1 + step % 2
        )
        turns += [answer("So far."), user(f"Go on with {words}.")] if step == 3 else []
    return [*turns, answer(f"{words} done.")]


def of_steps(number: int, words: str) -> Conversation:
    messages = steps(number, words)
    row = RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1)
    trained = [message["role"] == "assistant" for message in messages]
    return Conversation(place=row, messages=messages, trained=trained, tools=TOOLS)


@pytest.mark.parametrize("name", [*MARKED, *UNMARKED])
def test_a_row_becomes_the_same_tokens_after_others_of_its_shape(name: str) -> None:
    of = tokenizer(template(name))
    used = Renderer(of, train_on_prompt=False, today=TODAY)
    for rows in (1, 6, 6, 4):
        for words in ("apples", "pears and </think> plums"):
            row = of_steps(rows, words)
            got, fresh = (
                described(renderer, row)
                for renderer in (used, Renderer(of, train_on_prompt=False, today=TODAY))
            )
            assert got == fresh


def described(renderer: Renderer, row: Conversation) -> Any:
    try:
        made = renderer.tokens(row)
    except StageError as error:
        return str(error)
    return made.ids.tolist(), made.trained.tolist(), made.notes, made.dropped


def test_a_long_task_with_tools_is_rendered_a_few_times_and_not_once_for_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renderer = Renderer(tokenizer(template("qwen3")), train_on_prompt=False, today=TODAY)

    def read(words: str) -> Conversation:
        row = Row(
            place=RowLocation(path="p", file="f", row=1), value={"messages": steps(40, words), "tools": TOOLS}
        )
        spec = DatasetSpec(path="p", name="n", uri="file:///a.jsonl")
        example = DatasetSchema(spec, row, reads=renderer.chat.reads).example(row)
        assert isinstance(example, Conversation)
        return example

    rendered = []
    applied = Chat._applied

    def counted(*arguments: Any) -> str:
        rendered.append(arguments)
        return applied(*arguments)

    renderer.tokens(read("apples"))
    monkeypatch.setattr(Chat, "_applied", counted)
    renderer.tokens(read("pears"))
    assert len(rendered) < 10


def of_questions(number: int) -> Conversation:
    talk = [turn for n in range(number) for turn in (user(f"Question {n}?"), answer(f"Answer {n}."))]
    messages = [{"role": "system", "content": "Be brief."}, *talk]
    row = RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1)
    return Conversation(
        place=row, messages=messages, trained=[message["role"] == "assistant" for message in messages]
    )


def of_results(number: int) -> Conversation:
    """Results of calls in messages of the user, which Qwen3's template distinguishes from questions by their content."""
    row = of_questions(number)
    result = user("<tool_response>\n21\n</tool_response>")
    messages = [result if n and n % 14 else message for n, message in enumerate(row.messages)]
    messages = [
        thought("Hm.", "Twenty-one.") if old["role"] == "assistant" else new
        for old, new in zip(row.messages, messages, strict=True)
    ]
    return replace(row, messages=messages)


@pytest.mark.parametrize("number", [1, 8, 40])
def test_results_in_messages_of_the_user_are_not_trained(number: int) -> None:
    of = tokenizer(template("qwen3"))
    tokens = Renderer(of, train_on_prompt=False, today=TODAY).tokens(of_results(number))
    written = {"Twenty-one.<|im_end|>", "<think>\nHm.\n</think>\n\nTwenty-one.<|im_end|>"}
    found = trained_text(of, tokens)
    assert len(found) == number
    assert set(found) <= written


@pytest.mark.parametrize(
    "row",
    [of_steps(32, "apples"), of_questions(40), of_results(40)],
    ids=["steps", "questions", "results"],
)
@pytest.mark.parametrize("name", [*MARKED, *UNMARKED])
def test_a_long_row_becomes_the_tokens_that_all_messages_before_each_turn_show(
    name: str, row: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = tokenizer(template(name))
    found = described(Renderer(of, train_on_prompt=False, today=TODAY), row)
    monkeypatch.setattr(turns, "LONG", len(row.messages))
    assert found == described(Renderer(of, train_on_prompt=False, today=TODAY), row)


@pytest.mark.parametrize("row", [of_steps(300, "apples"), of_questions(400)], ids=["steps", "questions"])
@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gemma3", "gptoss"])
def test_a_row_of_many_messages_takes_time_that_grows_with_their_number(
    name: str, row: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = []
    applied = Chat._applied

    def counted(chat: Chat, messages: Any, *options: Any) -> str:
        rendered.append(len(messages))
        return applied(chat, messages, *options)

    monkeypatch.setattr(Chat, "_applied", counted)
    described(Renderer(tokenizer(template(name)), train_on_prompt=False, today=TODAY), row)
    assert sum(rendered) < 50 * len(row.messages)
