"""Rows of published datasets and of other trainers: read as they are meant, or refused by name."""

import contextlib
import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devcluster.layout import ROOT
from finetune_contract import DatasetSpec
from finetune_trainer.data.pairs import BETTER_REJECTED, NO_PROMPT, OTHER_PROMPTS, PairSchema
from finetune_trainer.data.schema import BAD_ANSWER, NO_LABEL, DatasetSchema, Unwanted
from finetune_trainer.data.shapes import FORMATS, PAIRS, SHAPES
from finetune_trainer.errors import StageError
from finetune_trainer.readers.known_names import is_empty, known_name
from finetune_trainer.readers.row_location import Row, RowLocation
from finetune_trainer.tokens.example import Conversation, Example, TextPair, texts_of

PLACE = RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1)


def spec(**fields: Any) -> DatasetSpec:
    return DatasetSpec.model_validate(
        {"path": PLACE.path, "name": "train-0", "uri": "file:///a.jsonl", **fields}
    )


def schema_of(value: Mapping[str, Any], **fields: Any) -> tuple[DatasetSchema, Row]:
    reads = fields.pop("reads", lambda _: False)
    row = Row(place=PLACE, value=value)
    return DatasetSchema(spec(**fields), row, reads=reads), row


def example(value: Mapping[str, Any], **fields: Any) -> Example | Unwanted:
    schema, row = schema_of(value, **fields)
    return schema.example(row)


def told(example: Example | Unwanted) -> list[tuple[str, str]]:
    """Returns the turns of an example as (role, text); trained ones have a capital letter."""
    assert not isinstance(example, Unwanted)
    if isinstance(example, TextPair):
        return [("user", example.prompt), ("Assistant", example.completion)]
    assert isinstance(example, Conversation)
    return [
        (message["role"].title() if trained else message["role"], message["content"])
        for message, trained in zip(example.messages, example.trained, strict=True)
    ]


def pair(value: Mapping[str, Any], **fields: Any) -> tuple[Example, Example] | Unwanted:
    row = Row(place=PLACE, value=value)
    return PairSchema(spec(**fields), row, reads=lambda _: False).pair(row)


USER, LIMA = {"role": "user", "content": "Capital of Peru?"}, {"role": "assistant", "content": "Lima."}
ASKED = [("user", "Capital of Peru?"), ("Assistant", "Lima.")]
SHAREGPT = [{"from": "human", "value": "Capital of Peru?"}, {"from": "gpt", "value": "Lima."}]
BE_BRIEF = ("system", "Be brief.")

READ: list[tuple[str, Mapping[str, Any], str, Sequence[tuple[str, str]]]] = [
    ("OpenAI", {"messages": [USER, LIMA]}, "Messages", ASKED),
    ("messages as JSON text", {"messages": json.dumps([USER, LIMA])}, "Messages", ASKED),
    ("ShareGPT", {"conversations": SHAREGPT}, "Messages (ShareGPT)", ASKED),
    ("ShareGPT in messages", {"messages": SHAREGPT}, "Messages", ASKED),
    ("roles in conversations", {"conversations": [USER, LIMA]}, "Messages (ShareGPT)", ASKED),
    ("ShareGPT with a system column", {"conversations": SHAREGPT, "system": "Be brief."}, "Messages (ShareGPT)", [BE_BRIEF, *ASKED]),
    ("a system column beside messages", {"messages": [USER, LIMA], "system": "Be brief."}, "Messages", [BE_BRIEF, *ASKED]),
    ("the same system message twice", {"messages": [{"role": "system", "content": "Be brief."}, USER, LIMA], "system": "Be brief."},
     "Messages", [BE_BRIEF, *ASKED]),
    ("Alpaca", {"instruction": "Translate to French.", "input": "hello", "output": "bonjour"}, "PromptCompletion (Alpaca)",
     [("user", "Translate to French.\n\nhello"), ("Assistant", "bonjour")]),
    ("Alpaca without input", {"instruction": "Say hi.", "input": "", "output": "hi"}, "PromptCompletion (Alpaca)",
     [("user", "Say hi."), ("Assistant", "hi")]),
    ("Alpaca with a rendered text", {"instruction": "Say hi.", "input": "", "output": "hi", "text": "### Instruction: Say hi. ### Response: hi"},
     "PromptCompletion (Alpaca)", [("user", "Say hi."), ("Assistant", "hi")]),
    ("LLaMA-Factory", {"instruction": "And Chile?", "input": "", "output": "Santiago.", "system": "Be brief.", "history": [["Peru?", "Lima."]]},
     "PromptCompletion (Alpaca)", [BE_BRIEF, ("user", "Peru?"), ("Assistant", "Lima."), ("user", "And Chile?"), ("Assistant", "Santiago.")]),
    ("history as messages", {"query": "And Chile?", "response": "Santiago.", "history": [USER, LIMA]},
     "PromptCompletion (ms-swift)", [*ASKED, ("user", "And Chile?"), ("Assistant", "Santiago.")]),
    ("Dolly", {"instruction": "Who?", "context": "Ana won.", "response": "Ana", "category": "qa"}, "PromptCompletion (Dolly)",
     [("user", "Who?\n\nAna won."), ("Assistant", "Ana")]),
    ("OpenOrca", {"id": "1", "system_prompt": "Be brief.", "question": "Capital of Peru?", "response": "Lima."},
     "PromptCompletion (OpenOrca)", [BE_BRIEF, *ASKED]),
    ("OpenOrca without a system prompt", {"id": "1", "system_prompt": "", "question": "Capital of Peru?", "response": "Lima."},
     "PromptCompletion (OpenOrca)", ASKED),
    ("prompt and completion with a system column", {"prompt": "Capital of Peru?", "completion": "Lima.", "system": "Be brief."},
     "PromptCompletion", [BE_BRIEF, *ASKED]),
    ("HuggingChat", {"preprompt": "Be brief.", "messages": [USER, LIMA]}, "Messages", [BE_BRIEF, *ASKED]),
    ("messages with a system column", {"prompt": [USER], "completion": [LIMA], "system": "Be brief."}, "PromptCompletion", [BE_BRIEF, *ASKED]),
    ("question and answer with a context", {"question": "Who?", "context": "Ana won.", "answer": "Ana"}, "QuestionAnswer",
     [("user", "Who?\n\nAna won."), ("Assistant", "Ana")]),
    ("messages as JSON text in both columns", {"prompt": json.dumps([USER], indent=1), "completion": f" {json.dumps([LIMA])}"}, "PromptCompletion", ASKED),
    ("content in parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Capital"}, {"type": "text", "text": "of Peru?"}]}, LIMA]},
     "Messages", [("user", "Capital\nof Peru?"), ("Assistant", "Lima.")]),
    ("parts of the Responses API", {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "Capital of Peru?"}]},
     {"role": "assistant", "content": [{"type": "output_text", "text": "Lima."}]}]}, "Messages", ASKED),
    ("parts as Parquet fills them", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Capital of Peru?", "image_url": None}]}, LIMA]},
     "Messages", ASKED),
    ("UltraChat", {"prompt": "Capital of Peru?", "prompt_id": "a1", "messages": [USER, LIMA]}, "Messages", ASKED),
    ("NuminaMath", {"problem": "Capital of Peru?", "solution": "Lima.", "messages": [USER, LIMA], "source": "x"}, "Messages", ASKED),
    ("Gemini", {"systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]},
     "contents": [{"role": "user", "parts": [{"text": "Capital of Peru?"}]}, {"role": "model", "parts": [{"text": "Lima."}]}]},
     "Messages (Gemini)", [BE_BRIEF, *ASKED]),
    ("Bedrock", {"schemaVersion": "bedrock-conversation-2024", "system": [{"text": "Be brief."}],
     "messages": [{"role": "user", "content": [{"text": "Capital of Peru?"}]}, {"role": "assistant", "content": [{"text": "Lima."}]}]},
     "Messages", [BE_BRIEF, *ASKED]),
    ("LangChain", {"messages": [{"type": "human", "content": "Capital of Peru?"}, {"type": "ai", "content": "Lima."}]}, "Messages", ASKED),
    ("LangChain's data", {"messages": [{"type": "human", "data": {"content": "Capital of Peru?", "additional_kwargs": {}, "example": False}},
     {"type": "ai", "data": {"content": "Lima.", "tool_calls": [], "type": "ai"}}]}, "Messages", ASKED),
    ("Cohere", {"messages": [{"role": "User", "content": "Capital of Peru?"}, {"role": "Chatbot", "content": "Lima."}]}, "Messages", ASKED),
    ("Cohere's history", {"messages": [{"role": "USER", "message": "Capital of Peru?"}, {"role": "CHATBOT", "message": "Lima."}]}, "Messages", ASKED),
    ("texts of messages", {"messages": [{"role": "prompter", "text": "Capital of Peru?"}, {"role": "assistant", "text": "Lima."}]}, "Messages", ASKED),
    ("Capybara", {"conversation": [{"input": "Capital of Peru?", "output": "Lima."}]}, "Messages (conversation)", ASKED),
    ("BELLE", {"conversation": [{"human": "Capital of Peru?", "assistant": "Lima."}] * 2}, "Messages (conversation)", ASKED * 2),
    ("a prompt in messages", {"messages": [{"role": "system", "content": "Be brief."}, USER], "answer": "Lima.", "model": "x"},
     "PromptCompletion (messages and answer)", [BE_BRIEF, *ASKED]),
    ("Nemotron", {"input": [USER], "output": "Lima.", "category": "x"}, "PromptCompletion (input and output)", ASKED),
    ("a history of roles and texts", {"query": "And Chile?", "response": "Santiago.", "history": [["human", "Capital of Peru?"], ["ai", "Lima."]]},
     "PromptCompletion (ms-swift)", [*ASKED, ("user", "And Chile?"), ("Assistant", "Santiago.")]),
    ("a response to messages", {"messages": [USER], "response": "Lima."}, "PromptCompletion (messages and response)", ASKED),
    ("null columns of other shapes", {"messages": None, "prompt": "Capital of Peru?", "completion": "Lima.", "images": [], "label": None},
     "PromptCompletion", ASKED),
    ("LIMA", {"conversations": ["Capital of Peru?", "Lima."], "source": "stackexchange"}, "Messages (ShareGPT)", ASKED),
    ("LIMA of several turns", {"conversations": ["Capital of Peru?", "Lima."] * 2}, "Messages (ShareGPT)", ASKED * 2),
    ("turns that are not trained", {"messages": [USER, {**LIMA, "content": "Cusco", "train": False}, USER, {**LIMA, "train": True}]}, "Messages",
     [ASKED[0], ("assistant", "Cusco"), *ASKED]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "shape", "turns"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_a_published_shape_is_read_without_renaming(
    value: Mapping[str, Any], shape: str, turns: Sequence[tuple[str, str]]
) -> None:
    schema, row = schema_of(value)
    assert told(schema.example(row)) == turns
    assert str(schema.columns.shape) == shape


@pytest.mark.parametrize("flag", ["train", "training", "trainable", "loss", "loss_mask", "weight"])
@pytest.mark.parametrize("off", [False, 0, 0.0])
def test_a_turn_that_another_trainer_would_not_train_is_not_trained(flag: str, off: Any) -> None:
    if flag == "weight" and off is False:
        off = 0
    wrong = {"role": "assistant", "content": "WRONG", flag: off}
    read = example({"messages": [USER, wrong, USER, LIMA]})
    assert told(read)[1:2] == [("assistant", "WRONG")]
    assert isinstance(read, Conversation)
    assert read.held_out
    assert all(message.keys() == {"role", "content"} for message in read.messages)


CALL = {"name": "weather", "arguments": {"city": "Lima"}}
FUNCTION = {"name": "weather", "description": "Says it.", "parameters": {"type": "object", "properties": {}}}
CALLED = [{"type": "function", "function": CALL}]


@pytest.mark.parametrize(
    "value",
    [
        {
            "messages": [USER, {"role": "assistant", "content": None, "tool_calls": CALLED}],
            "tools": [{"type": "function", "function": FUNCTION}],
        },
        {
            "messages": [USER, {"role": "assistant", "content": "", "function_call": CALL}],
            "functions": [FUNCTION],
        },
        {
            "messages": [
                USER,
                {"role": "assistant", "function_call": {**CALL, "arguments": '{"city": "Lima"}'}},
            ],
            "functions": json.dumps([FUNCTION]),
        },
        {
            "conversations": [SHAREGPT[0], {"from": "function_call", "value": json.dumps(CALL)}],
            "tools": json.dumps([FUNCTION]),
        },
        {
            "messages": [
                USER,
                {"type": "ai", "content": "", "tool_calls": [{"name": "weather", "args": {"city": "Lima"}}]},
            ],
            "tools": [FUNCTION],
        },
    ],
    ids=["OpenAI", "OpenAI's functions", "OpenAI's functions as text", "LLaMA-Factory", "LangChain"],
)
def test_calls_and_tools_are_the_same_in_every_form(value: Mapping[str, Any]) -> None:
    read = example(value)
    assert isinstance(read, Conversation)
    assert read.messages[-1] == {"role": "assistant", "content": "", "tool_calls": CALLED}
    assert read.tools == [{"type": "function", "function": FUNCTION}]


def test_tools_beside_a_prompt_are_read() -> None:
    read = example({"prompt": "Capital?", "completion": "Lima.", "tools": [FUNCTION]})
    assert isinstance(read, Conversation)
    assert read.tools


@pytest.mark.parametrize(
    "role",
    [
        {"role": "function", "name": "weather"}, {"from": "observation"}, {"from": "function"}, {"role": "tool_response"},
        {"from": "function-response"}, {"role": "ipython"}, {"role": "Tool"}, {"role": "tool_result"},
    ],
)  # fmt: skip
def test_results_of_calls_have_the_role_tool(role: Mapping[str, str]) -> None:
    content = {"value" if "from" in role else "content": "22 degrees"}
    assert told(example({"messages": [USER, {**role, **content}, LIMA]}))[1] == ("tool", "22 degrees")


@pytest.mark.parametrize("role", ["tool_call", "function_call", "function-call", "tool_calls"])
@pytest.mark.parametrize("key", ["role", "from"])
def test_turns_of_calls_are_calls_of_the_assistant(key: str, role: str) -> None:
    call = json.dumps({"name": "weather", "arguments": {"city": "Lima"}})
    read = example({"messages": [USER, {key: role, "value" if key == "from" else "content": call}, LIMA]})
    assert isinstance(read, Conversation)
    assert read.messages[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Lima"}}
    assert read.trained == [False, True, True]


@pytest.mark.parametrize(
    ("role", "standard"),
    [
        ("human", "user"),
        ("User", "user"),
        ("bot", "Assistant"),
        ("model", "Assistant"),
        ("developer", "system"),
    ],
)
def test_roles_of_other_tools_are_read(role: str, standard: str) -> None:
    others = [turn for turn in (USER, LIMA) if turn["role"] != standard.lower()]
    read = told(example({"messages": [{"role": role, "content": "x"}, *others]}))
    assert (standard, "x") in read


@pytest.mark.parametrize("prompt", [[USER], json.dumps([USER]), USER, "Capital of Peru?"])
@pytest.mark.parametrize("completion", [[LIMA], LIMA, "Lima."])
def test_a_text_beside_messages_is_one_message(prompt: Any, completion: Any) -> None:
    read = told(example({"prompt": prompt, "completion": completion}))
    assert read == [("user", "Capital of Peru?"), ("Assistant", "Lima.")]


def test_an_answer_that_is_the_json_of_calls_beside_tools_is_calls() -> None:
    calls = json.dumps([{"name": "weather", "arguments": {"city": "Lima"}}])
    read = example({"prompt": "Warm?", "completion": calls, "tools": [FUNCTION]})
    assert isinstance(read, Conversation)
    assert read.messages[-1]["tool_calls"][0]["function"]["name"] == "weather"
    data = example({"prompt": "Who?", "completion": json.dumps([{"name": "Ada"}]), "tools": [FUNCTION]})
    assert told(data)[-1] == ("Assistant", '[{"name": "Ada"}]')


def test_tools_of_anthropic_get_the_form_of_servers() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    read = example({"prompt": "Capital?", "completion": "Lima.", "tools": [tool]})
    assert isinstance(read, Conversation)
    assert read.tools == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    ]


REASONED: list[tuple[str, Mapping[str, Any], Mapping[str, str]]] = [
    ("DeepSeek", {"prompt": "Capital of Peru?", "completion": "Lima.", "reasoning_content": "Peru…"}, {}),
    ("another name", {"question": "Capital of Peru?", "answer": "Lima.", "long_cot": "Peru…"}, {"reasoning": "long_cot"}),
    ("messages", {"prompt": [USER], "completion": [LIMA], "thinking": "Peru…"}, {"reasoning": "thinking"}),
    ("dolphin-r1", {"messages": [USER], "reasoning": "Peru…", "answer": "Lima.", "model": "R1"}, {"reasoning": "reasoning"}),
]  # fmt: skip


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize(
    ("value", "columns"), [row[1:] for row in REASONED], ids=[row[0] for row in REASONED]
)
def test_reasoning_in_a_column_is_the_answers_where_the_template_reads_it(
    value: Mapping[str, Any], columns: Mapping[str, str], key: str
) -> None:
    read = example(value, columns=columns, reads=lambda name: name == key)
    assert isinstance(read, Conversation)
    assert read.messages[-1] == {**LIMA, key: "Peru…"}
    with pytest.raises(StageError, match=r"datasets.chatTemplate .*or leave it out on purpose"):
        example(value, columns=columns)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize(
    "named", [["reasoning_content"], ["reasoning"], ["thinking"], ["reasoning", "reasoning_content"]]
)
def test_reasoning_of_a_message_has_the_name_that_the_template_reads(named: Sequence[str], key: str) -> None:
    answer = {**LIMA, **dict.fromkeys(named, "Peru…")}
    read = example({"messages": [USER, answer]}, reads=lambda name: name == key)
    assert isinstance(read, Conversation)
    assert read.messages[-1][key] == "Peru…"


def test_reasoning_is_mapped_on_advice_alone() -> None:
    value = {"prompt": "Capital of Peru?", "completion": "Lima.", "rationale": "Peru has one capital."}
    with pytest.raises(StageError, match=r"Map it: columns: \{reasoning: rationale\}, or leave it out"):
        example(value, reads=lambda name: name == "thinking")
    with pytest.raises(StageError, match=r"Remove it from the rows, or leave it out"):
        example({**value, "rationale": "on"}, reads=lambda name: name == "thinking")
    with pytest.raises(StageError, match=r"Remove it from the rows, or leave it out"):
        example({**value, "rationale": ["Peru has one capital."]}, reads=lambda name: name == "thinking")
    assert told(example(value, ignore=["rationale"])) == ASKED


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": [USER], "completion": [{**LIMA, "reasoning_content": "x"}], "reasoning_content": "y"},
        {"prompt": [USER], "completion": [LIMA, USER, LIMA], "reasoning_content": "y"},
    ],
)
def test_reasoning_whose_answer_is_not_clear_is_refused(value: Mapping[str, Any]) -> None:
    with pytest.raises(StageError, match="is the reasoning of one answer") as caught:
        example(value, reads=lambda _: True)
    assert "ignore: [reasoning_content]" in str(caught.value)


