"""Finds the assistant's turns in the text of a conversation.

The conversation is rendered a second time with markers as contents: the text between the markers is what the template
writes around contents. (The usual method, rendering growing prefixes, fails for templates that treat the last turn
differently, such as Qwen3's.) If the template changes an assistant's content, or if the message has more than content
(reasoning, tool calls), the assistant's messages are rendered unchanged and only all others have markers.

A turn begins where its generation prompt ends, and ends with the token that closes it.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.tokens.chat import SHORTEST, Chat, Message, Tokenizer, Tools

#: Markers are private-use characters, which no template strips or matches.
_OPEN, _CLOSE = "\ue000", "\ue001"
#: Maximum number of cached renderings and of their characters: each contains the row's tools twice.
_MOST_KEPT, _MOST_CHARACTERS = 4096, 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn as character positions of a text: ``begin`` is the first that the model writes, ``end`` is past the last.

    Special tokens after ``end``, directly or after whitespace, close the turn. Those up to ``closed`` belong to the
    turn; one that follows directly always does.
    """

    begin: int
    end: int
    closed: int
    alone: bool = False
    """Whether the closing token is already before ``end``, so that no token after it belongs to the turn."""
    departs: bool = False
    """Whether the generation prompt continues differently from the turn.

    For example, the prompt may end with empty reasoning while the turn begins with reasoning of its own. The text does
    not contain the part that only the prompt has.
    """

    def moved(self, by: int) -> Self:
        """Returns the same turn in a text with ``by`` additional characters before it."""
        return replace(self, begin=self.begin + by, end=self.end + by, closed=self.closed + by)


class _Split(dict[str, Any]):
    """A message whose marker is inserted in the middle of its content instead of replacing it."""


class _Row(NamedTuple):
    """What the template receives with the messages of a row, and the row's location for errors."""

    place: RowLocation
    tools: Tools
    tools_key: str = ""
    """The tools as text, for keys of caches."""


