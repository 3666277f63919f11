"""Turns a dataset's rows into questions with reference answers."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data.prepare import read_all
from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.storage import StorageClient
from finetune_trainer.tokens.example import Conversation, Example, PlainText
from finetune_trainer.tokens.template import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt with its reference answer."""

    place: RowLocation
    prompt: Sequence[int]
    """Token ids of the prompt."""
    text: str
    """Text of the last message before the answer."""
    reference: str
    """Reference answer as text without special tokens, as a correct answer decodes."""
    content: str
    """sha256 of question and reference before a chat template renders them."""


def questions(source: DatasetSpec, renderer: Renderer, store: StorageClient, scratch: Path) -> list[Question]:
    """Returns one question per row that has an answer: everything before its last assistant turn, and that turn.

    Raises ``StageError`` as ``data.prepare`` does, and 65 if no row has an answer.
    """
    found = [asked for example in read_all(source, store, scratch) if (asked := question(example, renderer))]
    if not found:
        raise StageError(
            ExitCode.BAD_DATA, "DatasetHasNoAnswers", "no row contains an answer to compare with", where=source.path,
            expected="rows that end in an assistant's turn or a completion",
            fix="Measure Loss alone on this dataset, or add the answers.",
        )  # fmt: skip
    return found


def question(example: Example, renderer: Renderer) -> Question | None:
    """Returns the example's question; None for plain text and for a conversation without an answer to a message."""
    if isinstance(example, PlainText):
        return None
    if not isinstance(example, Conversation):
        return Question(
            place=example.place,
            prompt=renderer.prompt(example.prompt),
            text=example.prompt,
            reference=example.completion.strip(),
            content=_content([example.prompt, example.completion.strip()]),
        )
    turns: Sequence[Any] = example.messages
    last = max((i for i, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
    if last == 0:
        return None
    before, answer = turns[:last], turns[last]
    return Question(
        place=example.place,
        prompt=renderer.asking(before, example.place, tools=example.tools),
        text=str(before[-1].get("content") or ""),
        reference=(
            renderer.answer(turns[: last + 1], example.place, tools=example.tools)
            if answer.get("tool_calls")
            else str(answer["content"]).strip()
        ),
        content=_content([before, answer, example.tools]),
    )


def _content(asked: object) -> str:
    """Returns a digest of plain JSON."""
    text = json.dumps(asked, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
