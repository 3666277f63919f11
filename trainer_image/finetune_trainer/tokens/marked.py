"""Renders conversations with markers as contents: what is between the markers is what the template writes around them.

That depends on the shape of a conversation, which many rows have in common, and is rendered once for each shape.
"""

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.tokens.chat import Chat, Message, Tools

#: Markers are private-use characters, which no template strips or matches.
_OPEN, _CLOSE = "\ue000", "\ue001"
#: Number of messages beyond which what follows a content may be taken from a shorter conversation, and the number of
#: messages that it ends with.
LONG, _LAST = 64, 16
#: Maximum number of cached renderings and of their characters: each contains the row's tools twice.
_MOST_KEPT, _MOST_CHARACTERS = 4096, 32 * 2**20


class Split(dict[str, Any]):
    """A message whose marker is inserted in the middle of its content instead of replacing it."""


class TemplateRow(NamedTuple):
    """What the template receives with the messages of a row, and the row's location for errors."""

    place: RowLocation
    tools: Tools
    tools_key: str = ""
    """The tools as text, for keys of caches."""
    local: bool = False
    """Whether what follows a content depends only on the row's first messages and the last ones before it."""


class PromptTexts(NamedTuple):
    """The text that the template writes after the last content, without and with a request for the next turn.

    Both are empty if the template rejects the conversation without that turn.
    """

    without: str
    asking: str


class Around(NamedTuple):
    """The texts before, between and after contents, one more than there are contents.

    ``prompts`` and ``closings`` of a turn, by the number of its message, are derived when they are first needed.
    """

    gaps: Sequence[str]
    prompts: dict[int, PromptTexts]
    closings: dict[int, int]
    """How many characters after the content close the turn."""