class TurnFinder:
    def __init__(self, chat: Chat, tokenizer: Tokenizer) -> None:
        self._chat, self._tokenizer = chat, tokenizer
        self._kept: dict[tuple[tuple[str, ...], str, bool], list[str]] = {}
        self._held = 0
        self._tails: dict[tuple[tuple[str, ...], str, bool], str] = {}

    def of(
        self, text: str, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None
    ) -> list[Turn | None]:
        """Returns a turn for each message, None for messages that are not the assistant's.

        Raises ``StageError`` 65 if the template omits or moves a message.
        """
        row = _Row(place, tools, json.dumps(tools) if tools else "")
        refusals = []
        for form, real in self._ways(messages, row):
            try:
                return self._located(text, form, row, real)
            except StageError as error:
                refusals.append(error)
        raise refusals[-2]

    def _ways(
        self, messages: Sequence[Message], row: _Row
    ) -> Iterator[tuple[Sequence[Message], frozenset[int]]]:
        """Yields what to render with markers, and which messages have none; the fastest and most exact way first."""
        answers = frozenset(n for n, message in enumerate(messages) if message["role"] == "assistant")
        if all(len(messages[n]) == 2 for n in answers):
            self._around(messages, row)  # raises if the template omits a message
            yield messages, frozenset()
        yield messages, answers
        # Templates may depend on contents, as Qwen3's on tool results in a user's message.
        yield [message if n in answers else _Split(message) for n, message in enumerate(messages)], answers

    @cached_property
    def closing(self) -> str:
        """The text that the template writes after a conversation's only answer; '' if it rejects such conversations."""
        row = _Row(RowLocation(path="", file="", row=0), None)
        for ask in SHORTEST:
            with contextlib.suppress(StageError):
                return self._around([*ask, {"role": "assistant", "content": "x"}], row)[-1]
        return ""

    @cached_property
    def generation_prompt(self) -> str:
        """The text that the template writes to request an assistant's turn; '' if it writes none."""
        place = RowLocation(path="spec.datasets.chatTemplate", file="", row=0)
        for ask in SHORTEST:
            with contextlib.suppress(StageError):
                plain, asking = (self._chat.render(ask, place, asking=each) for each in (False, True))
                shared = _shared(plain, asking)
                # Some templates write the end of sequence after a text without generation prompt.
                return asking[shared:] if asking.startswith(plain) or shared >= plain.find("x") >= 0 else ""
        return ""

    def _located(
        self, text: str, messages: Sequence[Message], row: _Row, real: frozenset[int]
    ) -> list[Turn | None]:
        """Returns the turns. Those in ``real`` are between contents, all others are contents themselves.

        Raises ``StageError`` 65 if the text does not consist of the contents and what the template writes around them.
        """
        gaps = self._around(messages, row, real=real)
        plain = self._plain_form(messages if real else [], row)
        contents = [number for number in range(len(messages)) if number not in real]
        turns: list[Turn | None] = [None] * len(messages)
        position = 0
        for gap, closing, before, after in zip(
            gaps, [*gaps[1:], ""], [-1, *contents], [*contents, len(messages)], strict=True
        ):
            between = range(before + 1, after)
            if not text.startswith(gap, position):
                raise _left_out(messages, between[0] if between else max(before, 0), row.place)
            if len(between) > 1:
                raise row.place.mismatch(
                    f"messages {before + 2} to {after} are consecutive turns of the assistant with more than plain "
                    "text",
                    "Merge them into one.",
                )
            if between:
                turn = self._within(gap, between[0], messages, plain, row)
                turns[between[0]] = turn.moved(position)
            begin, position = position, position + len(gap)
            if after == len(messages) or isinstance(messages[after], _Split):
                continue
            answers, content = messages[after]["role"] == "assistant", str(messages[after]["content"])
            last = after == contents[-1]
            end = _end_of(text, position, content, closing, last=last, changed=not answers)
            if end is None:
                raise _left_out(messages, _first_unlike(text[position:], closing, after, messages), row.place)
            if answers:
                asked, departs = self._asked(text[begin:], gap, messages[:after], row)
                closed = end + self._closing(after, gaps, messages, row)
                turns[after] = Turn(begin=begin + asked, end=end, closed=closed, departs=departs)
            position = end
        return turns

    def _plain_form(
        self, messages: Sequence[Message], row: _Row
    ) -> tuple[Sequence[Message], Sequence[str] | None]:
        """Returns the messages, those of the assistant with nothing but content, and the texts around their contents;
        None if the template rejects them.
        """
        plain = [
            {"role": message["role"], "content": message.get("content") or ""}
            if message["role"] == "assistant"
            else message
            for message in messages
        ]
        try:
            return plain, self._around(plain, row) if plain else None
        except StageError:  # the template rejects plain texts, such as tool results without a call
            return plain, None

    def _within(
        self,
        gap: str,
        number: int,
        messages: Sequence[Message],
        plain: tuple[Sequence[Message], Sequence[str] | None],
        row: _Row,
    ) -> Turn:
        """Returns the turn of message ``number`` as a position in ``gap``.

        ``gap`` also contains the text that closes the message before it and the text that opens the one after it.
        """
        bare, around = plain
        begin, departs = self._asked(gap, around[number] if around else None, messages[:number], row)
        if around and gap.endswith(around[number + 1]):
            end = max(begin, len(gap) - len(around[number + 1]))
            closed = end + self._closing(number, around, bare, row)
            return Turn(begin=begin, end=end, closed=closed, departs=departs)
        real = frozenset(n for n in range(number + 1) if messages[n]["role"] == "assistant")
        try:
            whole = self._around(messages[: number + 1], row, real=real)[-1]
        except StageError:
            whole = ""
        if not whole or not gap.startswith(whole):
            raise _left_out(messages, number, row.place)
        end = len(whole.rstrip())
        return Turn(begin=begin, end=end, closed=end, alone=True, departs=departs)

    def _closing(self, number: int, around: Sequence[str], messages: Sequence[Message], row: _Row) -> int:
        """Returns how many characters after content ``number`` close its turn.

        These are the characters that the template also writes there at the end of a conversation.
        """
        closing = around[number + 1]
        if number == len(messages) - 1:
            return len(closing)
        try:
            return _shared(closing, self._tail(messages[: number + 1], row))
        except StageError:
            return 0

    def _asked(self, gap: str, opening: str | None, before: Sequence[Message], row: _Row) -> tuple[int, bool]:
        """Returns how many characters of ``gap`` belong to the turn's prompt, and whether the prompt then differs.

        ``gap`` begins after the message before the turn. ``opening`` is the text before the content of a turn that has
        nothing but content; None if it is unknown.
        """
        without = prompt = ""  # if the template rejects the conversation without the turn
        if before and before[-1]["role"] != "assistant":
            with contextlib.suppress(StageError):
                without, prompt = (self._tail(before, row, asking=asking) for asking in (False, True))
        if prompt == without and opening is not None:
            asked = self.generation_prompt
            found = opening.rfind(asked) if asked else -1
            return (found + len(asked) if found >= 0 else len(opening)), False
        if gap.startswith(prompt):
            return len(prompt), False
        # The prompt continues differently from this turn, for example with the beginning of reasoning.
        same = _shared(prompt, gap)
        shared = same if opening is None else min(same, len(opening))
        encoded = self._tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
        begin = max((past for _, past in encoded["offset_mapping"] if past <= shared), default=0)
        return begin, bool(prompt[same:].strip())

    def _tail(self, messages: Sequence[Message], row: _Row, *, asking: bool = False) -> str:
        """Returns the text after the last content, which is not that of a message with more than content.

        It is rendered once for each shape of conversation: what earlier messages say does not change it, and to render
        the messages before each turn takes time that is quadratic in their number. Raises as ``_around`` does.
        """
        last = {name: value for name, value in messages[-1].items() if name != "content"}
        key = (tuple(map(_shape, messages)), json.dumps(last) + row.tools_key, asking)
        tail = self._tails.get(key)
        if tail is None:
            real = frozenset(
                n for n, message in enumerate(messages) if message["role"] == "assistant" and len(message) > 2
            )
            tail = self._around(messages, row, real=real, asking=asking)[-1]
            if len(self._tails) >= _MOST_KEPT:
                self._tails.clear()
            if not any(isinstance(message, _Split) for message in messages):
                self._tails[key] = tail
        return tail

    def _around(
        self,
        messages: Sequence[Message],
        row: _Row,
        *,
        real: frozenset[int] = frozenset(),
        asking: bool = False,
    ) -> list[str]:
        """Returns the texts before, between and after the contents, one more than there are contents.

        Messages in ``real`` are rendered unchanged and are part of these texts. Raises ``StageError`` 65 if the
        template omits or moves a content.
        """
        key = None
        roles = [each["role"] for each in messages if len(each) == 2 and not isinstance(each, _Split)]
        if not real and len(roles) == len(messages):
            key = (tuple(roles), row.tools_key, asking)
            if key in self._kept:
                return self._kept[key]
        marked = [
            each if number in real else {**each, "content": _marked(each, f"{_OPEN}{number}{_CLOSE}")}
            for number, each in enumerate(messages)
        ]
        rest = self._chat.render(marked, row.place, tools=row.tools, asking=asking)
        pieces: list[str] = []
        for number in range(len(messages)):
            if number in real:
                continue
            before, marker, rest = rest.partition(f"{_OPEN}{number}{_CLOSE}")
            if not marker:
                raise _left_out(messages, number, row.place)
            pieces.append(before)
        pieces.append(rest)
        if key is not None:
            size = len(key[1]) + sum(map(len, pieces))
            if len(self._kept) >= _MOST_KEPT or self._held + size > _MOST_CHARACTERS:
                self._kept.clear()
                self._held = 0
            self._kept[key] = pieces
            self._held += size
        return pieces