QUOTED = "Paris is the capital of France, it says."
MEANT: list[tuple[str, Mapping[str, Any], str]] = [
    ("another answer", {"prompt": "x", "completion": "y", "response": "z"},
     r"columns: \{prompt: prompt, completion: response, ignore: \[completion\]\}, or leave it out"),
    ("another answer of Alpaca's rows", {"instruction": "x", "output": "y", "solution": "z"},
     r"columns: \{prompt: instruction, completion: solution, ignore: \[output\]\}"),
    ("another answer to a question", {"question": "x", "answer": "y", "solution": "z"},
     r"columns: \{question: question, answer: solution, ignore: \[answer\]\}, or leave it out"),
    ("another question", {"question": "x", "answer": "y", "query": "z"},
     r"columns: \{question: query, answer: answer, ignore: \[question\]\}, or leave it out"),
    ("a class of a text", {"text": "x", "label": "sports"}, r"as the answer: columns: \{prompt: text, completion: label\}, or leave it out"),
    ("an argument of a template", {"messages": [USER, LIMA], "enable_thinking": True}, r"which datasets.chatTemplate sets .*ignore: \[enable_thinking\]"),
    ("arguments of a template", {"messages": [USER, LIMA], "chat_template_kwargs": {"enable_thinking": False}},
     r"which datasets.chatTemplate sets for all rows.*ignore: \[chat_template_kwargs\]"),
    ("an answer of another kind", {"prompt": "x", "completion": "y", "outputs": ["z"]}, r"Remove it from the rows, or"),
    ("a passage", {"question": "x", "answer": "y", "passage": "z"}, r"columns: \{input: passage\}"),
    ("choices", {"question": "x", "answer": "y", "options": {"A": "z"}}, r"choices of a question"),
    ("choices in columns", {"question": "x", "A": "y", "B": "z", "answer": "B"}, r"choices of a question.*ignore: \[A, B\]"),
    ("wrong choices", {"question": "x", "distractor1": "y", "answer": "z"}, r"choices of a question"),
    ("passages of RAGAS", {"question": "x", "answer": "y", "reference_contexts": ["z"]}, r"\{input: reference_contexts\}"),
    ("a table's schema", {"question": "x", "answer": "y", "sql_context": "CREATE"}, r"\{input: sql_context\}"),
    ("passages of DPR", {"question": "x", "answer": "y", "ctxs": [{"text": "z"}]}, r"Remove it from the rows, or .*\[ctxs\]"),
    ("what follows the completion", {"prompt": "def f(", "suffix": "return x", "completion": "x):"}, r"ignore: \[suffix\]"),
    ("functions", {"messages": [USER, LIMA], "available_tools": [FUNCTION]}, r"\{tools: available_tools\}"),
    ("functions of Bedrock", {"messages": [USER, LIMA], "toolConfig": {"tools": [{"toolSpec": FUNCTION}]}}, r"Remove it .*\[toolConfig\]"),
    ("a roles' mask", {"conversations": SHAREGPT, "mask": "User"}, r"ignore: \[mask\]"),
    ("a masked turn", {"messages": [USER, {**LIMA, "masked": True}]}, r"whether or which part of the turn is trained"),
    ("calls of the AI SDK", {"messages": [USER, {**LIMA, "toolInvocations": [{"toolName": "f"}]}]}, r"calls or their"),
    ("an invalid solution", {"problem": "x", "solution": "y", "solution_is_valid": "No"}, r"a judgment of the answer"),
    ("a context that only the answer quotes",
     {"messages": [USER, {"role": "assistant", "content": QUOTED}], "context": QUOTED}, r'nothing reads "context"'),
    ("a label as spreadsheets write it", {"prompt": "x", "completion": "y", "is_correct": "FALSE"}, r"\{label: is_correct\}"),
    ("which message the row is", {"text": "x", "role": "user"}, r"which message of a conversation"),
    ("a judgment", {"prompt": "x", "completion": "y", "is_response_0_safe": False}, r"a judgment of the answer"),
    *((f"{name} {value}", {"prompt": "x", "completion": "y", name: value}, rf"\{{label: {name}\}}")
      for name in ("verified", "passed", "is_valid", "approved") for value in (True, False)),
    *((f"{name} {value}", {"prompt": "x", "completion": "y", name: value}, rf"ignore: \[{name}\]")
      for name, value in (("is_rejected", True), ("flagged", False), ("accepted", False), ("status", "discarded"))),
    ("a channel", {"messages": [USER, {**LIMA, "channel": "analysis"}]}, r"the channel of the turn"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "says"), [case[1:] for case in MEANT], ids=[case[0] for case in MEANT])
