"""Examples as read from a dataset's rows: conversations, prompts with completions, and texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.tokens.chat import Message, Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for the tokenizer's chat template. ``trained`` marks those that count toward the loss."""

    place: RowLocation
    messages: Sequence[Message]
    trained: Sequence[bool]
    tools: Tools = None
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


def texts_of(example: Example) -> tuple[list[str], list[str]]:
    """Returns the texts that an example was read from: those of its prompt, and those of answers."""
    if isinstance(example, PlainText):
        return [], [example.text]
    if isinstance(example, TextPair):
        return [example.prompt], [example.completion]
    asked: list[str] = []
    answered: list[str] = []
    for message in example.messages:
        if message["content"]:
            (answered if message["role"] == "assistant" else asked).append(str(message["content"]))
    return asked, answered