def _shape(message: Message) -> str:
    """Returns what a template may distinguish of an earlier message: its role, its keys and its number of calls."""
    if len(message) == 2:
        return sys.intern(message["role"])
    calls = message.get("tool_calls")
    number = len(calls) if isinstance(calls, list) else 0
    return sys.intern(f"{message['role']} {number} {bool(message.get('content'))} {' '.join(message)}")


def _marked(message: Message, marker: str) -> str:
    if not isinstance(message, _Split):
        return marker
    content = str(message["content"])
    return content[: len(content) // 2] + marker + content[len(content) // 2 :]


def _end_of(text: str, position: int, content: str, closing: str, *, last: bool, changed: bool) -> int | None:
    """Returns the end of the content that begins at ``position``; None if it is not found.

    If ``changed`` is true, the template may have changed the content.
    """
    for candidate in (content, content.strip()):
        end = position + len(candidate)
        if text.startswith(candidate, position) and (
            text.startswith(closing, end) if not last else text[end:] == closing
        ):
            return end
    if not changed:
        return None
    if last:
        end = len(text) - len(closing)
        return end if end >= position and text.endswith(closing) else None
    end = text.find(closing, position) if closing else -1
    return end if end >= 0 else None


def _first_unlike(text: str, closing: str, number: int, messages: Sequence[Message]) -> int:
    """Returns the number of the message that is not rendered as expected, for an error message.

    ``text`` should begin with message ``number``. ``closing`` is the text expected after it, which covers the following
    messages; the result is at most ``number + 2``.
    """
    content = str(messages[number]["content"]).strip()
    begin = text.find(content)
    if begin != 0 or number == len(messages) - 1:
        return number
    rest = text[len(content) :].lstrip()
    same = rest[: _shared(rest, closing.lstrip())]
    following = messages[number + 1]
    answered = following["role"] == "assistant" and str(following["content"]).strip() in same
    return number + 2 if answered and number + 2 < len(messages) else number + 1


def _shared(one: str, other: str) -> int:
    """Returns the length of the common prefix."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _left_out(messages: Sequence[Message], number: int, place: RowLocation) -> StageError:
    return place.mismatch(
        f"the model's chat template does not show message {number + 1} ({messages[number]['role']}) unchanged",
        "Remove or merge this message, or set method.sft.trainOnPrompt.",
    )