def test_the_advice_for_what_nothing_reads_can_be_followed(value: Mapping[str, Any], says: str) -> None:
    with pytest.raises(StageError, match=says) as refused:
        example(value)
    advised = re.search(r"columns: (\{.*?\})[,.]", str(refused.value))
    assert advised
    columns = yaml.safe_load(advised[1])
    ignored = columns.pop("ignore", [])
    if "label" not in columns:
        example(value, columns=columns, ignore=ignored)


@pytest.mark.parametrize("flag", [True, 1, "1", "1.0", "true", "TRUE"])
def test_a_row_whose_flag_says_that_it_is_trained_is_read(flag: Any) -> None:
    assert example({"prompt": "x", "completion": "y", "train": flag})


def test_an_instruction_beside_an_input_that_row_1_has_alone_is_advised_with_it() -> None:
    schema, _ = schema_of({"instruction": "", "input": "hello", "output": "hola"})
    value = {"instruction": "Translate.", "input": "bye", "output": "adiós"}
    with pytest.raises(StageError, match="Use both") as refused:
        schema.example(Row(place=PLACE, value=value))
    advised = re.search(r"columns: (\{.*?\})", str(refused.value))
    assert advised
    assert told(example(value, columns=yaml.safe_load(advised[1]))) == [
        ("user", "Translate.\n\nbye"),
        ("Assistant", "adiós"),
    ]


def test_an_object_that_is_no_message_is_no_answer() -> None:
    squad = {"question": "Who?", "context": "Ana won.", "answers": {"text": ["Ana"], "answer_start": [0]}}
    with pytest.raises(StageError, match="found text and an object"):
        example(squad, columns={"prompt": "question", "completion": "answers"})


def test_a_prompt_that_holds_the_whole_row_is_not_read_twice() -> None:
    row = {
        "instruction": "Sum two numbers.",
        "output": "a + b",
        "prompt": "### Instruction: Sum two numbers. ### Output: a + b",
    }
    assert told(example(row)) == [("user", "Sum two numbers."), ("Assistant", "a + b")]


def test_several_passages_are_joined_after_the_prompt() -> None:
    read = told(example({"prompt": "Who?", "completion": "Ada.", "contexts": ["One.", "Two."]}))
    assert read[0] == ("user", "Who?\n\nOne.\n\nTwo.")


PASSAGE = "Ana won the race of 2020."


@pytest.mark.parametrize(
    ("prompt", "context", "asked"),
    [
        (f"{PASSAGE} Who won?", PASSAGE, f"{PASSAGE} Who won?"),
        (f"{PASSAGE} Who won?", [PASSAGE, "Bo lost."], f"{PASSAGE} Who won?\n\nBo lost."),
        ("Did Ana win?", "Ana", "Did Ana win?\n\nAna"),
    ],
)
def test_a_passage_that_the_prompt_contains_is_left_out_and_counted(
    prompt: str, context: Any, asked: str
) -> None:
    schema, row = schema_of({"prompt": prompt, "context": context, "completion": "Ana."})
    assert told(schema.example(row))[0] == ("user", asked)
    assert [each.name for each in schema.columns.unread.found()[0]] == ["context"] * (PASSAGE in prompt)


