"""Shapes of rows: the columns of each format, under the API's names and those of published datasets. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from finetune_trainer.data.messages import is_message, role_of
from finetune_trainer.readers.json_text import parse
from finetune_trainer.readers.known_names import is_empty


class Format(StrEnum):
    """Row formats; the values are those of the API."""

    MESSAGES = "Messages"
    PROMPT_COMPLETION = "PromptCompletion"
    PREFERENCE = "Preference"
    QUESTION_ANSWER = "QuestionAnswer"
    TEXT = "Text"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatColumns:
    """Columns of a format by the API's names: those that every row needs, and those that a row may have."""

    needs: Sequence[str]
    may: Sequence[str] = ()

    @property
    def mapped(self) -> Sequence[str]:
        """Columns that a job can map. Scores are only read under their usual names."""
        return [name for name in (*self.needs, *self.may) if not name.startswith("score_")]


_BESIDE_PROMPTS = ("system", "input", "history", "tools", "reasoning", "label")
FORMATS: Mapping[Format, FormatColumns] = {
    Format.MESSAGES: FormatColumns(needs=("messages",), may=("system", "tools", "label")),
    Format.PROMPT_COMPLETION: FormatColumns(needs=("prompt", "completion"), may=_BESIDE_PROMPTS),
    Format.PREFERENCE: FormatColumns(
        needs=("chosen", "rejected"),
        may=("prompt", "system", "input", "history", "tools", "score_chosen", "score_rejected"),
    ),
    Format.QUESTION_ANSWER: FormatColumns(needs=("question", "answer"), may=_BESIDE_PROMPTS),
    Format.TEXT: FormatColumns(needs=("text",)),
}
_NEEDED = [name for columns in FORMATS.values() for name in columns.needs]
#: Columns that the API maps.
COLUMNS: Sequence[str] = tuple(
    dict.fromkeys([*_NEEDED, *(name for columns in FORMATS.values() for name in columns.mapped)])
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A format with the dataset's names of its columns, by the API's names.

    ``name`` is empty if they are the API's own.
    """

    format: Format
    name: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.format} ({self.name})" if self.name else str(self.format)

    def column(self, name: str) -> str:
        return self.columns.get(name, name)

    def allows(self, columns: Mapping[str, str]) -> bool:
        """Whether a job may map these columns: those of the format, and none that the shape names itself."""
        return columns.keys() <= set(FORMATS[self.format].mapped) - self.columns.keys()

    def mapped(self, columns: Mapping[str, str]) -> "Shape":
        """Returns the shape with the job's names of the columns that it needs."""
        own = {name: column for name, column in columns.items() if name in FORMATS[self.format].needs}
        return replace(self, columns={**self.columns, **own}) if own else self

    def occurs(self, row: Mapping[str, Any], roles: Mapping[str, str]) -> bool:
        """Whether the row has all columns that the format needs. Messages are a prompt if they end with the user's, by
        the job's ``roles``, or if the job maps them.
        """
        asks = (
            self.name and self.columns.get("prompt") == "messages" and self.format is Format.PROMPT_COMPLETION
        )
        return all(column in row for column in self._needed()) and (not asks or _asks(row["messages"], roles))

    def fits(self, row: Mapping[str, Any], roles: Mapping[str, str]) -> bool:
        """Whether the row has all columns that the format needs, and each says something."""
        return self.occurs(row, roles) and not any(is_empty(row[column]) for column in self._needed())

    def _needed(self) -> Sequence[str]:
        return [self.column(name) for name in FORMATS[self.format].needs] + list(self.columns.values())


def _asks(messages: Any, roles: Mapping[str, str]) -> bool:
    """Whether the last of some messages, a list or its JSON text, is the user's."""
    if isinstance(messages, str):
        try:
            messages = parse(messages)
        except ValueError:
            return False
        if not isinstance(messages, list) or not all(map(is_message, messages)):
            return False
    return isinstance(messages, list) and bool(messages) and role_of(messages[-1], roles) == "user"


def _pair(name: str, prompt: str, completion: str) -> Shape:
    return Shape(
        format=Format.PROMPT_COMPLETION, name=name, columns={"prompt": prompt, "completion": completion}
    )


def _preference(name: str, chosen: str, rejected: str, **others: str) -> Shape:
    return Shape(
        format=Format.PREFERENCE, name=name, columns={"chosen": chosen, "rejected": rejected, **others}
    )


#: Shapes in the order in which they are tried: the API's own names first, except for prompts in ``messages``. A column
#: ``text`` often repeats the others.
SHAPES: Sequence[Shape] = (
    *(_pair(f"messages and {answer}", "messages", answer) for answer in ("answer", "response", "completion")),
    *(Shape(format=format_) for format_ in FORMATS if format_ is not Format.TEXT),
    Shape(format=Format.MESSAGES, name="ShareGPT", columns={"messages": "conversations"}),
    Shape(format=Format.MESSAGES, name="conversation", columns={"messages": "conversation"}),
    Shape(format=Format.MESSAGES, name="Gemini", columns={"messages": "contents"}),
    _pair("Alpaca", "instruction", "output"),
    _pair("Dolly", "instruction", "response"),
    _pair("OpenOrca", "question", "response"),
    _pair("ms-swift", "query", "response"),
    _pair("prompt and response", "prompt", "response"),
    _pair("input and output", "input", "output"),
    _pair("problem and solution", "problem", "solution"),
    Shape(format=Format.TEXT),
)
#: Shapes of pairs of answers, in the order in which preference methods try them.
PAIRS: Sequence[Shape] = (
    _preference("", "chosen", "rejected", prompt="prompt"),
    *(
        _preference(f"{prompt} and pair", "chosen", "rejected", prompt=prompt)
        for prompt in ("instruction", "question", "query", "problem", "input", "conversations", "messages")
    ),
    Shape(format=Format.PREFERENCE),
    *(
        _preference("argilla", "chosen_response", "rejected_response", prompt=prompt)
        for prompt in ("instruction", "prompt")
    ),
    _preference("OpenAI", "preferred_output", "non_preferred_output", prompt="input"),
    _preference("ms-swift", "response", "rejected_response", prompt="query"),
    _preference("ms-swift's messages", "messages", "rejected_response"),
    _preference("two conversations", "messages", "rejected_messages"),
)
