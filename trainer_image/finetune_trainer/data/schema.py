"""Reads the rows of a dataset as examples, and refuses those that do not match its shape. Pure."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data.advice import kind, likely, quoted
from finetune_trainer.data.columns import LONG, ColumnReader
from finetune_trainer.data.messages import CONTENTS, ROLES, MessageReader, is_message
from finetune_trainer.data.shapes import FORMATS, SHAPES, Format, Shape
from finetune_trainer.data.sources import LocatedSource
from finetune_trainer.data.turn_keys import WEIGHT, calls_in, from_json, says_thought, tools_of
from finetune_trainer.errors import StageError
from finetune_trainer.readers.known_names import as_label
from finetune_trainer.readers.row_location import Row, RowLocation
from finetune_trainer.tokens.chat import Message, Tools
from finetune_trainer.tokens.example import Conversation, Example, PlainText, TextPair, texts_of
from finetune_trainer.tokens.notes import REASONING

#: The beginning of an object, or of a list of objects, as text.
_MESSAGES = re.compile(r"\s*(?:\[\s*)?\{")
#: Roles of turns that ask.
_ASKING = frozenset({"system", "user"})
BAD_ANSWER, NO_LABEL = "its label says that the answer is bad", "it has no label"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwanted:
    """A row that the dataset itself excludes from training; ``why`` is the reason in the report."""

    place: RowLocation
    why: str


class DatasetSchema:
    """Checks and reads the rows of one dataset, whose ``first`` row decides the shape.

    ``reads`` says whether the chat template reads a key of messages. Raises ``StageError`` 64 or 65.
    """

    shapes: Sequence[Shape] = SHAPES

    def __init__(
        self, source: DatasetSpec, first: Row, *, reads: Callable[[str], bool] = lambda _: True
    ) -> None:
        for role in source.role_map.values():
            if role not in ROLES:
                raise StageError(
                    ExitCode.BAD_REQUEST, "UnknownRole", "roleMap maps the dataset's roles to the standard ones",
                    where=f"{source.path}.roleMap", actual=role, expected=f"one of {', '.join(ROLES)}",
                    fix="Swap them: the dataset's role first, then the standard one.",
                )  # fmt: skip
        self._labelled = "label" in source.columns
        self._asks = not source.columns.keys().isdisjoint({"prompt", "question"})
        self._reasoning = next(filter(reads, REASONING), "")
        self.columns = ColumnReader(source, first, self.shapes)
        self.messages = MessageReader(source.role_map, frozenset(source.ignore), self.columns.unread, reads)
        self._talks = False

    @property
    def format(self) -> Format:
        return self.columns.shape.format

    @property
    def name(self) -> str:
        """The format and shape of the rows that were read, for reports."""
        pairs = self.format in (Format.PROMPT_COMPLETION, Format.QUESTION_ANSWER)
        return f"{self.columns.shape}{' of messages' if self._talks and pairs else ''}"

    def read(self, row: Row) -> tuple[Example, ...] | Unwanted:
        """Returns the examples of a row, or the reason why the dataset excludes it. Raises ``StageError`` 65."""
        example = self.example(row)
        return example if isinstance(example, Unwanted) else (example,)

    def example(self, row: Row) -> Example | Unwanted:
        """Returns the checked row as an example, or the reason why the dataset excludes it.

        Raises ``StageError`` 65 with the row's location, the value found and a suggested fix.
        """
        if why := self._why_unwanted(row):
            return Unwanted(place=row.place, why=why)
        columns = self.columns
        example: Example
        match self.format:
            case Format.MESSAGES:
                example = self._conversation(row)
            case Format.PROMPT_COMPLETION:
                (example,) = self.prompted(
                    row, columns.value(row, "prompt"), columns.value(row, "completion")
                )
            case Format.QUESTION_ANSWER:
                (example,) = self.prompted(row, columns.text(row, "question"), columns.text(row, "answer"))
            case Format.TEXT:
                example = PlainText(place=row.place, text=columns.text(row, "text"))
            case Format.PREFERENCE:
                way = self._way_to_chosen(row)
                raise row.place.mismatch(
                    "rows with chosen and rejected are for preference methods, not for SFT",
                    f"To train on the better answers: columns: {{{way}}}."
                    if way
                    else "Use a preference method, or write prompt and completion.",
                )
        columns.account(row, *texts_of(example))
        return example

    def _way_to_chosen(self, row: Row) -> str:
        """Returns the columns that train the better answers of a row of pairs; '' if nothing asks for them."""
        better, worse = (self.columns.column(name) for name in ("chosen", "rejected"))
        chosen = self._as_messages(row.value[better], row.place)
        names = f"{quoted(better)}, ignore: [{quoted(worse)}]"
        if isinstance(chosen, list) and self.messages.read(chosen, better, row.place)[0]["role"] in _ASKING:
            return f"messages: {names}"
        asks = likely(row.value, ["prompt"]) or likely(row.value, ["messages"])
        return "".join(f"prompt: {quoted(prompt)}, completion: {names}" for prompt in asks.values())

    def _why_unwanted(self, row: Row) -> str | None:
        column, label = self.columns.optional(row, "label")
        if label is None:
            return NO_LABEL if self._labelled else None
        good = as_label(label)
        if good is None:
            raise row.place.mismatch(
                f'the label "{column}" must be true or false, or 1 or 0',
                "Write true for answers to train on.",
                actual=kind(label) if isinstance(label, list | dict) else str(label)[:40],
            )
        return None if good else BAD_ANSWER

    def _conversation(self, row: Row) -> Conversation:
        messages = self.messages.read(
            self.columns.value(row, "messages"), self.columns.column("messages"), row.place
        )
        return self._talk(row, self._with_system(row, messages), self._tools(row))

    def _with_system(self, row: Row, messages: list[Message]) -> list[Message]:
        system = self._system(row)
        if not system or messages[0] == system[0]:
            return messages
        if any(message["role"] == "system" for message in messages):
            column, _ = self.columns.optional(row, "system")
            raise row.place.mismatch(
                f'the row has a system message and the column "{column}", which provides another one',
                f"Keep one of them, or {self.columns.left_out(column, what='the column')}.",
            )
        return [*system, *messages]

    def _system(self, row: Row) -> list[Message]:
        column, value = self.columns.optional(row, "system")
        if value is None:
            return []
        if isinstance(value, Mapping) and value.keys() & set(CONTENTS):
            return self.messages.read([{**value, "role": "system"}], column, row.place)
        parts = value if isinstance(value, list) else [self.columns.optional_text(row, "system")]
        text = self.messages.joined(parts, f'"{column}"', row.place)
        return [{"role": "system", "content": text}] if text else []

    def _thought(self, row: Row) -> str:
        """Returns the reasoning before the answer, which the chat template has to read; '' without any."""
        column, _ = self.columns.optional(row, "reasoning")
        text = self.columns.optional_text(row, "reasoning")
        if text and not self._reasoning:
            raise row.place.mismatch(
                f'the chat template does not read "{column}", reasoning before the answer',
                "Set datasets.chatTemplate to one that renders reasoning_content, or "
                f"{self.columns.left_out(column)}.",
                actual=text[:60],
                reason="ValueNotRead",
            )
        return text

    def _with_thought(self, row: Row, answer: Message, thought: str) -> Message:
        """Returns the answer with the thought, unless its content has it. Raises ``StageError`` 65 if both differ."""
        column, _ = self.columns.optional(row, "reasoning")
        way = self.columns.left_out(column, what="the other")
        if not thought or says_thought(answer["content"], thought, column, way, row.place):
            return answer
        return {**answer, self._reasoning: thought}

    def _tools(self, row: Row) -> Tools:
        column, value = self.columns.optional(row, "tools")
        return tools_of(value, column, row.place)

    def _history(self, row: Row) -> list[Message]:
        """Returns earlier turns: pairs of texts, of the user and the assistant, or messages."""
        column, value = self.columns.optional(row, "history")
        return [] if value is None else self.messages.read(value, column, row.place, pairs=True)

    def prompted(self, row: Row, prompt: Any, *completions: Any) -> list[Example]:
        """Returns an example of the prompt with each completion. They are texts, or lists of messages; a text beside a
        list is one message.

        The prompt is read once, so that what nothing reads of it is counted once.
        """
        prompt = self._as_messages(prompt, row.place, keyed=self._asks)
        # Beside a prompt that is text, an answer may be the JSON of messages.
        completions = tuple(
            self._as_messages(value, row.place)
            if isinstance(prompt, list) or isinstance(value, Mapping)
            else value
            for value in completions
        )
        values = (prompt, *completions)
        if not all(isinstance(value, str | list) for value in values):
            gone = "prompt" if prompt is None else "completion" if None in values else ""
            raise row.place.mismatch(
                "prompt and completion must be two strings or two lists of messages",
                f"Write the {gone}, or remove the row."
                if gone
                else "Write two strings, or two lists of messages.",
                actual=" and ".join(map(kind, values)),
            )
        if all(isinstance(value, str) for value in values):
            return self._of_texts(row, prompt, completions)
        for name in ("input", "history"):
            column, value = self.columns.optional(row, name)
            if value is not None:
                raise row.place.mismatch(
                    f'the prompt consists of messages, so the column "{column}" has no place',
                    f"Put its content into the messages, or {self.columns.left_out(column)}.",
                )
        tools, asked = self._tools(row), self.messages.read(_as_list(prompt, "user"), "prompt", row.place)
        before, first = self._with_system(row, asked), len(asked) + 1
        answers = [
            _without_prompt(
                asked,
                self.messages.read(_as_list(answer, "assistant"), "completion", row.place, first=first),
            )
            for answer in completions
        ]
        for name, answer in zip(FORMATS[self.format].needs[-len(answers) :], answers, strict=True):
            column = self.columns.column(name)
            if answer[0]["role"] in _ASKING:
                if name == "completion":
                    ignored = quoted(self.columns.column("prompt"))
                    way = f"train it alone: columns: {{messages: {quoted(column)}, ignore: [{ignored}]}}"
                else:
                    prompt, _ = self.columns.optional(row, "prompt")
                    way = self.columns.left_out(prompt, what="the prompt")
                raise row.place.mismatch(
                    f'"{column}" begins with a turn of the {answer[0]["role"]} that the prompt does not have',
                    f"Write only what answers the prompt, or {way}.",
                )
            if len(answer) > 1 and self.format is Format.PREFERENCE:
                raise row.place.mismatch(
                    f'"{column}" must be one turn of the assistant after the prompt',
                    "Put the earlier turns into the prompt.",
                    actual=f"{len(answer)} messages",
                )
        if before[-1]["role"] == "assistant" and "assistant" in [answer[0]["role"] for answer in answers]:
            raise row.place.mismatch(
                "the prompt ends with a turn of the assistant, and another one follows",
                "Join the two turns into the answer, or end the prompt with the turn that is answered.",
            )
        if thought := self._thought(row):
            if len(answers[0]) > 1 or set(REASONING) & answers[0][0].keys():
                column, _ = self.columns.optional(row, "reasoning")
                raise row.place.mismatch(
                    f'"{column}" is the reasoning of one answer, and the completion is several turns or has its own',
                    f"Write it into the message that it belongs to, as {self._reasoning}, or "
                    f"{self.columns.left_out(column)}.",
                )
            answers = [[self._with_thought(row, answer[0], thought)] for answer in answers]
        return [self._talk(row, [*before, *answer], tools, untrained=len(before)) for answer in answers]

    def _of_texts(self, row: Row, prompt: str, completions: Sequence[str]) -> list[Example]:
        tools, system, history = self._tools(row), self._system(row), self._history(row)
        thought, (column, extra) = self._thought(row), self.columns.optional(row, "input")
        texts = isinstance(extra, list) and all(isinstance(text, str) for text in extra)
        passages = extra if texts else [self.columns.optional_text(row, "input")]
        # A prompt that was made of its passages has them already.
        repeated = [text for text in passages if len(text) >= LONG and text.strip() in prompt]
        if repeated:
            self.columns.unread.add(column, extra)
        more = [text for text in passages if text and text not in repeated]
        prompt = "\n\n".join([prompt, *more] if prompt.strip() else more or [prompt])
        if not (system or history or tools or thought):
            return [TextPair(place=row.place, prompt=prompt, completion=text) for text in completions]
        asked = [*system, *history, {"role": "user", "content": prompt}]
        answers = [
            (tools and calls_in(text, row.place)) or {"role": "assistant", "content": text}
            for text in completions
        ]
        return [
            self._talk(row, [*asked, self._with_thought(row, answer, thought)], tools) for answer in answers
        ]

    @staticmethod
    def _as_messages(value: Any, place: RowLocation, *, keyed: bool = False) -> Any:
        """Returns messages that are written as JSON text, as in CSV files, or as one object, as a list; any other value
        unchanged. ``keyed``: whether an object of the text may have roles as keys.
        """
        if not isinstance(value, str) or not _MESSAGES.match(value):
            return [value] if isinstance(value, Mapping) and is_message(value, keyed=True) else value
        read = from_json(value, place)
        read = [read] if isinstance(read, Mapping) else read
        messages = isinstance(read, list) and all(is_message(item, keyed=keyed) for item in read)
        return read if messages else value

    def _talk(
        self, row: Row, messages: Sequence[Message], tools: Tools, *, untrained: int = 0
    ) -> Conversation:
        """Returns a conversation whose first ``untrained`` messages are not trained, nor any with weight 0."""
        self._talks = True
        answers = [message["role"] == "assistant" for message in messages]
        trained = answers
        if any(WEIGHT in message for message in messages):
            trained = [
                answer and message.get(WEIGHT) != 0 for answer, message in zip(answers, messages, strict=True)
            ]
            messages = [
                {name: value for name, value in message.items() if name != WEIGHT} for message in messages
            ]
        return Conversation(
            place=row.place,
            messages=messages,
            trained=[False] * untrained + trained[untrained:],
            tools=tools,
            held_out=trained != answers,
        )


def _without_prompt(asked: list[Message], answer: list[Message]) -> list[Message]:
    """Returns an answer without the prompt, or its end, which many datasets repeat in front of it."""
    turns = next((at for at, turn in enumerate(answer) if turn["role"] not in _ASKING), 0)
    repeats = [count for count in (len(asked), turns) if answer[:count] == asked[-count:]]
    return answer[max(repeats, default=0) :] or answer


def _as_list(value: Any, role: str) -> list[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def open_rows[Schema: DatasetSchema](
    source: LocatedSource, open_schema: Callable[[DatasetSpec, Row], Schema]
) -> tuple[Schema, Iterator[Row]]:
    """Returns the schema of a dataset, which the first row decides, and its rows, at most ``maxExamples``.

    Raises ``StageError`` 65 for an empty dataset, and 64 or 65 for a first row that the mapping does not fit.
    """
    first = next(source.rows(), None)
    if first is None:
        raise StageError(
            ExitCode.BAD_DATA, "DatasetEmpty", "the dataset is empty: it has no rows", where=source.spec.path,
            actual=source.uri, expected="at least one row", fix="Upload the data again.",
        )  # fmt: skip
    # Reads again from the first row.
    return open_schema(source.spec, first), itertools.islice(source.rows(), source.spec.max_examples)