PROMPTS = {
    "post": "My cat does not eat any more.",
    "user_input": "Why does it not eat?",
    "trajectory": [{"from": "user", "value": "x"}],
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_pair_gets_no_prompt_of_its_answers_beside_a_column_that_may_be_one(name: str) -> None:
    row = {name: PROMPTS[name], "chosen": "Step 1: x is 1", "rejected": "Step 1: x is 3", "source": "math"}
    with pytest.raises(StageError, match=rf"columns: \{{prompt: {name}\}}"):
        pair(row)
    assert pair(row, columns={"prompt": name})
    assert pair(row, ignore=[name])


ALIKE = {"chosen": "The capital is Lima.", "rejected": "The capital is Cusco."}
UNPROMPTED: list[tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = [
    ("null", {"prompt": None}, {}, r"ignore: \[prompt\]"),
    ("null beside a system message", {"prompt": None, "system": "Be brief."}, {}, r"ignore: \[prompt\]"),
    ("null under another name", {"instruction": None, "id": "a"}, {}, r"ignore: \[instruction\]"),
    ("absent", {}, {"prompt": "x"}, '"prompt"'),
    ("null in a mapped column", {"post": None}, {"columns": {"prompt": "post"}}, '"post"'),
    ("messages that are none", {"input": {"messages": []}}, {}, r"ignore: \[input\]"),
    ("a short text", {"post": "Capital of Peru?"}, {}, r"\{prompt: post\}"),
    ("two words", {"topic": "photosynthesis explained", "category": "QA"}, {}, r"\{prompt: topic\}.*ignore: \[topic, category\]"),
    ("messages beside a text", {"turn": [{"from": "user", "value": "x"}], "task": "Coding"}, {}, r"\{prompt: turn\}"),
    ("no spaces", {"post": "秘鲁的首都是哪里?"}, {}, r"\{prompt: post\}"),
    ("a text within", {"info": {"post": "My cat…"}}, {}, r"ignore: \[info\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "fields", "says"), [row[1:] for row in UNPROMPTED], ids=[row[0] for row in UNPROMPTED]
)
def test_no_prompt_is_made_where_a_column_may_have_it(
    value: Mapping[str, Any], fields: Mapping[str, Any], says: str
) -> None:
    first = ALIKE | ({"prompt": "x"} if "prompt" in fields else dict(value))
    schema = PairSchema(spec(columns=fields.get("columns", {})), Row(place=PLACE, value=first))
    with pytest.raises(StageError, match=rf"has no prompt.*{says}") as caught:
        schema.pair(Row(place=PLACE, value=ALIKE | dict(value)))
    if ignored := re.search(r"ignore: \[(.*?)\]", str(caught.value)):
        read = pair(ALIKE | dict(value), ignore=ignored[1].split(", "))
        assert not isinstance(read, Unwanted)
        assert told(read[1])[-1] == ("Assistant", " Cusco.")


@pytest.mark.parametrize("score", [10**400, float("nan"), float("inf"), "good", [1]], ids=str)
def test_a_score_that_is_no_finite_number_is_refused(score: Any) -> None:
    row = {"prompt": "x", "chosen": "y", "rejected": "z", "score_chosen": score, "score_rejected": 1}
    with pytest.raises(StageError, match='"score_chosen" must be a number'):
        pair(row)


def test_the_advice_for_pairs_maps_their_prompt() -> None:
    row = {"question": "x", "accepted": "y", "rejected": "z"}
    with pytest.raises(StageError, match=r"\{chosen: accepted, rejected: rejected\}"):
        pair(row)
    with pytest.raises(StageError, match=r"question may have it\. Map it: columns: \{prompt: question\}"):
        pair(row, columns={"chosen": "accepted"})


#: Names that all mean ``text``.
SPELLINGS = {"_" * (n % 40) + "text" + "_" * (n // 40): f"{'ab' * 50}c{n}" for n in range(1_600)}


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{**USER, "k" * 2**22: 1}, LIMA]},
        {"prompt": "x", "completion": "y", "k" * 2**22: "z"},
        {"messages": [USER, {"role": "assistant", "content": "ab" * 2**19}],
         "turns": [f"{'ab' * 50}{n}" for n in range(20_000)]},
        {"messages": [USER, *[{"role": "assistant", "content": f"{n} and more"} for n in range(20_000)]],
         "text": " ".join(f"{n} and more" for n in range(20_000))},
        {"messages": [USER, {"role": "assistant", "content": "ab" * 10**7}]} | SPELLINGS,
        {"messages": [USER, {"role": "assistant", "content": "x\n\n" * 10**6}]} | SPELLINGS,
    ],
    ids=["key", "column", "parts", "whole", "spellings", "divided"],
)  # fmt: skip
@pytest.mark.timeout(180)
def test_long_names_and_repeated_texts_take_no_long_time(value: Mapping[str, Any]) -> None:
    """Each took minutes, or gigabytes."""
    with contextlib.suppress(StageError):
        example(value)


@pytest.mark.timeout(180)
def test_many_columns_take_no_long_time() -> None:
    """Each row took 46 ms, all of them four minutes."""
    schema, row = schema_of(
        {f"feature_store_value_{n:04d}": n for n in range(250)} | {"prompt": "x", "completion": "y"}
    )
    for _ in range(5000):
        schema.example(row)


REFUSED: list[tuple[str, Mapping[str, Any], str]] = [
    ("images", {"messages": [USER, LIMA], "images": ["a.png"]}, r'"images" .*pictures.*ignore: \[images\]'),
    ("other spelling", {"messages": [USER, LIMA], "Image-URL": "a.png"}, r"ignore: \[Image-URL\]"),
    ("audio", {"prompt": "x", "completion": "y", "audio": {"path": "a"}}, r"ignore: \[audio\]"),
    (
        "a label",
        {"prompt": "x", "completion": "y", "label": False},
        r"Map it: columns: \{label: label\}, or leave it out",
    ),
    ("a good label", {"prompt": "x", "completion": "y", "label": True}, r"ignore: \[label\]"),
    (
        "a label that is true for bad answers",
        {"prompt": "x", "completion": "y", "is_bad": False},
        r"Remove it from the rows, or leave it out",
    ),
    (
        "a rating",
        {"prompt": "x", "completion": "y", "rating": 1},
        r"Remove it from the rows, or leave it out",
    ),
    ("earlier turns", {"messages": [USER, LIMA], "chat_history": [["a", "b"]]}, "earlier turns"),
    (
        "messages as Python prints them",
        {"messages": str([USER, LIMA])},
        "Python's notation, not as JSON.*json.dumps",
    ),
    (
        "answers as Python prints them",
        {"prompt": str([USER]), "completion": str([LIMA])},
        "Python's notation",
    ),
    ("an answer that is a number", {"prompt": "x", "completion": 12}, "Write two strings"),
    ("a label beside messages", {"messages": [USER, LIMA], "kto_tag": False}, r"\{label: kto_tag\}"),
    (
        "a label of a text",
        {"text": "x", "label": 1},
        r"Remove it from the rows, or leave it out .*ignore: \[label\]",
    ),
    ("a summary of a text", {"text": "x", "summary": "y"}, r"ignore: \[summary\]"),
    ("a safety label", {"prompt": "x", "completion": "y", "is_safe": False}, r"label: is_safe"),
    ("a thought", {"question": "x", "answer": "y", "deepseek_thinking_trajectory": "z"}, "reasoning before"),
    (
        "a call in parts",
        {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]},
        "Write tool_use as tool_calls",
    ),
    ("a context of a conversation", {"messages": [USER, LIMA], "context": "Ana won."}, "text that belongs"),
    ("a history of a conversation", {"messages": [USER, LIMA], "history": [["a", "b"]]}, "earlier turns"),
    (
        "another answer",
        {"prompt": "x", "completion": "y", "response": "z"},
        r"an answer.*ignore: \[response\]",
    ),
    ("scores", {"prompt": "x", "completion": "y", "score_helpfulness": 3}, r"ignore: \[score_helpfulness\]"),
    (
        "a forged name",
        {"messages": [USER, LIMA], "\nimages\x1b": ["a"], "label: x": 0},
        r'ignore: \["\\nimages\\u001b"\]',
    ),
    ("several", {"messages": [USER, LIMA], "images": ["a"], "audios": ["b"]}, r"ignore: \[images, audios\]"),
    ("reasoning", {"question": "x", "answer": "y", "reasoning": "because"}, r"ignore: \[reasoning\]"),
    ("token ids", {"text": "x", "input_ids": [1]}, r"ignore: \[input_ids\]"),
    ("a row's weight", {"text": "x", "weight": 0.5}, r"ignore: \[weight\]"),
    ("a row that is not trained", {"messages": [USER, LIMA], "train": False}, r"ignore: \[train\]"),
    ("a system column of a text", {"text": "x", "system": "Be brief."}, "a system message"),
    (
        "two system columns",
        {"prompt": "x", "completion": "y", "system": "a", "system_prompt": "b"},
        "both provide system",
    ),
    (
        "two system messages",
        {"messages": [{"role": "system", "content": "Be long."}, USER, LIMA], "system": "Be brief."},
        'a system message and the column "system"',
    ),
    ("an input beside messages", {"prompt": [USER], "completion": [LIMA], "input": "x"}, "has no place"),
    ("a system object", {"prompt": "x", "completion": "y", "system": {"a": 1}}, '"system" must be text'),
    (
        "a history that is text",
        {"query": "x", "response": "y", "history": "x"},
        '"history" must be a list of',
    ),
    ("another history", {"query": "x", "response": "y", "history": [["a"]]}, "is not an object"),
    (
        "a picture in a message",
        {"messages": [{**USER, "images": ["a"]}, LIMA]},
        r'ignore: \["messages\[\].images"\]',
    ),
    (
        "an item that is no message",
        {"messages": [USER, {"type": "reasoning", "summary": []}, LIMA]},
        'message 2 has no role, and its type "reasoning" is none.*as role, or remove it',
    ),
    ("a refusal", {"messages": [USER, {**LIMA, "content": None, "refusal": "No."}]}, "a refusal"),
    ("parts of a turn", {"messages": [USER, {**LIMA, "train_detail": [{"begin_offset": 0}]}]}, "which part"),
    ("a mask per token", {"messages": [USER, {**LIMA, "loss_mask": [0, 1]}]}, "loss_mask .*must be 0 or 1"),
    ("flags that differ", {"messages": [USER, {**LIMA, "train": True, "weight": 0}]}, "contradict"),
    ("a call without a name", {"messages": [USER, {**LIMA, "function_call": {"x": 1}}]}, "function call"),
    ("a call of the user", {"messages": [{**USER, "function_call": CALL}, LIMA]}, "of the assistant"),
    (
        "a part without text",
        {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
        "type thinking",
    ),
    (
        "messages that are pairs of texts",
        {"messages": [["agent", "x"], ["client", "y"]]},
        "message 1 is not an object",
    ),
    ("a part that is a number", {"messages": [{"role": "user", "content": [3]}]}, "content part"),
    ("messages that are text", {"messages": "[not JSON"}, "list of messages"),
    ("a text without an answer", {"conversations": ["x", "y", "z"]}, 'texts in "conversations" .*3 texts'),
    (
        "texts with roles",
        {"conversations": ["Human: x", "AI: y"]},
        'texts in "conversations" .*role and content',
    ),
    (
        "ChatGPT's export",
        {"title": "x", "mapping": {"a": {}}, "current_node": "a"},
        "mapping .*ChatGPT's export.*docs/data.md",
    ),
    (
        "claude.ai's export",
        {"uuid": "x", "name": "y", "summary": "z", "chat_messages": [{}]},
        "chat_messages .*claude.ai's export",
    ),
    ("several columns without a shape", {"headline": "x", "score": 3}, "format cannot be determined"),
]


#: Values that look like a repetition of the row, or hide below it.
REFUSED += [
    ("reasoning that contains the answer", {"prompt": "What is 2+2?", "completion": "4", "rationale": "What is 2+2? It is 4."}, r"ignore: \[rationale\]"),
    ("an answer that contains the other", {"prompt": "What is 2+2?", "completion": "4", "rejected": "What is 2+2? 4 or so"}, r"ignore: \[rejected\]"),
    ("a flag with the text of the answer", {"prompt": "Is it so?", "completion": "false", "train": "false"}, r"ignore: \[train\]"),
    ("a label with the text of the answer", {"prompt": "Is it so?", "completion": "0", "is_good": "0"}, r"label: is_good"),
    ("a part that is not trained", {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "x", "train": False}]}]}, r'ignore: \["messages\[\].train"\]'),
    ("a picture in a text part", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "image_url": {"url": "a"}}]}, LIMA]}, r'ignore: \["messages\[\].image_url"\]'),
    ("tools that are nested too deeply", {"messages": [USER, LIMA], "tools": "[" * 500 + "]" * 500}, "nested too deeply"),
    ("keys that occur twice", {"messages": '[{"role": "assistant", "content": "good", "content": "EVIL"}]'}, "occurs twice"),
    ("a label of bad answers", {"prompt": "x", "completion": "y", "is_bad": False}, r"Remove it from the rows, or leave it out"),
    ("a rating", {"prompt": "x", "completion": "y", "rating": 1}, r"Remove it from the rows, or leave it out"),
    ("turns of the same chat", {"messages": [USER, LIMA], "chat_history": [["a", "b"]]}, "earlier turns"),
    ("messages as Python prints them", {"messages": str([USER, LIMA])}, "Python's notation, not as JSON.*json.dumps"),
    ("answers as Python prints them", {"prompt": str([USER]), "completion": str([LIMA])}, "Python's notation"),
    ("an answer that is a number", {"prompt": "x", "completion": 12}, "Write two strings"),
    ("a class", {"prompt": "x", "completion": "y", "label": "sports"}, r"Remove it from the rows, or leave it out"),
    ("another way to train", {"prompt": "x", "completion": "y", "train_on_inputs": True}, r"ignore: \[train_on_inputs\]"),
    ("a call in Gemini's parts", {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}]}, "Write tool_use as tool_calls"),
    ("a thought in Gemini's parts", {"contents": [{"role": "user", "parts": [{"text": "x"}]}, {"role": "model", "parts": [{"text": "x", "thought": True}]}]},
     r'ignore: \["messages\[\].thought"\]'),
    ("what LangChain keeps beside a content", {"messages": [{"type": "ai", "content": "x", "additional_kwargs": {"function_call": CALL}}]},
     r'ignore: \["messages\[\].additional_kwargs"\]'),
    ("functions in Gemini's form", {"messages": [USER, LIMA], "tools": [{"functionDeclarations": [FUNCTION]}]}, "JSON schema of a function"),
    ("functions in Bedrock's form", {"messages": [USER, LIMA], "tools": [{"toolSpec": FUNCTION}]}, "JSON schema of a function"),
    ("an OpenAssistant message", {"message_id": "a", "parent_id": "b", "text": "x", "role": "prompter"}, "which message of a conversation"),
    ("a system object without text", {"messages": [USER, LIMA], "system": {"parts": 3}}, "must be text"),
    ("a prompt and an answer after an answer", {"prompt": [USER, LIMA], "completion": [LIMA]}, "ends with a turn of the assistant"),
    ("results of tests", {"input": "x", "output": "y", "tests_execution_status": '["pass", "fail"]', "average_test_score": "0.5"},
     r"a judgment .*ignore: \[tests_execution_status, average_test_score\]"),
    ("a verdict", {"prompt": "x", "completion": "y", "overall_score": 1}, r"ignore: \[overall_score\]"),
    ("many names", {"text": "x"} | {f"score_{number}": 1 for number in range(30)}, r"score_7\]\}, and 22 more"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "error"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_value_with_a_meaning_is_never_passed_over(value: Mapping[str, Any], error: str) -> None:
    with pytest.raises(StageError, match=error) as caught:
        example(value)
    assert "row 1" in str(caught.value)
    assert "file:///a.jsonl" in str(caught.value)


def test_a_wrong_guess_is_corrected_by_naming_the_format_or_the_columns() -> None:
    value = {"prompt": "x", "completion": "y", "question": "Capital of Peru?", "answer": "Lima."}
    with pytest.raises(StageError, match=r"ignore: \[question, answer\]"):
        example(value)
    named = {"format": "QuestionAnswer", "ignore": ["prompt", "completion"]}
    assert told(example(value, **named)) == ASKED
    mapped = {"columns": {"prompt": "question", "completion": "answer"}, "ignore": ["prompt", "completion"]}
    assert told(example(value, **mapped)) == ASKED


def test_rows_of_another_shape_belong_in_a_source_of_their_own() -> None:
    schema, _ = schema_of({"messages": [USER, LIMA]})
    with pytest.raises(StageError, match=r'row 2: there is no column "messages".*in a source of their own'):
        schema.example(Row(place=replace(PLACE, row=2), value={"prompt": "x", "completion": "y"}))


@pytest.mark.parametrize("name", ["images", "kto_tag", "context", "response", "train", "text", "input_ids"])
@pytest.mark.parametrize("empty", [None, "", "  ", "[]", "{}", [], {}, [None], {"a": None}])
def test_an_empty_value_is_as_if_it_were_absent(name: str, empty: Any) -> None:
    schema, row = schema_of({"messages": [USER, LIMA], name: empty})
    assert told(schema.example(row)) == ASKED
    assert schema.columns.unread.found() == ([], 0)


@pytest.mark.parametrize("weight", [1, 1.0, True])
def test_a_row_of_weight_1_is_like_any_other(weight: Any) -> None:
    assert told(example({"messages": [USER, LIMA], "weight": weight})) == ASKED


def test_what_is_left_out_on_purpose_is_counted() -> None:
    value = {
        "messages": [{**USER, "images": ["a"], "content": [{"type": "text", "text": "Capital of Peru?"},
                                                             {"type": "image_url", "image_url": "b"}]}, LIMA],
        "label": False, "images": ["c"],
    }  # fmt: skip
    schema, row = schema_of(value, ignore=["label", "images", "messages[].images", "messages[].image_url"])
    assert told(schema.example(row)) == ASKED
    found, more = schema.columns.unread.found()
    assert [(each.name, each.count, each.ignored) for each in found] == [
        ("messages[].images", 1, True), ("messages[].image_url", 1, True),
        ("label", 1, True), ("images", 1, True),
    ]  # fmt: skip
    assert more == 0


def test_a_column_that_is_left_out_leaves_keys_of_the_same_name_alone() -> None:
    wrong = {"role": "assistant", "content": [{"type": "text", "text": "WRONG"}], "weight": 0}
    value = {"messages": [USER, wrong, USER, LIMA], "weight": 0.7, "text": "other"}
    read = example(value, ignore=["weight", "text"])
    assert told(read) == [ASKED[0], ("assistant", "WRONG"), *ASKED]


@pytest.mark.parametrize("gone", [{}, {"prompt": None, "completion": None}])
def test_a_column_that_is_left_out_has_no_part_in_the_shape(gone: Mapping[str, Any]) -> None:
    """Readers of columnar files do not read such columns."""
    value = {"prompt": "P", "completion": "C", "text": "the whole"} | gone
    schema, row = schema_of(value, ignore=["prompt", "completion"])
    read = schema.example(row)
    assert str(schema.columns.shape) == "Text"
    assert texts_of(read) == ([], ["the whole"])  # type: ignore[arg-type]


def test_the_json_of_a_chat_can_be_an_answer() -> None:
    chat = json.dumps([USER, LIMA])
    assert told(example({"prompt": "Write a chat.", "completion": chat})) == [
        ("user", "Write a chat."),
        ("Assistant", chat),
    ]


def test_the_earlier_turns_of_a_pair_may_begin_with_its_prompt() -> None:
    more = [USER, LIMA, {"role": "user", "content": "And Chile?"}]
    last = {"role": "assistant", "content": "Santiago."}
    read = pair({"prompt": "Capital of Peru?", "chosen": [*more, last], "rejected": [*more, RATHER]})
    assert not isinstance(read, Unwanted)
    assert told(read[0]) == [
        ASKED[0],
        ("assistant", "Lima."),
        ("user", "And Chile?"),
        ("Assistant", "Santiago."),
    ]


@pytest.mark.parametrize(
    "system", ["Be brief.", [{"text": "Be brief."}], [{"type": "text", "text": "Be brief."}]]
)
def test_a_system_column_may_be_in_text_parts(system: Any) -> None:
    assert told(example({"messages": [USER, LIMA], "system": system})) == [BE_BRIEF, *ASKED]


def test_unknown_values_are_counted_by_name_with_one_example() -> None:
    first = {
        "messages": [{**USER, "id": 7}, LIMA],
        "source": "flan\x1b[31m" + "x" * 500,
        "turn": 1,
        "note": None,
    }
    schema, row = schema_of(first)
    for value in (first, {**first, "turn": 2, "note": "late"}):
        schema.example(Row(place=PLACE, value=value))
    found = {each.name: each for each in schema.columns.unread.found()[0]}
    assert {name: (each.count, each.text) for name, each in found.items()} == {
        "messages[].id": (2, False), "source": (2, True), "turn": (2, False), "note": (1, True),
    }  # fmt: skip
    assert len(found["source"].example) == 200
    assert found["source"].example.isprintable()
    assert found["turn"].example == "1"
    del row


def test_a_text_that_contains_more_than_what_is_read_is_counted() -> None:
    value = {"prompt": "Peru?", "completion": "Lima", "text": "SYSTEM: Be brief. USER: Peru? ASSISTANT: Lima"}
    schema, row = schema_of(value)
    schema.example(row)
    assert [each.name for each in schema.columns.unread.found()[0]] == ["text"]
    assert schema_of({"text": "x", "hints": [["see page 3"]]})[0].columns.unread.found() == ([], 0)


def test_texts_within_lists_and_objects_count_as_text() -> None:
    schema, row = schema_of({"text": "x", "hints": [{"page": 3, "note": "see"}], "pages": [1, 2]})
    schema.example(row)
    assert {each.name: each.text for each in schema.columns.unread.found()[0]} == {
        "hints": True,
        "pages": False,
    }


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ({"Body": "x"}, {"text": "Body"}),
        ({"document": "x", "summary": "y"}, {}),
        ({"dialog": [USER], "system": "x", "label": 1}, {"messages": "dialog"}),
        ({"Question": "x", "Answer": "y", "Context": "z"}, {"question": "Question", "answer": "Answer"}),
        ({"query": "x", "reply": "y", "note": "z"}, {"prompt": "query", "completion": "reply"}),
    ],
)
def test_advice_for_unknown_columns_loses_none(value: Mapping[str, Any], advice: Mapping[str, str]) -> None:
    with pytest.raises(StageError) as caught:
        example(value)
    columns = ", ".join(f"{ours}: {theirs}" for ours, theirs in advice.items())
    assert (f"Name them: columns: {{{columns}}}." if advice else "Name the columns, for") in caught.value.fix
    if not advice:
        return
    schema, row = schema_of(value, columns=advice)
    try:
        read = schema.example(row)
    except StageError as error:
        assert (error.reason, 'nothing reads "label"' in error.what) == ("ValueNotRead", "label" in value)
    else:
        assert not isinstance(read, Unwanted)
        said = json.dumps(texts_of(read))
        unread = {value.name for value in schema.columns.unread.found()[0]}
        assert all(name in unread or str(text) in said for name, text in value.items())


