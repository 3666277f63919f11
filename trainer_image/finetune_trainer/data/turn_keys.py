"""Reads keys of conversations other than roles and contents: weights of turns, tools and tool calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finetune_trainer.data.advice import kind
from finetune_trainer.data.files.json_values import half_character
from finetune_trainer.data.row_location import Row, RowLocation

#: Column with the functions that the assistant may call. It has this name in every dataset.
_TOOLS = "tools"


def tools_of(row: Row) -> Sequence[Mapping[str, Any]] | None:
    """Returns the row's column ``tools``, a list of JSON schemas or the same as JSON text.

    None if it is missing or empty. Raises ``StageError`` 65 for any other value.
    """
    value = row.value.get(_TOOLS)
    if isinstance(value, str) and value.strip():
        value = _from_json(value, row.place)
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise row.place.mismatch(
            f'"{_TOOLS}" must be a list of objects, each the JSON schema of a function',
            'Write [{"type": "function", "function": {"name": "…", "parameters": {…}}}].',
            actual=kind(value),
        )
    return value


def weighed(
    messages: Sequence[Mapping[str, Any]], place: RowLocation, *, first: int = 1
) -> tuple[list[Mapping[str, Any]], list[bool], bool]:
    """Returns the messages without ``weight``, whether each is trained, and whether weight 0 excludes any of them.

    The assistant's messages are trained unless their weight is 0. ``first`` is the number of the first message in the
    row. Raises ``StageError`` 65 for other weights, and for weight 1 of a message that is not the assistant's.
    """
    weights = [_weight(message, number, place) for number, message in enumerate(messages, start=first)]
    answers = [bool(message["role"] == "assistant") for message in messages]
    trained = [answer and weight != 0 for answer, weight in zip(answers, weights, strict=True)]
    bare: list[Mapping[str, Any]] = [
        {name: value for name, value in each.items() if name != "weight"} for each in messages
    ]
    return bare, trained, trained != answers


def _weight(message: Mapping[str, Any], number: int, place: RowLocation) -> int | None:
    weight = message.get("weight")
    if weight is None:
        return None
    if isinstance(weight, bool) or weight not in (0, 1):
        raise place.mismatch(
            f"the weight of message {number} must be 0 or 1", "Write 0 for a turn that is not to be trained.",
            actual=str(weight)[:40],
        )  # fmt: skip
    if weight == 1 and message["role"] != "assistant":
        raise place.mismatch(
            f"message {number} ({message['role']}) has weight 1, but only the assistant's messages are trained",
            "Remove the weight; method.sft.trainOnPrompt trains every message.",
        )
    return int(weight)


def calls_of(calls: Any, role: str, index: int, place: RowLocation) -> list[Any]:
    """Returns the tool calls of message ``index``, with arguments parsed from JSON text, as templates expect them.

    Raises ``StageError`` 65 if they are not a list of objects or not in a message of the assistant.
    """
    if (
        role != "assistant"
        or not isinstance(calls, list)
        or not all(isinstance(each, dict) for each in calls)
    ):
        raise place.mismatch(
            f"the tool_calls of message {index} must be a list of objects in a message of the assistant",
            'Write [{"type": "function", "function": {"name": "…", "arguments": {…}}}].',
            actual=f"{kind(calls)} in a message of role {role}",
        )
    return [_call(each, index, place) for each in calls]


def _call(call: Mapping[str, Any], index: int, place: RowLocation) -> Mapping[str, Any]:
    made = {name: value for name, value in call.items() if value is not None}
    if isinstance(made.get("function"), dict):
        made["function"] = _call(made["function"], index, place)
    if "arguments" in made:
        given = made["arguments"]
        made["arguments"] = _from_json(given, place) if isinstance(given, str) else given
        if not isinstance(made["arguments"], dict):
            raise place.mismatch(
                f"the arguments of a tool call in message {index} are not a JSON object",
                "Write an object, as such or as JSON text; {} where the call has no arguments.",
                actual=given.strip()[:60] or "an empty text" if isinstance(given, str) else kind(given),
            )
    return made


def _from_json(text: str, place: RowLocation) -> Any:
    """Parses a JSON value; returns the text itself if it is not valid JSON.

    Raises ``StageError`` 65 for an unpaired surrogate, which no tokenizer accepts. The row's reader does not detect it,
    because the escape is plain text at that level.
    """
    try:
        value = json.loads(text)
        # Only escapes that begin with \ud can encode a surrogate; other texts are not searched.
        surrogate = half_character(value) if r"\ud" in text.lower() else ""
    except (ValueError, RecursionError):
        return text
    if surrogate:
        raise place.mismatch(
            f"its JSON text contains {surrogate}, a lone surrogate",
            "Correct or remove this row.",
        )
    return value
