"""Finds the assistant's turns in the text of a conversation.

The conversation is rendered a second time with markers as contents: the text between the markers is what the template
writes around contents. (The usual method, rendering growing prefixes, fails for templates that treat the last turn
differently, such as Qwen3's.) If the template changes an assistant's content, or if the message has more than content
(reasoning, tool calls), the assistant's messages are rendered unchanged and only all others have markers.

A turn begins where its generation prompt ends, and ends with the token that closes it.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from finetune_trainer.data.chat import SHORTEST, Chat, Message, Tokenizer, Tools
from finetune_trainer.data.row_location import RowLocation
from finetune_trainer.errors import StageError

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


class TurnFinder:
    """Finds the assistant's turns in texts rendered by ``chat``."""

    def __init__(self, chat: Chat, tokenizer: Tokenizer) -> None:
        self._chat, self._tokenizer = chat, tokenizer
        self._kept: dict[tuple[tuple[str, ...], str, bool], list[str]] = {}
        self._held = 0
        self._asks: str | None = None

    def of(
        self, text: str, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None
    ) -> list[Turn | None]:
        """Returns a turn for each message, None for messages that are not the assistant's.

        Raises ``StageError`` 65 if the template omits or moves a message.
        """
        plain = all(len(each) == 2 for each in messages if each["role"] == "assistant")
        found = self._between_contents(text, messages, place, tools) if plain else None
        if found:
            return found
        try:
            return self._as_they_are(text, messages, place, tools)
        except StageError as error:
            # Templates may depend on contents, as Qwen3's on tool results in a user's message.
            split = [each if each["role"] == "assistant" else _Split(each) for each in messages]
            with contextlib.suppress(StageError):
                return self._as_they_are(text, split, place, tools)
            raise error

    def generation_prompt(self) -> str:
        """Returns the text that the template writes to request an assistant's turn; '' if it writes none."""
        if self._asks is None:
            place = RowLocation(path="spec.datasets.chatTemplate", file="", row=0)
            plain, asking = "x", ""
            for ask in SHORTEST:
                with contextlib.suppress(StageError):
                    plain, asking = (self._chat.render(ask, place, asking=each) for each in (False, True))
                    break
            shared = _shared(plain, asking)
            # Some templates write the end of sequence after a text without generation prompt.
            self._asks = asking[shared:] if asking.startswith(plain) or shared >= plain.find("x") >= 0 else ""
        return self._asks

    def _between_contents(
        self, text: str, messages: Sequence[Message], place: RowLocation, tools: Tools
    ) -> list[Turn | None] | None:
        """Finds the turns if the text contains every assistant's content unchanged or stripped, else returns None."""
        around = self._around(messages, place, tools)
        turns: list[Turn | None] = []
        if not text.startswith(around[0]):
            return None
        position = len(around[0])
        for number, message in enumerate(messages):
            answers = message["role"] == "assistant"
            closing = around[number + 1]
            end = _end_of(text, position, str(message["content"]), closing, last=number == len(messages) - 1,
                          changed=not answers)  # fmt: skip
            if end is None:
                return None
            if answers:
                opening = around[number]
                asked, departs = self._asked(
                    text[position - len(opening) :], opening, messages[:number], place, tools
                )
                begin = position - len(opening) + asked
                turns.append(
                    Turn(
                        begin=begin,
                        end=end,
                        closed=end + self._closing(number, around, messages, place, tools),
                        departs=departs,
                    )
                )
            else:
                turns.append(None)
            position = end + len(closing)
        return turns

    def _as_they_are(
        self, text: str, messages: Sequence[Message], place: RowLocation, tools: Tools
    ) -> list[Turn | None]:
        answers = frozenset(n for n, each in enumerate(messages) if each["role"] == "assistant")
        gaps = self._around(messages, place, tools, real=answers)
        others = [number for number in range(len(messages)) if number not in answers]
        turns: list[Turn | None] = [None] * len(messages)
        position = 0
        for which, gap in enumerate(gaps):
            before = others[which - 1] if which else -1
            after = others[which] if which < len(others) else len(messages)
            within = range(before + 1, after)
            if not text.startswith(gap, position):
                raise _left_out(messages, within[0] if within else max(before, 0), place)
            if len(within) > 1:
                raise place.mismatch(
                    f"messages {within[0] + 1} to {within[-1] + 1} are consecutive turns of the assistant with "
                    "more than plain text",
                    "Merge them into one.",
                )
            if within:
                turns[within[0]] = self._within(gap, within[0], messages, place, tools).moved(position)
            position += len(gap)
            if which < len(others) and not isinstance(messages[after], _Split):
                end = _end_of(text, position, str(messages[after]["content"]), gaps[which + 1],
                              last=which == len(others) - 1, changed=True)  # fmt: skip
                if end is None:
                    raise _left_out(
                        messages, _first_unlike(text[position:], gaps[which + 1], after, messages), place
                    )
                position = end
        return turns

    def _within(
        self, gap: str, number: int, messages: Sequence[Message], place: RowLocation, tools: Tools
    ) -> Turn:
        """Returns the turn of message ``number`` as a position in ``gap``.

        ``gap`` also contains the text that closes the message before it and the text that opens the one after it.
        """
        plain = [
            {"role": each["role"], "content": each.get("content") or ""}
            if each["role"] == "assistant"
            else each
            for each in messages
        ]
        try:
            around = self._around(plain, place, tools)
        except StageError:  # the template rejects plain texts, such as tool results without a call
            around = None
        begin, departs = self._asked(gap, around[number] if around else None, messages[:number], place, tools)
        if around and gap.endswith(around[number + 1]):
            end = max(begin, len(gap) - len(around[number + 1]))
            closed = end + self._closing(number, around, plain, place, tools)
            return Turn(begin=begin, end=end, closed=closed, departs=departs)
        real = frozenset(n for n in range(number + 1) if messages[n]["role"] == "assistant")
        try:
            whole = self._around(messages[: number + 1], place, tools, real=real)[-1]
        except StageError:
            whole = ""
        if not whole or not gap.startswith(whole):
            raise _left_out(messages, number, place)
        end = len(whole.rstrip())
        return Turn(begin=begin, end=end, closed=end, alone=True, departs=departs)

    def _asked(
        self, gap: str, opening: str | None, before: Sequence[Message], place: RowLocation, tools: Tools
    ) -> tuple[int, bool]:
        """Returns how many characters of ``gap`` belong to the turn's prompt, and whether the prompt then differs.

        ``gap`` begins after the message before the turn. ``opening`` is the text before the content of a turn that has
        nothing but content; None if it is unknown.
        """
        prompt, asks = self._prompt(before, place, tools)
        if not asks and opening is not None:
            asked = self.generation_prompt()
            found = opening.rfind(asked) if asked else -1
            return (found + len(asked) if found >= 0 else len(opening)), False
        if gap.startswith(prompt):
            return len(prompt), False
        # The prompt continues differently from this turn, for example with the beginning of reasoning.
        shared = _shared(prompt, gap)
        if opening is not None:
            shared = min(shared, len(opening))
        offsets = self._tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        begin = max((past for _, past in offsets if past <= shared), default=0)
        return begin, bool(prompt[_shared(prompt, gap) :].strip())

    def _prompt(self, before: Sequence[Message], place: RowLocation, tools: Tools) -> tuple[str, bool]:
        """Returns the text after the last content of ``before`` when a turn is requested.

        Also returns whether it differs from the text without a request. The text is empty if the template rejects the
        conversation.
        """
        real = frozenset(n for n, each in enumerate(before) if each["role"] == "assistant" and len(each) > 2)
        if not before or before[-1]["role"] == "assistant":
            return "", False
        try:
            asking = self._around(before, place, tools, real=real, asking=True)[-1]
            without = self._around(before, place, tools, real=real)[-1]
        except StageError:
            return "", False
        return asking, asking != without

    def _closing(
        self,
        number: int,
        around: Sequence[str],
        messages: Sequence[Message],
        place: RowLocation,
        tools: Tools,
    ) -> int:
        """Returns how many characters after content ``number`` close its turn.

        These are the characters that the template also writes there at the end of a conversation.
        """
        closing = around[number + 1]
        if number == len(messages) - 1:
            return len(closing)
        try:
            return _shared(closing, self._around(messages[: number + 1], place, tools)[-1])
        except StageError:
            return 0

    def _around(
        self,
        messages: Sequence[Message],
        place: RowLocation,
        tools: Tools,
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
            key = (tuple(roles), json.dumps(tools) if tools else "", asking)
            if key in self._kept:
                return self._kept[key]
        marked = [
            each if number in real else {**each, "content": _marked(each, f"{_OPEN}{number}{_CLOSE}")}
            for number, each in enumerate(messages)
        ]
        rest = self._chat.render(marked, place, tools=tools, asking=asking)
        pieces: list[str] = []
        for number in range(len(messages)):
            if number in real:
                continue
            before, marker, rest = rest.partition(f"{_OPEN}{number}{_CLOSE}")
            if not marker:
                raise _left_out(messages, number, place)
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