def test_at_most_50_names_are_kept() -> None:
    value = {"text": "x"} | {f"column {number} {'y' * 200}": number for number in range(60)}
    schema, row = schema_of(value)
    schema.example(row)
    found, more = schema.columns.unread.found()
    assert (len(found), more) == (50, 10)
    assert all(len(each.name) <= 100 for each in found)


def test_keys_that_the_template_reads_are_given_to_it() -> None:
    message = {**LIMA, "name": "Ana", "mood": "glad", "reasoning_content": "Peru…"}
    schema, row = schema_of({"messages": [USER, message]}, reads=lambda key: key == "name")
    read = schema.example(row)
    assert isinstance(read, Conversation)
    assert read.messages[1] == {**LIMA, "name": "Ana", "reasoning_content": "Peru…"}
    assert [each.name for each in schema.columns.unread.found()[0]] == ["messages[].mood"]


def test_what_nothing_reads_of_a_pairs_prompt_is_counted_once() -> None:
    row = Row(
        place=PLACE, value={"prompt": [{**USER, "id": 7}], "chosen": [LIMA], "rejected": [{**LIMA, "id": 8}]}
    )
    schema = PairSchema(spec(), row, reads=lambda _: False)
    schema.pair(row)
    assert [(value.name, value.count) for value in schema.columns.unread.found()[0]] == [("messages[].id", 2)]


@pytest.mark.parametrize(
    ("label", "good"),
    [(True, True), (1, True), ("true", True), ("1.0", True), (False, False), (0, False), ("False", False)],
)
def test_a_mapped_label_decides_whether_the_answer_is_trained(label: Any, good: bool) -> None:
    value = {"prompt": "Capital of Peru?", "completion": "Lima.", "is_ok": label}
    read = example(value, columns={"label": "is_ok"})
    assert (told(read) == ASKED) if good else read == Unwanted(place=PLACE, why=BAD_ANSWER)


@pytest.mark.parametrize("label", [None, "", " "])
def test_a_row_without_the_mapped_label_is_not_trained(label: Any) -> None:
    schema, _ = schema_of({"prompt": "x", "completion": "y", "label": 1}, columns={"label": "label"})
    for value in ({"label": label}, {}):
        read = schema.example(Row(place=PLACE, value={"prompt": "x", "completion": "y", **value}))
        assert read == Unwanted(place=PLACE, why=NO_LABEL)


@pytest.mark.parametrize("label", ["positive", 2, [1], 0.5])
def test_a_label_of_another_kind_is_refused(label: Any) -> None:
    with pytest.raises(StageError, match='label "label" must be true or false'):
        example({"prompt": "x", "completion": "y", "label": label}, columns={"label": "label"})


# --- pairs

HH = "\n\nHuman: Capital of Peru?\n\nAssistant:"
RATHER = {"role": "assistant", "content": "No idea."}
PAIR = (
    [("user", "Capital of Peru?"), ("Assistant", "Lima.")],
    [("user", "Capital of Peru?"), ("Assistant", "No idea.")],
)
PAIRED: list[tuple[str, Mapping[str, Any]]] = [
    ("an input as the prompt", {"input": "Capital of Peru?", "chosen": "Lima.", "rejected": "No idea."}),
    ("a context as the prompt", {"context": "Capital of Peru?", "chosen": "Lima.", "rejected": "No idea."}),
    ("a problem", {"problem": "Capital of Peru?", "chosen": "Lima.", "rejected": "No idea."}),
    ("HH-RLHF", {"chosen": f"{HH} Lima.", "rejected": f"{HH} No idea."}),
    ("UltraFeedback", {"prompt": "Capital of Peru?", "prompt_id": "a", "chosen": [USER, LIMA], "rejected": [USER, RATHER],
                       "messages": [USER, LIMA], "score_chosen": 8.5, "score_rejected": 4.0}),
    ("lists without a prompt", {"chosen": [USER, LIMA], "rejected": [USER, RATHER]}),
    ("orca_dpo_pairs", {"question": "Capital of Peru?", "chosen": "Lima.", "rejected": "No idea.", "system": ""}),
    ("LLaMA-Factory", {"instruction": "Capital of Peru?", "input": "", "chosen": "Lima.", "rejected": "No idea."}),
    ("LLaMA-Factory's ShareGPT", {"conversations": SHAREGPT[:1], "chosen": {"from": "gpt", "value": "Lima."},
                                  "rejected": {"from": "gpt", "value": "No idea."}}),
    ("argilla", {"instruction": "Capital of Peru?", "chosen_response": "Lima.", "rejected_response": "No idea."}),
    ("OpenAI", {"input": {"messages": [USER]}, "preferred_output": [LIMA], "non_preferred_output": [RATHER]}),
    ("ms-swift", {"query": "Capital of Peru?", "response": "Lima.", "rejected_response": "No idea."}),
    ("a prompt of messages and texts", {"prompt": [USER], "chosen": "Lima.", "rejected": "No idea."}),
    ("ms-swift's messages", {"messages": [USER, LIMA], "rejected_response": "No idea."}),
    ("ms-swift's two conversations", {"messages": [USER, LIMA], "rejected_messages": [USER, RATHER]}),
    ("full-hh-rlhf", {"prompt": HH, "response": " Lima.", "chosen": " Lima.", "rejected": " No idea."}),
    ("HH-RLHF beside its prompt", {"prompt": HH, "chosen": f"{HH} Lima.", "rejected": f"{HH} No idea."}),
    ("HH-RLHF beside a plain prompt", {"prompt": "Capital of Peru?", "chosen": f"{HH} Lima.", "rejected": f"{HH} No idea."}),
    ("Tulu 3", {"id": "a", "source": "b", "prompt": "Capital of Peru?", "chosen": [USER, LIMA], "rejected": [USER, RATHER],
                "chosen_model": "c", "rejected_model": "d", "chosen_rating": 5, "rejected_rating": 3}),
    ("JSON text", {"chosen": json.dumps([USER, LIMA]), "rejected": json.dumps([USER, RATHER])}),
]  # fmt: skip


@pytest.mark.parametrize("value", [row[1] for row in PAIRED], ids=[row[0] for row in PAIRED])
def test_a_published_shape_of_pairs_is_read_without_renaming(value: Mapping[str, Any]) -> None:
    read = pair(value)
    assert not isinstance(read, Unwanted)
    assert (told(read[0]), told(read[1])) == PAIR


def test_a_blank_prompt_is_not_replaced_by_what_answers_share() -> None:
    read = pair({"prompt": "", "chosen": "The capital is Lima.", "rejected": "The capital is Cusco."})
    assert not isinstance(read, Unwanted)
    assert told(read[0]) == [("user", ""), ("Assistant", "The capital is Lima.")]


