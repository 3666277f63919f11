"""Schemas of the supported row formats, and errors for rows that do not match them. Pure.

Each format is an entry of ``SHAPES``: the columns it needs and the function that reads an example from them.
"""

import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data.advice import COLUMNS, LIKELY_ROLE, column_advice, format_advice, kind
from finetune_trainer.data.row_location import Row, RowLocation
from finetune_trainer.data.sources import LocatedSource
from finetune_trainer.data.turn_keys import calls_of, tools_of, weighed
from finetune_trainer.errors import StageError

ROLES = ("system", "user", "assistant", "tool")


class Format(StrEnum):
    """Row formats; the values are those of the API."""

    MESSAGES = "Messages"
    PROMPT_COMPLETION = "PromptCompletion"
    PREFERENCE = "Preference"
    QUESTION_ANSWER = "QuestionAnswer"
    TEXT = "Text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for the tokenizer's chat template. ``trained`` marks those that count toward the loss."""

    place: RowLocation
    messages: Sequence[Mapping[str, Any]]
    trained: Sequence[bool]
    tools: Sequence[Mapping[str, Any]] | None = None
    """JSON schemas of the functions that the assistant may call; None if there are none."""
    held_out: bool = False
    """Whether weight 0 excludes an assistant's turn that would otherwise be trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPair:
    """A prompt and its completion as plain text.

    Rendered as a chat of two turns if the tokenizer has a chat template, otherwise concatenated.
    """

    place: RowLocation
    prompt: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """Text that is trained completely and without a template."""

    place: RowLocation
    text: str


type Example = Conversation | TextPair | PlainText


class DatasetSchema:
    """Checks the rows of one dataset: format (detected from the first row if Auto), columns and roles."""

    def __init__(self, source: DatasetSpec, first: Row) -> None:
        self._roles = source.role_map
        known = list(COLUMNS)
        wrong = [name for name in source.columns if name not in known]
        if wrong:
            raise _bad_columns(
                source,
                "columns maps standard names to the dataset's columns",
                wrong[0],
                known,
                _turned(wrong[0], source.columns[wrong[0]], known),
            )
        for role in source.role_map.values():
            if role not in ROLES:
                raise StageError(
                    ExitCode.BAD_REQUEST,
                    "UnknownRole",
                    "roleMap maps the dataset's roles to the standard ones",
                    where=f"{source.path}.roleMap",
                    actual=role,
                    expected=f"one of {', '.join(ROLES)}",
                    fix="Swap them: the dataset's role first, then the standard one.",
                )
        self._columns = {name: source.columns.get(name, name) for name in known}
        self._shape = self._detect(source, first)
        self.format = self._shape.format

    def _detect(self, source: DatasetSpec, first: Row) -> "FormatSchema":
        if source.format != "Auto":
            shape = next(shape for shape in SHAPES if shape.format == source.format)
            idle = [name for name in source.columns if name not in shape.columns]
            if idle:
                raise _bad_columns(
                    source,
                    f"format {shape.format} has no such column",
                    idle[0],
                    shape.columns,
                    "Leave it out, or name another format.",
                )
            require_columns(source, first)
            return shape
        require_columns(source, first)
        for shape in SHAPES:
            if set(source.columns) <= set(shape.columns) and all(
                self._columns[name] in first.value for name in shape.needs
            ):
                return shape
        raise first.place.mismatch(
            "the format cannot be determined from the columns",
            format_advice(first.value, [shape.needs for shape in SHAPES]),
            actual=f"columns {', '.join(list(first.value)[:12]) or 'none'}",
            expected="; ".join(" and ".join(shape.needs) for shape in SHAPES),
        )

    def example(self, row: Row) -> Example:
        """Returns the checked row as an example.

        Raises ``StageError`` 65 with the row's location, the value found and a suggested fix.
        """
        return self._shape.read(self, row)

    def text(self, row: Row, name: str) -> str:
        """Returns a column's value, which must be text. ``name`` is the column's name in the API."""
        value = self.value(row, name)
        if not isinstance(value, str):
            raise row.place.mismatch(
                f'"{self._columns[name]}" must be text', "Write one string.", actual=kind(value)
            )
        return value

    def value(self, row: Row, name: str) -> Any:
        """Returns a column's value of any type. ``name`` is the column's name in the API."""
        column = self._columns[name]
        if column not in row.value:
            raise row.place.mismatch(
                f'there is no column "{column}"',
                column_advice(row.value, self._shape.columns),
                actual=f"columns {', '.join(list(row.value)[:12]) or 'none'}",
            )
        return row.value[column]

    def messages(self, row: Row, name: str) -> list[Mapping[str, Any]]:
        """Returns a column's value, which must be a list of messages. ``name`` is the column's name in the API."""
        value = self.value(row, name)
        column = self._columns[name]
        if not isinstance(value, list) or not value:
            raise row.place.mismatch(
                f'"{column}" must be a list of messages that is not empty',
                'Write [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}].',
                actual="an empty list" if value == [] else kind(value),
            )
        return [self._message(message, index, row.place) for index, message in enumerate(value, start=1)]

    def _message(self, message: object, index: int, place: RowLocation) -> Mapping[str, Any]:
        if not isinstance(message, dict):
            raise place.mismatch(
                f"message {index} is not an object", "Write it as role and content.", actual=kind(message)
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
        # Null values are removed because templates test whether a key exists.
        made = {**{key: value for key, value in message.items() if value is not None}, "role": mapped}
        calls = made.pop("tool_calls", None)
        if calls:
            made["tool_calls"] = calls_of(calls, mapped, index, place)
        if content is None and calls:
            made["content"] = ""
        elif not isinstance(content, str):
            raise place.mismatch(
                f"the content of message {index} must be text",
                f"Write the {'answer' if mapped == 'assistant' else 'text'}, or remove the row."
                if content is None
                else "Content in parts is not supported; write one string.",
                actual=kind(content) if "content" in message else "no content",
            )
        return made

    def _bad_role(self, role: object, index: int, place: RowLocation) -> StageError:
        if not isinstance(role, str):
            return place.mismatch(
                f"message {index} has no role",
                f"Give it one of {', '.join(ROLES)}.",
                actual="nothing" if role is None else kind(role),
            )
        likely = role.lower() if role.lower() in ROLES else LIKELY_ROLE.get(role.lower(), "assistant")
        return place.mismatch(
            f'role "{role}" is not one of {", ".join(ROLES)}', f"Map it: roleMap: {{{role}: {likely}}}."
        )


def read_examples(source: LocatedSource) -> tuple[Format, Iterable[Example]]:
    """Returns the dataset's format, which the first row decides, and its examples, at most ``maxExamples``.

    Rows are read and checked during the iteration over the examples, which can be done once. Raises ``StageError`` 65
    immediately for an empty dataset, and during the iteration for an invalid row.
    """
    first = next(source.rows(), None)
    if first is None:
        raise StageError(
            ExitCode.BAD_DATA,
            "DatasetEmpty",
            "the dataset is empty: it has no rows",
            where=source.spec.path,
            actual=source.uri,
            expected="at least one row",
            fix="Upload the data again.",
        )
    schema = DatasetSchema(source.spec, first)
    # Reads again from the first row.
    rows = itertools.islice(source.rows(), source.spec.max_examples)
    return schema.format, (schema.example(row) for row in rows)


# --- formats: reading an example ----------------------------------------------------------------------------------


def _read_messages(schema: DatasetSchema, row: Row) -> Example:
    messages, trained, held_out = weighed(schema.messages(row, "messages"), row.place)
    return Conversation(
        place=row.place, messages=messages, trained=trained, tools=tools_of(row), held_out=held_out
    )


def _read_pair(schema: DatasetSchema, row: Row) -> Example:
    prompt, completion = schema.value(row, "prompt"), schema.value(row, "completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return TextPair(place=row.place, prompt=prompt, completion=completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        before, _, _ = weighed(schema.messages(row, "prompt"), row.place)
        after, trained, held_out = weighed(
            schema.messages(row, "completion"), row.place, first=len(before) + 1
        )
        return Conversation(
            place=row.place,
            messages=[*before, *after],
            trained=[False] * len(before) + trained,
            tools=tools_of(row),
            held_out=held_out,
        )
    gone = next(
        (name for name, value in (("prompt", prompt), ("completion", completion)) if value is None), None
    )
    raise row.place.mismatch(
        "prompt and completion must be two strings or two lists of messages",
        "Write both in the same form." if gone is None else f"Write the {gone}, or remove the row.",
        actual=f"{kind(prompt)} and {kind(completion)}",
    )


def _read_question(schema: DatasetSchema, row: Row) -> Example:
    return TextPair(
        place=row.place, prompt=schema.text(row, "question"), completion=schema.text(row, "answer")
    )


def _read_text(schema: DatasetSchema, row: Row) -> Example:
    return PlainText(place=row.place, text=schema.text(row, "text"))


def _refuse_preference(_: DatasetSchema, row: Row) -> Example:
    raise row.place.mismatch(
        "rows with chosen and rejected are for preference methods, not for SFT",
        "To train on the better answers: columns: {completion: chosen}.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSchema:
    """One format. ``needs`` are its required columns, by which it is detected; ``columns`` are all its columns."""

    format: Format
    needs: tuple[str, ...]
    columns: tuple[str, ...]
    read: Callable[[DatasetSchema, Row], Example]


#: Formats in the order in which Auto tries them.
SHAPES = (
    FormatSchema(format=Format.MESSAGES, needs=("messages",), columns=("messages",), read=_read_messages),
    FormatSchema(
        format=Format.PROMPT_COMPLETION,
        needs=("prompt", "completion"),
        columns=("prompt", "completion"),
        read=_read_pair,
    ),
    FormatSchema(
        format=Format.PREFERENCE,
        needs=("chosen", "rejected"),
        columns=("prompt", "chosen", "rejected"),
        read=_refuse_preference,
    ),
    FormatSchema(
        format=Format.QUESTION_ANSWER,
        needs=("question", "answer"),
        columns=("question", "answer"),
        read=_read_question,
    ),
    FormatSchema(format=Format.TEXT, needs=("text",), columns=("text",), read=_read_text),
)


def require_columns(source: DatasetSpec, first: Row) -> None:
    """Raises ``StageError`` 64 if the dataset's mapping names a column that its first row does not have."""
    for ours, theirs in source.columns.items():
        if theirs not in first.value:
            near = difflib.get_close_matches(theirs, list(first.value), n=1)
            raise StageError(
                ExitCode.BAD_REQUEST, "UnknownColumn",
                f'columns.{ours} names "{theirs}", which row {first.place.row} does not have',
                where=source.path,
                actual=f"columns {', '.join(list(first.value)[:12]) or 'none'}",
                fix=f"Write columns: {{{ours}: {near[0]}}}." if near else "Name a column of the row, or remove it.",
            )  # fmt: skip


def _turned(ours: str, theirs: str, known: Sequence[str]) -> str:
    if theirs in known:
        return f"Write {{{theirs}: {ours}}}: the standard name first, then the dataset's column."
    return "Swap them: the standard name first, then the dataset's column."


def _bad_columns(source: DatasetSpec, what: str, actual: str, known: Sequence[str], fix: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST,
        "UnknownColumn",
        what,
        where=f"{source.path}.columns",
        actual=actual,
        expected=f"one of {', '.join(known)}",
        fix=fix,
    )
