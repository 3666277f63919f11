"""What a row may look like, and the errors for one that does not: pure.

Two formats. *Messages*: a list of role and content. *PromptCompletion*: a prompt and its completion, both strings
or both lists of messages.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from finetune_contract import DatasetSource, ExitCode
from finetune_trainer.data.sources import OpenSource, Place, Row
from finetune_trainer.errors import StageError

ROLES = ("system", "user", "assistant", "tool")
#: How other datasets call our roles, for the suggestion in an error.
_LIKELY_ROLE = {
    "bot": "assistant", "gpt": "assistant", "model": "assistant", "ai": "assistant", "chatgpt": "assistant",
    "human": "user", "person": "user", "customer": "user", "prompter": "user", "developer": "system",
    "function": "tool", "observation": "tool",
}  # fmt: skip
_LIKELY_COLUMN = {
    "messages": ("conversations", "conversation", "chat", "dialogue", "dialog", "turns"),
    "prompt": ("question", "instruction", "input", "query", "source"),
    "completion": ("answer", "response", "output", "target", "reply"),
}


class Format(StrEnum):
    MESSAGES = "Messages"
    PROMPT_COMPLETION = "PromptCompletion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for the tokenizer's chat template. ``trained`` says which of them count towards the loss."""

    place: Place
    messages: Sequence[Mapping[str, Any]]
    trained: Sequence[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPair:
    """A prompt and its completion as plain text: a chat of two turns where the tokenizer has a chat template, else the
    one right after the other."""

    place: Place
    prompt: str
    completion: str


type Example = Conversation | TextPair


class Schema:
    """The checks for one dataset: its format (decided by the first row when Auto), columns and roles."""

    def __init__(self, source: DatasetSource, first: Row) -> None:
        self._roles = source.role_map
        self._path = source.path
        known = ("messages", "prompt", "completion")
        wrong = [name for name in source.columns if name not in known]
        if wrong:
            raise StageError(
                ExitCode.BAD_REQUEST,
                "UnknownColumn",
                "columns maps our names to the dataset's",
                where=f"{source.path}.columns",
                saw=wrong[0],
                expected=f"one of {', '.join(known)}",
                fix="Write it the other way round: our name first, then the dataset's column.",
            )
        for role in source.role_map.values():
            if role not in ROLES:
                raise StageError(
                    ExitCode.BAD_REQUEST,
                    "UnknownRole",
                    "roleMap maps the dataset's roles to ours",
                    where=f"{source.path}.roleMap",
                    saw=role,
                    expected=f"one of {', '.join(ROLES)}",
                    fix="Write it the other way round: the dataset's role first, then ours.",
                )
        self._columns = {name: source.columns.get(name, name) for name in known}
        self.format = self._detect(source, first)

    def _detect(self, source: DatasetSource, first: Row) -> Format:
        if source.format != "Auto":
            return Format(source.format)
        if self._columns["messages"] in first.value:
            return Format.MESSAGES
        if self._columns["prompt"] in first.value and self._columns["completion"] in first.value:
            return Format.PROMPT_COMPLETION
        raise first.place.mismatch(
            "the format is not known: there is neither a messages column nor prompt and completion",
            _column_advice(first.value, ("messages", "prompt", "completion")),
            saw=f"columns {', '.join(list(first.value)[:12]) or 'none'}",
        )

    def example(self, row: Row) -> Example:
        """The row, checked. Raises ``StageError`` 65 with the row, what was seen, and what to do."""
        if self.format is Format.MESSAGES:
            messages = self._messages(row, "messages")
            return Conversation(
                place=row.place, messages=messages, trained=[m["role"] == "assistant" for m in messages]
            )
        prompt, completion = self._value(row, "prompt"), self._value(row, "completion")
        if isinstance(prompt, str) and isinstance(completion, str):
            return TextPair(place=row.place, prompt=prompt, completion=completion)
        if isinstance(prompt, list) and isinstance(completion, list):
            before, after = self._messages(row, "prompt"), self._messages(row, "completion")
            trained = [False] * len(before) + [message["role"] == "assistant" for message in after]
            return Conversation(place=row.place, messages=[*before, *after], trained=trained)
        raise row.place.mismatch(
            "prompt and completion must be two strings or two lists of messages",
            "Write both the same way.",
            saw=f"{_kind(prompt)} and {_kind(completion)}",
        )

    def _value(self, row: Row, name: str) -> Any:
        column = self._columns[name]
        if column not in row.value:
            raise row.place.mismatch(
                f'there is no column "{column}"',
                _column_advice(row.value, (name,)),
                saw=f"columns {', '.join(list(row.value)[:12]) or 'none'}",
            )
        return row.value[column]

    def _messages(self, row: Row, name: str) -> list[Mapping[str, Any]]:
        value = self._value(row, name)
        column = self._columns[name]
        if not isinstance(value, list) or not value:
            raise row.place.mismatch(
                f'"{column}" must be a list of messages that is not empty',
                'Write [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}].',
                saw="an empty list" if value == [] else _kind(value),
            )
        return [self._message(message, index, row.place) for index, message in enumerate(value, start=1)]

    def _message(self, message: object, index: int, place: Place) -> Mapping[str, Any]:
        if not isinstance(message, dict):
            raise place.mismatch(
                f"message {index} is no object", "Write it as role and content.", saw=_kind(message)
            )
        if "role" not in message and {"from", "value"} <= set(message):
            raise place.mismatch(
                f'message {index} has "from" and "value" (the ShareGPT format)',
                'Rename them to "role" and "content".',
            )
        role, content = message.get("role"), message.get("content")
        mapped = self._roles.get(role, role) if isinstance(role, str) else role
        if mapped not in ROLES:
            raise self._bad_role(role, index, place)
        if not isinstance(content, str):
            raise place.mismatch(
                f"the content of message {index} must be text",
                "Content in parts and tool calls without text are not supported; write one string.",
                saw=_kind(content) if "content" in message else "no content",
            )
        # Columnar files give every message every key; templates ask whether a key is there.
        return {**{key: value for key, value in message.items() if value is not None}, "role": mapped}

    def _bad_role(self, role: object, index: int, place: Place) -> StageError:
        if not isinstance(role, str):
            return place.mismatch(
                f"message {index} has no role",
                f"Give it one of {', '.join(ROLES)}.",
                saw="nothing" if role is None else _kind(role),
            )
        likely = _LIKELY_ROLE.get(role.lower(), role.lower() if role.lower() in ROLES else "assistant")
        return place.mismatch(
            f'role "{role}" is not one of {", ".join(ROLES)}', f"Map it: roleMap: {{{role}: {likely}}}."
        )


def checked(source: OpenSource) -> tuple[Format, Iterable[Example]]:
    """The dataset's format and its examples, at most ``maxExamples``. Raises 65 for an empty dataset at once and for a
    bad row when it is reached."""
    first = next(source.rows(), None)
    if first is None:
        raise StageError(
            ExitCode.BAD_DATA,
            "DatasetEmpty",
            "the dataset is empty: it has no rows",
            where=source.spec.path,
            saw=source.uri,
            expected="at least one row",
            fix="Upload the data again.",
        )
    schema = Schema(source.spec, first)

    rows = itertools.islice(source.rows(), source.spec.max_examples)
    return schema.format, (schema.example(row) for row in rows)


def _column_advice(row: Mapping[str, Any], wanted: tuple[str, ...]) -> str:
    lowered = {name.lower(): name for name in row}
    found: dict[str, str] = {}
    for ours in wanted:
        likely = [lowered[name] for name in _LIKELY_COLUMN[ours] if name in lowered]
        if likely:
            found[ours] = likely[0]
    if not found:
        return "Name the columns: columns: {messages: …} or columns: {prompt: …, completion: …}."
    return f"Name them: columns: {{{', '.join(f'{ours}: {theirs}' for ours, theirs in found.items())}}}."


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)