def test_what_surrounds_a_pair_is_read() -> None:
    value = {"instruction": "And Chile?", "input": "Be sure.", "chosen": "Santiago.", "rejected": "Lima.",
             "system": "Be brief.", "history": [["Peru?", "Lima."]], "tools": [FUNCTION]}  # fmt: skip
    read = pair(value)
    assert not isinstance(read, Unwanted)
    for answer, text in zip(read, ("Santiago.", "Lima."), strict=True):
        assert isinstance(answer, Conversation)
        assert answer.tools
        assert told(answer) == [BE_BRIEF, ("user", "Peru?"), ("assistant", "Lima."),
                                ("user", "And Chile?\n\nBe sure."), ("Assistant", text)]  # fmt: skip


def test_the_tools_of_a_request_are_those_of_the_pair() -> None:
    read = pair({"input": {"messages": [USER], "tools": [FUNCTION], "parallel_tool_calls": True},
                 "preferred_output": [LIMA], "non_preferred_output": [RATHER]})  # fmt: skip
    assert not isinstance(read, Unwanted)
    assert all(isinstance(answer, Conversation) and answer.tools for answer in read)


def test_a_system_message_in_both_answers_belongs_to_the_prompt() -> None:
    system = {"role": "system", "content": "Be brief."}
    read = pair(
        {"prompt": "Capital of Peru?", "chosen": [system, USER, LIMA], "rejected": [system, USER, RATHER]}
    )
    assert not isinstance(read, Unwanted)
    assert told(read[0]) == [BE_BRIEF, *PAIR[0]]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"chosen": "Lima.", "rejected": "No idea."}, NO_PROMPT),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "score_chosen": 1, "score_rejected": 2}, BETTER_REJECTED),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "score_chosen": "1", "score_rejected": "2.5"}, BETTER_REJECTED),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "chosen_reward_score": 1, "rejected_reward_score": 2}, BETTER_REJECTED),
        ({"chosen": f"{HH} Lima.", "rejected": "\n\nHuman: Hi\n\nAssistant: Hello"}, OTHER_PROMPTS),
        ({"chosen": f"{HH} Lima.\n\nHuman: thanks", "rejected": f"{HH} Lima.\n\nHuman: thanks"}, OTHER_PROMPTS),
    ],
)  # fmt: skip
def test_a_pair_that_contradicts_itself_is_not_trained(value: Mapping[str, Any], why: str) -> None:
    assert pair(value) == Unwanted(place=PLACE, why=why)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"prompt": "x", "chosen": "a", "rejected": "b", "images": ["c"]}, r"ignore: \[images\]"),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "label": True}, r"ignore: \[label\]"),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "response": "c"}, r"ignore: \[response\]"),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "score_chosen": "good", "score_rejected": 1}, "must be a number"),
        ({"prompt": [USER], "chosen": [{**LIMA, "train": False}], "rejected": [RATHER]}, '"chosen" has weight 0'),
        ({"prompt": [USER], "chosen": [LIMA], "rejected": [{**USER, "content": "Why?"}]}, '"rejected" begins with a turn of the user'),
    ],
)  # fmt: skip
def test_pairs_are_refused_by_name_too(value: Mapping[str, Any], error: str) -> None:
    with pytest.raises(StageError, match=error):
        pair(value)


ASK = "What is the capital of Peru, in one word?"


@pytest.mark.parametrize("columns", [("prompt", "chosen", "rejected"), ("input", "chosen", "rejected")])
def test_a_prompt_in_front_of_both_texts_is_read_once(columns: Sequence[str]) -> None:
    read = pair(dict(zip(columns, (ASK, f"{ASK} Lima", f"{ASK} Cusco"), strict=True)))
    assert not isinstance(read, Unwanted)
    assert (told(read[0]), told(read[1])) == (
        [("user", ASK), ("Assistant", " Lima")], [("user", ASK), ("Assistant", " Cusco")],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected"), [("Hi", "Hi there", "Hi!"), (ASK, f"{ASK} Lima", "Cusco"), (ASK, ASK, f"{ASK} Lima")]
)  # fmt: skip
def test_answers_that_only_begin_alike_stay_whole(prompt: str, chosen: str, rejected: str) -> None:
    read = pair({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    assert not isinstance(read, Unwanted)
    assert [told(each)[1][1] for each in read] == [chosen, rejected]


KEYED = [{"human": "Capital of Peru?", "assistant": "Lima."}]
REPEATED: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("a text", {"prompt": "Capital of Peru?", "completion": [USER, LIMA]}, {}),
    ("messages", {"prompt": [USER], "completion": [USER, LIMA]}, {}),
    ("in another form", {"prompt": [USER], "completion": KEYED}, {}),
    ("a prompt in messages", {"messages": [USER], "answer": [USER, LIMA]}, {}),
    ("earlier turns", {"prompt": [{"role": "system", "content": "Be brief."}, USER],
                       "completion": [USER, LIMA]}, {}),
    ("UltraFeedback", {"prompt": "Capital of Peru?", "chosen": [USER, LIMA]}, {"columns": {"completion": "chosen"}}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "fields"), [row[1:] for row in REPEATED], ids=[row[0] for row in REPEATED])
def test_a_prompt_that_the_completion_repeats_is_read_once(
    value: Mapping[str, Any], fields: Mapping[str, Any]
) -> None:
    assert [turn for turn in told(example(value, **fields)) if turn != BE_BRIEF] == ASKED


def test_a_prompt_that_keyed_answers_repeat_is_read_once() -> None:
    other = [{"human": "Capital of Peru?", "assistant": "No idea."}]
    read = pair({"prompt": "Capital of Peru?", "chosen": KEYED, "rejected": other})
    assert not isinstance(read, Unwanted)
    assert (told(read[0]), told(read[1])) == PAIR


def test_a_prompt_beside_whole_conversations_can_be_left_out() -> None:
    value = {"prompt": "<|user|>Capital of Peru?", "chosen": [USER, LIMA], "rejected": [USER, RATHER]}
    with pytest.raises(StageError, match=r'"chosen" begins with .*leave the prompt out .*ignore: \[prompt\]'):
        pair(value)
    read = pair(value, ignore=["prompt"])
    assert not isinstance(read, Unwanted)
    assert (told(read[0]), told(read[1])) == PAIR


@pytest.mark.parametrize("completion", [[{**USER, "content": "Why?"}, LIMA], [USER], KEYED * 2])
def test_a_completion_that_begins_with_another_turn_of_the_user_is_refused(completion: Any) -> None:
    value = {"prompt": "Capital of Chile?", "completion": completion}
    says = r'"completion" begins with a turn of the user.*\{messages: completion, ignore: \[prompt\]\}'
    with pytest.raises(StageError, match=says):
        example(value)
    read = example(value, columns={"messages": "completion"}, ignore=["prompt"])
    assert isinstance(read, Conversation)


THOUGHT = "<think>\nIt is in Peru.\n</think>\n\nLima."


@pytest.mark.parametrize("content", [THOUGHT, THOUGHT.removeprefix("<think>\n")])
@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"prompt": "Capital of Peru?", "completion": ""}, "reasoning_content"),
        ({"prompt": [USER], "completion": [{**LIMA, "content": ""}]}, "reasoning_content"),
        ({"messages": [USER, {**LIMA, "reasoning_content": ""}]}, '"messages[].reasoning_content"'),
    ],
)
def test_reasoning_in_the_answer_and_beside_it_is_read_once(
    value: Mapping[str, Any], name: str, content: str
) -> None:
    def row(thought: str) -> dict[str, Any]:
        if "messages" in value:
            return {"messages": [USER, {**LIMA, "content": content, "reasoning_content": thought}]}
        answer = [{**LIMA, "content": content}] if isinstance(value["completion"], list) else content
        return {**value, "completion": answer, "reasoning_content": thought}

    def reads(key: str) -> bool:
        return key == "reasoning_content"

    for read in (
        example(row("It is in Peru."), reads=reads),
        example(row("Other."), reads=reads, ignore=[name.strip('"')]),
    ):
        assert isinstance(read, (Conversation, TextPair))
        assert told(read)[-1] == ("Assistant", content)
        assert isinstance(read, TextPair) or "reasoning_content" not in read.messages[-1]
    with pytest.raises(StageError, match=rf"ignore: \[{re.escape(name)}\]"):
        example(row("Other."), reads=reads)


BETTER: list[tuple[str, Mapping[str, Any], str]] = [
    ("TRL", {"prompt": [USER], "chosen": [LIMA], "rejected": [RATHER]}, "{prompt: prompt, completion: chosen, ignore: [rejected]}"),
    ("a question", {"question": "Capital of Peru?", "chosen": [LIMA], "rejected": [RATHER]}, "{prompt: question, completion: chosen, ignore: [rejected]}"),
    ("texts", {"question": "Capital of Peru?", "chosen": "Lima.", "rejected": "No."}, "{prompt: question, completion: chosen, ignore: [rejected]}"),
    ("LLaMA-Factory", {"conversations": SHAREGPT[:1], "chosen": SHAREGPT[1], "rejected": SHAREGPT[1]}, "{prompt: conversations, completion: chosen, ignore: [rejected]}"),
    ("UltraFeedback", {"prompt": "Capital of Peru?", "chosen": [USER, LIMA], "rejected": [USER, RATHER]}, "{messages: chosen, ignore: [rejected]}"),
    ("conversations", {"chosen": SHAREGPT, "rejected": SHAREGPT}, "{messages: chosen, ignore: [rejected]}"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "advice"), [row[1:] for row in BETTER], ids=[row[0] for row in BETTER])
def test_the_advice_to_train_on_better_answers_keeps_their_prompt(
    value: Mapping[str, Any], advice: str
) -> None:
    columns = yaml.safe_load(advice)
    with pytest.raises(StageError, match=re.escape(f"columns: {advice}")):
        example(value)
    assert told(example(value, ignore=columns.pop("ignore"), columns=columns)) == ASKED


def test_answers_without_a_prompt_are_not_advised_as_conversations() -> None:
    with pytest.raises(StageError, match="Use a preference method, or write prompt and completion"):
        example({"chosen": [LIMA], "rejected": [RATHER]})


@pytest.mark.parametrize(
    "prompt",
    [
        [{"type": "human", "content": "Capital of Peru?"}],
        [{"role": "USER", "message": "Capital of Peru?"}],
        [{"role": "user", "parts": [{"text": "Capital of Peru?"}]}],
        [{"from": "human", "value": "Capital of Peru?"}],
        {"role": "user", "text": "Capital of Peru?"},
        [{"type": "human", "data": {"content": "Capital of Peru?"}}],
    ],
)
def test_messages_in_json_text_are_read_in_every_form(prompt: Any) -> None:
    assert told(example({"prompt": json.dumps(prompt), "completion": "Lima."})) == ASKED


@pytest.mark.parametrize("answer", [[{"type": "city", "text": "Lima"}], {"type": "error", "message": "x"}])
def test_json_that_is_no_message_is_an_answer(answer: Any) -> None:
    text = json.dumps(answer)
    assert told(example({"prompt": [USER], "completion": text}))[-1] == ("Assistant", text)


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": [USER, LIMA], "chosen": [LIMA], "rejected": [RATHER]},
        {"prompt": [USER, LIMA], "chosen": "Lima.", "rejected": "No idea."},
        {"chosen": [USER, LIMA, LIMA], "rejected": [USER, LIMA, RATHER]},
    ],
)
def test_a_prompt_that_ends_with_an_answer_is_refused(value: Mapping[str, Any]) -> None:
    with pytest.raises(StageError, match=r"ends with a turn of the assistant.*Join the two turns"):
        pair(value)
    joined = {"prompt": [USER], "chosen": "Lima. Lima.", "rejected": "Lima. No idea."}
    assert not isinstance(pair(joined), Unwanted)