class MarkedChat:
    """Renders conversations with the template of ``chat`` and markers as contents."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._arounds: dict[tuple[tuple[str, ...], str], Around] = {}
        self._tails: dict[tuple[tuple[str, ...], str, bool], str] = {}
        self._characters = 0

    def _make_room(self, characters: int) -> None:
        """Empties both caches if they would exceed their bounds; prompts in the one are tails of the other."""
        if (
            len(self._arounds) + len(self._tails) >= _MOST_KEPT
            or self._characters + characters > _MOST_CHARACTERS
        ):
            self._arounds.clear()
            self._tails.clear()
            self._characters = 0
        self._characters += characters

    def prompt(self, before: Sequence[Message], row: TemplateRow) -> PromptTexts:
        """Returns what asks for the turn after these messages."""
        if before and before[-1]["role"] != "assistant":
            with contextlib.suppress(StageError):
                return PromptTexts(*(self.tail(before, row, asking=asking) for asking in (False, True)))
        return PromptTexts("", "")

    def is_local(self, messages: Sequence[Message], row: TemplateRow) -> bool:
        """Whether the texts around turns of a long conversation are those of its first and last messages alone.

        They are compared with those of all messages before the last turn, and before turns at a half, a quarter … of
        the conversation: what a template derives from the number of messages, or from all of them, shows there.
        """
        past, local = len(messages), row._replace(local=True)
        while past > LONG:
            turn = next((n for n in reversed(range(past)) if messages[n]["role"] == "assistant"), 0)
            before = messages[:turn]
            if self.prompt(before, row) != self.prompt(before, local):
                return False
            answered = [*before, {"role": "assistant", "content": ""}]
            if self._closing(answered, row) != self._closing(answered, local):
                return False
            past //= 2
        return True

    def _closing(self, messages: Sequence[Message], row: TemplateRow) -> str | None:
        with contextlib.suppress(StageError):
            return self.tail(messages, row)
        return None

    def tail(self, messages: Sequence[Message], row: TemplateRow, *, asking: bool = False) -> str:
        """Returns the text after the last content, which is not that of a message with more than content.

        It is rendered once for each shape of conversation: what earlier messages say does not change it, and to render
        the messages before each turn takes time that is quadratic in their number. Raises as ``rendered`` does.
        """
        messages = near(messages, row)
        last = {name: value for name, value in messages[-1].items() if name != "content"}
        key = (tuple(map(_shape, messages)), json.dumps(last) + row.tools_key, asking)
        # The tail of a split message begins with the second half of its content.
        split = any(isinstance(message, Split) for message in messages)
        tail = None if split else self._tails.get(key)
        if tail is None:
            real = frozenset(
                n for n, message in enumerate(messages) if message["role"] == "assistant" and len(message) > 2
            )
            tail = self.rendered(messages, row, real=real, asking=asking)[-1]
            if not split:
                self._make_room(len(key[0]) + len(key[1]) + len(tail))
                self._tails[key] = tail
        return tail

    def around(
        self, messages: Sequence[Message], row: TemplateRow, *, real: frozenset[int] = frozenset()
    ) -> Around:
        """Returns the texts around the contents as ``rendered``, once for each shape of conversation if no message has
        more than role and content.
        """
        roles = [each["role"] for each in messages if len(each) == 2 and not isinstance(each, Split)]
        if real or len(roles) < len(messages):
            return Around(self.rendered(messages, row, real=real), {}, {})
        key = (tuple(roles), row.tools_key)
        around = self._arounds.get(key)
        if around is None:
            around = Around(self.rendered(messages, row), {}, {})
            self._make_room(len(roles) + len(row.tools_key) + sum(map(len, around.gaps)))
            self._arounds[key] = around
        return around

    def rendered(
        self,
        messages: Sequence[Message],
        row: TemplateRow,
        *,
        real: frozenset[int] = frozenset(),
        asking: bool = False,
    ) -> list[str]:
        """Returns the texts before, between and after the contents, one more than there are contents.

        Messages in ``real`` are rendered unchanged and are part of these texts. Raises ``StageError`` 65 if the
        template omits or moves a content.
        """
        marked = [
            each if number in real else {**each, "content": _marked(each, f"{_OPEN}{number}{_CLOSE}")}
            for number, each in enumerate(messages)
        ]
        text = self._chat.render(marked, row.place, tools=row.tools, asking=asking)
        pieces: list[str] = []
        past = 0
        for number in range(len(messages)):
            if number in real:
                continue
            marker = f"{_OPEN}{number}{_CLOSE}"
            begin = text.find(marker, past)
            if begin < 0:
                raise left_out(messages, number, row.place)
            pieces.append(text[past:begin])
            past = begin + len(marker)
        pieces.append(text[past:])
        return pieces


def near(messages: Sequence[Message], row: TemplateRow) -> Sequence[Message]:
    """Returns the messages on which the text after them depends: of a long, ``local`` row those up to the user's first
    one, and the last ones from a turn of the assistant on; otherwise all.
    """
    if not row.local or len(messages) <= LONG:
        return messages
    first = next((n for n, message in enumerate(messages) if message["role"] == "user"), 0) + 1
    last = range(len(messages) - _LAST, first, -1)
    start = next((n for n in last if messages[n]["role"] == "assistant"), first)
    return [*messages[:first], *messages[start:]]


def _shape(message: Message) -> str:
    """Returns what a template may distinguish of an earlier message: its role, its keys and its number of calls."""
    if len(message) == 2:
        return sys.intern(message["role"])
    calls = message.get("tool_calls")
    number = len(calls) if isinstance(calls, list) else 0
    return sys.intern(f"{message['role']} {number} {bool(message.get('content'))} {' '.join(message)}")


def _marked(message: Message, marker: str) -> str:
    if not isinstance(message, Split):
        return marker
    content = str(message["content"])
    return content[: len(content) // 2] + marker + content[len(content) // 2 :]


def left_out(messages: Sequence[Message], number: int, place: RowLocation) -> StageError:
    """Returns the error (``StageError`` 65) for a message that the template does not write unchanged."""
    return place.mismatch(
        f"the model's chat template does not show message {number + 1} ({messages[number]['role']}) unchanged",
        "Remove or merge this message, or set method.sft.trainOnPrompt.",
    )
