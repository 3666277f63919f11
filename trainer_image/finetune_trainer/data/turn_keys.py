"""Reads what conversations contain besides roles and contents: which turns are trained, tools and tool calls. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from finetune_trainer.data.advice import kind
from finetune_trainer.readers.json_text import parse
from finetune_trainer.readers.row_location import RowLocation

#: A list of messages as Python prints it, and pandas writes it into CSV files.
_PYTHON = re.compile(r"\s*\[\s*\{\s*'(?:role|content|from|value)'\s*:")
#: What Gemini and Bedrock write around functions.
_ENCLOSING = ("functionDeclarations", "function_declarations", "toolSpec")
#: Key of a read message that says whether it is trained: 0 or 1. Absent if the dataset does not say.
WEIGHT = "weight"


def tools_of(value: Any, column: str, place: RowLocation) -> Sequence[Mapping[str, Any]] | None:
    """Returns the value of a column with tools: a list of JSON schemas of functions, or the same as JSON text.

    None if it is empty. A function without the enclosing ``{"type": "function", "function": …}``, as in OpenAI's older
    ``functions``, gets it, as servers pass tools to templates in this form. Raises ``StageError`` 65 for other values.
    """
    if isinstance(value, str) and value.strip():
        value = from_json(value, place)
    if not value:
        return None
    if not isinstance(value, list) or not all(
        isinstance(tool, dict) and tool.keys().isdisjoint(_ENCLOSING) for tool in value
    ):
        raise place.mismatch(
            f'"{column}" must be a list of objects, each the JSON schema of a function',
            'Write [{"type": "function", "function": {"name": "…", "parameters": {…}}}].',
            actual=f"a list with {str(value[0])[:40]}" if isinstance(value, list) else kind(value),
        )
    return [_tool(tool) for tool in value]


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if "name" not in tool or {"type", "function"} & tool.keys():
        return tool
    names = {"input_schema": "parameters", "inputSchema": "parameters"}  # of Anthropic and of MCP
    return {"type": "function", "function": {names.get(name, name): value for name, value in tool.items()}}


def says_thought(content: str, thought: object, name: str, way: str, place: RowLocation) -> bool:
    """Whether the content of an answer has the thought beside it, too. ``way`` leaves out the ``name`` of that thought.

    Raises ``StageError`` 65 if it has another one.
    """
    own, end, _ = content.partition("</think>")
    if end and str(thought).strip() != own.strip().removeprefix("<think>").strip():
        what = f'an answer contains its reasoning, and "{name}" has another one'
        raise place.mismatch(what, f"Keep one of them, or {way}.", actual=str(thought)[:60])
    return bool(end)


def weight_of(flags: Mapping[str, Any], role: str, number: int, place: RowLocation) -> int | None:
    """Returns whether message ``number`` is trained, 0 or 1, by the keys that say so; None if their values are null.

    Raises ``StageError`` 65 for other values, keys that contradict each other, and 1 for a message that is not the
    assistant's.
    """
    said = {name: value for name, value in flags.items() if value is not None}
    for name, value in said.items():
        booleans = () if name == WEIGHT else (True, False)
        if (
            not isinstance(value, int | float)
            or (isinstance(value, bool) and not booleans)
            or value not in (0, 1)
        ):
            raise place.mismatch(
                f"the {name} of message {number} must be 0 or 1", "Write 0 for a turn that is not to be trained.",
                actual=str(value)[:40],
            )  # fmt: skip
    if not said:
        return None
    name, value = next(iter(said.items()))
    if len({int(other) for other in said.values()}) > 1:
        raise place.mismatch(
            f"{' and '.join(said)} of message {number} contradict each other", "Keep one of them."
        )
    if value and role != "assistant":
        raise place.mismatch(
            f"message {number} ({role}) has {name} 1, but only the assistant's messages are trained",
            f"Remove the {name}; method.sft.trainOnPrompt trains every message.",
        )
    return int(value)


def calls_of(calls: Any, role: str, index: int, place: RowLocation) -> list[Any]:
    """Returns the tool calls of message ``index``, with arguments parsed from JSON text, as templates expect them.

    Raises ``StageError`` 65 if they are not a list of objects or not in a message of the assistant.
    """
    if (
        role != "assistant"
        or not isinstance(calls, list)
        or not all(isinstance(call, dict) for call in calls)
    ):
        raise place.mismatch(
            f"the tool_calls of message {index} must be a list of objects in a message of the assistant",
            'Write [{"type": "function", "function": {"name": "…", "arguments": {…}}}].',
            actual=f"{kind(calls)} in a message of role {role}",
        )
    return [_call(call, index, place) for call in calls]


def older_call(call: Any, role: str, index: int, place: RowLocation) -> list[Any]:
    """Returns the ``function_call`` of message ``index``, OpenAI's older form, as tool calls.

    ``call`` is an object with name and arguments, a list of such objects, or the same as JSON text.
    """
    if isinstance(call, str):
        call = from_json(call, place)
    calls = call if isinstance(call, list) else [call]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in calls) or not calls:
        raise place.mismatch(
            f"the function call of message {index} must be an object with name and arguments",
            'Write {"name": "…", "arguments": {…}}, or the same as JSON text.',
            actual=kind(call),
        )
    return calls_of([{"type": "function", "function": one} for one in calls], role, index, place)


def calls_in(text: str, place: RowLocation) -> Mapping[str, Any] | None:
    """Returns the assistant's message for an answer that is the JSON of calls, as datasets beside ``tools`` have it:
    objects with name and arguments alone. None for any other text.
    """
    calls = from_json(text, place) if text.lstrip()[:1] in ("[", "{") else None
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(
        isinstance(call, dict) and call.keys() == {"name", "arguments"} for call in calls
    ):
        return None
    return {"role": "assistant", "content": "", "tool_calls": older_call(calls, "assistant", 2, place)}


def _call(
    call: Mapping[str, Any], index: int, place: RowLocation, *, inner: bool = False
) -> Mapping[str, Any]:
    made = {name: value for name, value in call.items() if value is not None}
    theirs = [name for name in ("args", "parameters") if name in made]  # of LangChain and of Cohere
    if theirs and "name" in made and "arguments" not in made:
        function = {"name": made.pop("name"), "arguments": made.pop(theirs[0])}
        made |= function if inner else {"type": "function", "function": function}
    if isinstance(made.get("function"), dict):
        made["function"] = _call(made["function"], index, place, inner=True)
    if "arguments" in made:
        given = made["arguments"]
        made["arguments"] = from_json(given, place) if isinstance(given, str) else given
        if not isinstance(made["arguments"], dict):
            raise place.mismatch(
                f"the arguments of a tool call in message {index} are not a JSON object",
                "Write an object, as such or as JSON text; {} where the call has no arguments.",
                actual=given.strip()[:60] or "an empty text" if isinstance(given, str) else kind(given),
            )
    return made


def from_json(text: str, place: RowLocation) -> Any:
    """Parses a JSON value; returns the text itself if it is not valid JSON.

    Raises ``StageError`` 65 for a value that no row may contain, such as an unpaired surrogate: at the level of the row
    it is plain text, in which its reader does not find it.
    """
    try:
        return parse(text)
    except json.JSONDecodeError:
        if _PYTHON.match(text):
            raise place.mismatch(
                "a list of messages is written in Python's notation, not as JSON",
                "Write the column with json.dumps, for example df[column] = df[column].map(json.dumps) in pandas.",
                actual=text[:40],
            ) from None
        return text
    except ValueError as error:
        raise place.mismatch(f"its JSON text is refused: {error}", "Correct or remove this row.") from None