def test_tools_of_a_request_and_of_its_row_are_the_same_or_refused() -> None:
    row = {"input": {"messages": [USER], "tools": [FUNCTION]}, "preferred_output": [LIMA], "non_preferred_output": [RATHER]}  # fmt: skip
    assert not isinstance(pair({**row, "tools": [FUNCTION]}), Unwanted)
    assert not isinstance(pair({**row, "tools": []}), Unwanted)
    for other in ({"tools": [{**FUNCTION, "name": "f"}]}, {"functions": [{**FUNCTION, "name": "f"}]}):
        with pytest.raises(StageError, match=r"tools.*(Write it once|both provide tools)"):
            pair({**row, **other})


ULTRAFEEDBACK = {
    "source": "evol_instruct", "instruction": "Capital of Peru?", "models": ["a", "b"], "correct_answers": None,
    "completions": [
        {"model": "a", "response": "No idea.", "overall_score": 2.0, "annotations": {"helpfulness": {"Rating": "1"}}},
        {"model": "b", "response": "Lima.", "overall_score": 9.0, "annotations": {"helpfulness": {"Rating": "5"}}},
    ],
}  # fmt: skip
NECTAR = {
    "prompt": HH, "turns": 1, "num_responses": 2, "source": ["x"], "good_natured": True,
    "answers": [{"answer": "Lima.", "model": "a", "rank": 1.0}, {"answer": "No idea.", "model": "b", "rank": 2.0}],
}  # fmt: skip


def recipe(of: str) -> dict[str, Any]:
    """Returns the names that the recipe of docs/data.md with this line defines."""
    parts = (ROOT / "docs/data.md").read_text("utf-8").split("```python\n")[1:]
    (code,) = [code for part in parts if of in (code := part.partition("```")[0])]
    names: dict[str, Any] = {}
    exec(code, names)
    return names


ANSWERS: Sequence[Mapping[str, Any]] = ULTRAFEEDBACK["completions"]


@pytest.mark.parametrize(
    "answers",
    [[], None, ANSWERS[:1], [{**answer, "overall_score": None} for answer in ANSWERS],
     [{**ANSWERS[0], "overall_score": None}, ANSWERS[1]], [ANSWERS[1], ANSWERS[1]]],
)  # fmt: skip
def test_the_recipe_for_pairs_leaves_out_rows_without_a_better_answer(answers: Any) -> None:
    assert recipe("def pair(")["pair"]({**ULTRAFEEDBACK, "completions": answers}) is None


def test_the_recipe_for_pairs_leaves_out_answers_without_a_score() -> None:
    row = {**ULTRAFEEDBACK, "completions": [*ANSWERS, {"response": "?", "overall_score": None, "rank": None}]}
    assert recipe("def pair(")["pair"](row)["rejected"] == "No idea."


@pytest.mark.parametrize("value", [ULTRAFEEDBACK, NECTAR], ids=["UltraFeedback", "Nectar"])
def test_which_of_several_answers_make_a_pair_is_never_guessed(value: Mapping[str, Any]) -> None:
    """What the error and the documentation say is done as they say it."""
    for read in (pair, example):
        with pytest.raises(StageError, match=r"has several answers.*as chosen and rejected"):
            read(value)
    names = recipe("def pair(")
    chosen = pair(names["pair"](value))
    assert not isinstance(chosen, Unwanted)
    assert (told(chosen[0]), told(chosen[1])) == PAIR


# --- exports of chats


def said_in_chatgpt(name: str, parent: str | None, role: str, text: str, **content: Any) -> dict[str, Any]:
    message = {"author": {"role": role}, "content": {"content_type": "text", "parts": [text], **content}, "recipient": "all"}  # fmt: skip
    return {"id": name, "message": message, "parent": parent, "children": []}


def said_in_claude(name: str, role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"uuid": name, "sender": role, "text": text, "content": [{"type": "text", "text": text}], "attachments": [], "files": [], **more}  # fmt: skip


TREE = {
    "root": {"id": "root", "message": None, "parent": None, "children": ["s"]},
    "s": said_in_chatgpt("s", "root", "system", ""),
    "q": said_in_chatgpt("q", "s", "user", "Capital of Peru?"),
    "old": said_in_chatgpt("old", "q", "assistant", "Cusco."),
    "a": said_in_chatgpt("a", "q", "assistant", "Lima."),
}
CHATGPT = {"title": "Peru", "create_time": 1.5, "mapping": TREE, "current_node": "a"}
CLAUDE = {"uuid": "c", "name": "Peru", "summary": "", "chat_messages": [said_in_claude("q", "human", "Capital of Peru?"), said_in_claude("a", "assistant", "Lima.")]}  # fmt: skip
ROOT_OF_CLAUDE = "00000000-0000-4000-8000-000000000000"
EDITED = {"uuid": "c", "name": "Peru", "chat_messages": [
    said_in_claude("q", "human", "Capital of Chile?", parent_message_uuid=ROOT_OF_CLAUDE),
    said_in_claude("a", "assistant", "Santiago.", parent_message_uuid="q"),
    said_in_claude("q2", "human", "Capital of Peru?", parent_message_uuid=ROOT_OF_CLAUDE),
    said_in_claude("a2", "assistant", "Lima.", parent_message_uuid="q2"),
]}  # fmt: skip


@pytest.mark.parametrize("value", [CHATGPT, CLAUDE, EDITED], ids=["ChatGPT", "claude.ai", "an edited turn"])
def test_the_recipe_for_an_export_of_chats_trains_its_last_branch(value: Any, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"row 1.*export, which may have several branches.*docs/data\.md"):
        example(value)
    (tmp_path / "conversations.json").write_text(json.dumps([value, value]), "utf-8")
    recipe("def conversation(")["convert"](tmp_path / "conversations.json", tmp_path / "chats.jsonl")
    rows = (tmp_path / "chats.jsonl").read_text("utf-8").splitlines()
    assert [told(example(json.loads(row))) for row in rows] == [ASKED, ASKED]


@pytest.mark.parametrize(
    "value",
    [
        {**CHATGPT, "current_node": "q"},
        {
            **CHATGPT,
            "mapping": {**TREE, "a": said_in_chatgpt("a", "q", "assistant", "x", content_type="code")},
        },
        {**CLAUDE, "chat_messages": [said_in_claude("q", "human", "x", files=[{"file_name": "a"}])]},
    ],
)
def test_the_recipe_leaves_out_conversations_with_more_than_texts(value: Any) -> None:
    assert recipe("def conversation(")["conversation"](value) is None


# --- turns

SANTIAGO = [("user", "And Chile?"), ("Assistant", "Santiago.")]
CHILE = {"query": "And Chile?", "response": "Santiago."}
THOUGHT = {"text": "It is in Peru.", "thought": True}
TOLD: list[tuple[str, Mapping[str, Any], Sequence[tuple[str, str]], Sequence[str]]] = [
    ("a model beside turns", {"conversation": [{"input": "Capital of Peru?", "output": "Lima.", "id": "a"}]}, ASKED, ["messages[].id"]),
    ("turns that Parquet fills", {"conversation": [{"system": None, "input": "Capital of Peru?", "output": "Lima.", "role": None}]}, ASKED, []),
    ("an output before its input", {"conversation": [{"output": "Lima.", "input": "Capital of Peru?", "system": "Be brief."}]}, [BE_BRIEF, *ASKED], []),
    ("turns after a message", {"messages": [{"user": "Capital of Peru?"}, LIMA]}, ASKED, []),
    ("xtuner", {"conversation": [{"input": "x", "output": "y", "output_with_loss": False}, {"input": "Capital of Peru?", "output": "Lima."}]},
     [("user", "x"), ("assistant", "y"), *ASKED], []),
    ("a role and a content that Parquet fills", {"messages": [{"role": None, "type": "human", "content": None, "value": "Capital of Peru?"},
     {"role": "assistant", "type": None, "content": "Lima.", "value": None}]}, ASKED, []),
    ("the content that says something", {"messages": [{"role": "user", "content": "", "parts": [{"type": "text", "text": "Capital of Peru?"}]},
     {"role": "assistant", "text": "Lima.", "content": []}]}, ASKED, []),
    ("the same content twice", {"messages": [{**USER, "text": "Capital of Peru?"}, {**LIMA, "parts": [{"text": "Lima."}]}]}, ASKED, []),
    ("a thought that is none", {"contents": [{"role": "user", "parts": [{"thought": False, "text": "Capital of Peru?"}]},
     {"role": "model", "parts": [{"text": "Lima.", "thought": False}]}]}, ASKED, []),
    ("a history with a role among its questions", {**CHILE, "history": [["Capital of Peru?", "Lima."], ["AI", "Artificial intelligence."]]},
     [*ASKED, ("user", "AI"), ("Assistant", "Artificial intelligence."), *SANTIAGO], []),
    ("a prompt as JSON text", {"messages": json.dumps([USER]), "answer": "Lima."}, ASKED, []),
    ("a prompt of LangChain as JSON text", {"messages": json.dumps([{"type": "human", "content": "Capital of Peru?"}]), "answer": "Lima."}, ASKED, []),
    ("a prompt of LangChain", {"messages": [{"type": "human", "data": {"content": "Capital of Peru?"}}], "answer": "Lima."}, ASKED, []),
    ("a prompt of Cohere", {"messages": [{"role": "User", "content": "Capital of Peru?"}], "response": "Lima."}, ASKED, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "turns", "unread"), [row[1:] for row in TOLD], ids=[row[0] for row in TOLD]
)
def test_turns_are_read_as_they_are_meant(
    value: Mapping[str, Any], turns: Sequence[tuple[str, str]], unread: Sequence[str]
) -> None:
    schema, row = schema_of(value)
    assert told(schema.example(row)) == turns
    assert [each.name for each in schema.columns.unread.found()[0]] == unread


UNSURE: list[tuple[str, Mapping[str, Any], str, Sequence[tuple[str, str]] | None]] = [
    ("a model beside turns", {"conversation": [{"input": "Capital of Peru?", "output": "Lima.", "model": "gpt-4"}]}, '"model" of message 1', ASKED),
    ("two answers", {"conversation": [{"human": "Capital of Peru?", "gpt": "Lima.", "ChatGPT": "Cusco."}]}, '"ChatGPT" of message 1', ASKED),
    ("two prompts", {"conversation": [{"input": "Capital of Peru?", "output": "Lima.", "user": "u123"}]}, '"user" of message 1', ASKED),
    ("a result beside turns", {"conversation": [{"user": "Capital of Peru?", "tool": "Lima", "assistant": "Lima."}]}, '"tool" of message 1', ASKED),
    ("an answer first", {"conversation": [{"assistant": "Hello", "user": "Peru?"}]}, "assistant before user", None),
    ("a prompt after an output", {"conversation": [{"output": "Hello", "user": "Peru?"}]}, "output before user", None),
    ("two contents", {"messages": [USER, {**LIMA, "text": "Cusco."}]}, "content and text of message 2 differ", ASKED),
    ("a thought", {"contents": [{"role": "user", "parts": [{"text": "Capital of Peru?"}]}, {"role": "model", "parts": [THOUGHT, {"text": "Lima."}]}]}, "thought", ASKED),
    ("a thought's mark first", {"contents": [{"role": "user", "parts": [{"text": "Capital of Peru?"}]},
     {"role": "model", "parts": [dict(reversed(THOUGHT.items())), {"text": "Lima."}]}]}, "thought", ASKED),
    ("a history that begins with a role", {**CHILE, "history": [["AI", "Artificial intelligence."]]}, '"AI" .*is a role or a question', SANTIAGO),
    ("a history of a system message", {**CHILE, "history": [["System", "Be brief."]]}, '"System" .*is a role or a question', SANTIAGO),
    ("a question without an answer", {**CHILE, "history": [["Hi", None]]}, "content of message 2", None),
    ("two spellings", {"messages": [USER, {**LIMA, "reasoning_content": "x", "reasoningContent": "y"}]}, '"reasoning_content" of message 2', ASKED),
    *((name, {"messages": [USER, {**LIMA, name: "x"}]}, f'"{name}" of message 2', ASKED)
      for name in ("reasoning_details", "thoughts", "chain_of_thought", "cot", "tool_plan", "toolCalls")),
    ("Cohere's results", {"messages": [USER, {"role": "tool", "content": "", "tool_results": [{"x": 1}]}, LIMA]}, "tool_results",
     [ASKED[0], ("tool", ""), ASKED[1]]),
    *((f"{name} of a part", {"messages": [USER, {**LIMA, "content": [{"type": "text", "text": "Lima.", name: "x"}]}]}, f'"{name}" of a part', ASKED)
      for name in ("reasoning", "content")),
    ("a role that is a list", {"messages": [{"role": ["user"], "content": "x"}], "answer": "y"}, "message 1 has no role", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "says", "turns"), [row[1:] for row in UNSURE], ids=[row[0] for row in UNSURE]
)
def test_turns_that_may_mean_something_else_are_refused(
    value: Mapping[str, Any], says: str, turns: Sequence[tuple[str, str]] | None
) -> None:
    """``turns`` are what is read when the advice is followed."""
    with pytest.raises(StageError, match=says) as caught:
        example(value)
    assert "row 1" in str(caught.value)
    if turns:
        advised = re.search(r"columns: (\{.*?\})[,.]", caught.value.fix)
        assert advised
        assert told(example(value, **yaml.safe_load(advised[1]))) == turns


@pytest.mark.parametrize(
    "data",
    [
        {"type": "function", "content": "x"},
        {"type": "system", "message": "x"},
        {"from": "a@b.c", "message": "x"},
    ],
)
def test_json_that_only_looks_like_messages_is_text(data: Mapping[str, Any]) -> None:
    prompt = json.dumps([data])
    assert told(example({"prompt": prompt, "completion": "Lima."})) == [("user", prompt), ASKED[1]]


def test_messages_are_a_prompt_where_the_job_says_so() -> None:
    value = {"messages": [{"role": "customer", "content": "Capital of Peru?"}], "answer": "Lima."}
    columns = {"prompt": "messages", "completion": "answer"}
    assert told(example(value, columns=columns, role_map={"customer": "user"})) == ASKED


def test_messages_that_end_with_a_role_of_the_jobs_are_a_prompt_beside_an_answer() -> None:
    value = {"messages": [{"role": "customer", "content": "Capital of Peru?"}], "answer": "Lima."}
    assert told(example(value, role_map={"customer": "user"})) == ASKED
    answered = {"messages": [USER, {"role": "agent", "content": "Lima."}], "answer": "Lima."}
    assert told(example(answered, role_map={"agent": "assistant"})) == ASKED


@pytest.mark.parametrize(
    "columns", [{"prompt": "asked", "completion": "told"}, {"question": "asked", "answer": "told"}]
)
def test_a_mapped_prompt_may_be_keyed_turns_as_json_text(columns: Mapping[str, str]) -> None:
    asked = json.dumps(
        [{"system": "Be brief.", "user": "Hi", "assistant": "Hello"}, {"user": "Capital of Peru?"}]
    )
    read = [BE_BRIEF, ("user", "Hi"), ("assistant", "Hello"), *ASKED]
    assert told(example({"asked": asked, "told": "Lima."}, columns=columns)) == read
    one = json.dumps({"human": "Capital of Peru?"})
    assert told(example({"asked": one, "told": "Lima."}, columns=columns)) == ASKED
    data = json.dumps([{"user": "bob", "age": 3}])
    assert told(example({"asked": data, "told": "x"}, columns=columns))[0] == ("user", data)


def test_the_mapped_prompt_of_a_pair_may_be_keyed_turns_as_json_text() -> None:
    value = {"asked": json.dumps([{"user": "Capital of Peru?"}]), "chosen": "Lima.", "rejected": "No idea."}
    read = pair(value, columns={"prompt": "asked"})
    assert not isinstance(read, Unwanted)
    assert (told(read[0]), told(read[1])) == PAIR


def test_a_pairs_answer_is_one_turn() -> None:
    twice = [LIMA, {**LIMA, "content": "Or Cusco."}]
    with pytest.raises(StageError, match=r'"chosen" must be one turn of the assistant.*2 messages'):
        pair({"prompt": [USER], "chosen": twice, "rejected": [RATHER]})


@pytest.mark.parametrize("reads", ["reasoning_content", "reasoning", "thinking", ""])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoningContent", "reasoning", "thinking", "thought", "thoughts", "cot"])  # fmt: skip
@pytest.mark.parametrize("place", ["message", "keys", "column", "mapped"])
def test_the_advice_for_another_thought_beside_an_answer_can_be_followed(
    place: str, name: str, reads: str
) -> None:
    content, other = "<think>\nIt is in Peru.\n</think>\n\nLima.", "Something else than the answer has."
    value: Mapping[str, Any] = {
        "message": {"messages": [USER, {**LIMA, "content": content, name: other}]},
        "keys": {"conversation": [{"human": "Capital of Peru?", "assistant": content, name: other}]},
    }.get(place, {"prompt": "Capital of Peru?", "completion": content, name: other})
    columns = {"reasoning": name} if place == "mapped" else {}
    with pytest.raises(StageError) as caught:
        example(value, columns=columns, reads=lambda key: key == reads)
    advice = re.findall(r"columns: (\{.*?\})", caught.value.fix)
    assert advice
    for columns_of in map(yaml.safe_load, advice):
        assert ("in place of its mapping" in caught.value.fix) == (place == "mapped")
        read = example(value, **columns_of, reads=lambda key: key == reads)
        assert told(read)[-1] == ("Assistant", content)
        assert other not in str(read)


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ({"instruction": "Peru?", "input": "In one word.", "output": "Lima", "text": "Something else"}, {}),
        ({"prompt": "Peru?", "completion": "Lima", "system": "A", "system_prompt": "B"}, {"system": "system"}),
        ({"prompt": "Peru?", "completion": "Lima", "system": "A", "system_prompt": "B"}, {"system": "system_prompt"}),
        ({"prompt": "Peru?", "completion": "Lima", "history": [["a", "b"]], "chat_history": [["c", "d"]]}, {"history": "history"}),
    ],
    ids=str,
)  # fmt: skip
def test_the_advice_for_a_column_whose_meaning_another_one_has_can_be_followed(
    value: dict[str, Any], columns: dict[str, str]
) -> None:
    """To map it alone would leave the other one unread, whose advice would be to map that one."""
    with pytest.raises(StageError, match="in place of") as caught:
        example(value, columns=columns)
    advice = re.findall(r"columns: (\{.*?\})(?:,|\.)", caught.value.fix)
    assert len(advice) == 2
    for columns_of in map(yaml.safe_load, advice):
        ignore = columns_of.pop("ignore")
        example(value, columns={**columns, **columns_of}, ignore=ignore)


def test_reasoning_has_the_templates_spelling() -> None:
    read = example({"messages": [USER, {**LIMA, "reasoningContent": "Peru…"}]})
    assert isinstance(read, Conversation)
    assert read.messages[1] == {**LIMA, "reasoning_content": "Peru…"}


@pytest.mark.parametrize("name", ["arguments", "args", "parameters"])
@pytest.mark.parametrize("nested", [False, True])
def test_arguments_of_calls_have_one_name(name: str, nested: bool) -> None:
    call = {"name": "weather", name: {"city": "Lima"}}
    given = {"type": "function", "function": call} if nested or name == "arguments" else call
    read = example({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [given]}]})
    assert isinstance(read, Conversation)
    assert read.messages[1]["tool_calls"] == CALLED


# --- the tables


def documented() -> list[tuple[str, dict[str, Any]]]:
    """Returns the shapes of docs/data.md, each with its row."""
    table = (ROOT / "docs/data.md").read_text("utf-8").partition("| shape | a row |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines() if line.startswith("| `")]
    return [(name.replace("`", ""), json.loads(row.strip("`"))) for name, row in rows]


@pytest.mark.parametrize(("name", "value"), documented(), ids=[name for name, _ in documented()])
def test_a_documented_row_is_read_as_its_shape(name: str, value: dict[str, Any]) -> None:
    row = Row(place=PLACE, value=value)
    schema = (PairSchema if name.startswith("Preference") else DatasetSchema)(spec(), row)
    read = schema.pair(row) if isinstance(schema, PairSchema) else schema.example(row)
    assert not isinstance(read, Unwanted)
    assert name.startswith(str(schema.columns.shape))
    assert schema.columns.unread.found() == ([], 0)


def test_every_shape_is_documented() -> None:
    names = " ".join(name for name, _ in documented())
    assert {str(shape) for shape in (*SHAPES, *PAIRS) if str(shape) not in names} == {
        *(f"Preference ({prompt} and pair)" for prompt in ("query", "problem", "input", "messages")),
        "PromptCompletion (messages and response)", "PromptCompletion (messages and completion)",
    }  # fmt: skip


def test_each_known_name_has_a_source_and_a_meaning_of_the_api() -> None:
    text = files("finetune_trainer.readers").joinpath("known_names.csv").read_text("utf-8")
    table = list(csv.DictReader(text.splitlines()))
    columns = {name for format_ in FORMATS.values() for name in (*format_.needs, *format_.may)}
    names = [(row["scope"], name) for row in table for name in row["names"].split(";")]
    assert len(names) == len(set(names))
    for row in table:
        assert row["source"]
        assert row["what"]
        assert row["meaning"] in columns | {"", "flag", "reasoning"}
        assert row["way"] in columns | {""}


def test_every_column_of_a_shape_has_a_known_name() -> None:
    """So that it is never passed over in a row of another shape."""
    for shape in (*SHAPES, *PAIRS):
        for column in (*FORMATS[shape.format].needs, *shape.columns.values()):
            assert known_name("column", shape.column(column)), column


@given(
    st.recursive(
        st.none() | st.just("") | st.just(" \n"),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_nested_nothing_is_empty(value: Any) -> None:
    assert is_empty(value)
    assert not is_empty([value, 0])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "type", "text", "name", "weight"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
NAMES = sorted({"messages", "prompt", "completion", "question", "answer", "text", "chosen", "rejected", "system", "input",
                "history", "tools", "functions", "label", "images", "conversations", "instruction", "output", "id",
                "score_chosen", "score_rejected"})  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), JSON, min_size=1, max_size=6), st.booleans())
def test_any_row_is_read_or_refused_as_the_users(value: dict[str, Any], pairs: bool) -> None:
    try:
        read = pair(value) if pairs else example(value)
    except StageError as error:
        assert error.code in {64, 65}
        assert error.fix
    else:
        assert read is not None
