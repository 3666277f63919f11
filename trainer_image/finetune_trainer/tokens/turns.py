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
from functools import cached_property
from typing import Self

from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.tokens.chat import SHORTEST, Chat, Message, Tokenizer, Tools
from finetune_trainer.tokens.marked import (
    LONG,
    Around,
    MarkedChat,
    PromptTexts,
    Split,
    TemplateRow,
    left_out,
    near,
)

#: Maximum number of messages if all of them have to be rendered before each turn.
_MOST = 512


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


class TurnFinder:
    def __init__(self, chat: Chat, tokenizer: Tokenizer) -> None:
        self._chat, self._marked, self._tokenizer = chat, MarkedChat(chat), tokenizer

    def of(
        self, text: str, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None
    ) -> list[Turn | None]:
        """Returns a turn for each message, None for messages that are not the assistant's.

        Raises ``StageError`` 65 if the template omits or moves a message.
        """
        row = TemplateRow(place, tools, json.dumps(tools) if tools else "")
        if len(messages) > LONG:
            row = row._replace(local=self._marked.is_local(messages, row))
        _require_few(messages, row)
        answers = frozenset(n for n, message in enumerate(messages) if message["role"] == "assistant")
        if all(len(messages[n]) == 2 for n in answers):
            around = self._marked.around(messages, row)  # raises if the template omits a message
            with contextlib.suppress(StageError):
                return self._located(text, messages, row, around)
        try:
            return self._located(
                text, messages, row, self._marked.around(messages, row, real=answers), answers
            )
        except StageError:
            # Templates may depend on contents, as Qwen3's on tool results in a user's message.
            split = [message if n in answers else Split(message) for n, message in enumerate(messages)]
            row = row._replace(local=False)  # which was found out without the contents
            _require_few(messages, row)
            with contextlib.suppress(StageError):
                return self._located(text, split, row, self._marked.around(split, row, real=answers), answers)
            raise

    @cached_property
    def closing(self) -> str:
        """The text that the template writes after a conversation's only answer; '' if it rejects such conversations."""
        row = TemplateRow(RowLocation(path="", file="", row=0), None)
        for ask in SHORTEST:
            with contextlib.suppress(StageError):
                return self._marked.around([*ask, {"role": "assistant", "content": "x"}], row).gaps[-1]
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
        self,
        text: str,
        messages: Sequence[Message],
        row: TemplateRow,
        around: Around,
        real: frozenset[int] = frozenset(),
    ) -> list[Turn | None]:
        """Returns the turns. Those in ``real`` are between contents, all others are contents themselves.

        Raises ``StageError`` 65 if the text does not consist of the contents and what the template writes ``around``
        them.
        """
        gaps = around.gaps
        plain = self._plain_form(messages, row) if real else (messages, None)
        contents = [number for number in range(len(messages)) if number not in real]
        turns: list[Turn | None] = [None] * len(messages)
        position = 0
        for gap, closing, before, after in zip(
            gaps, [*gaps[1:], ""], [-1, *contents], [*contents, len(messages)], strict=True
        ):
            between = range(before + 1, after)
            if not text.startswith(gap, position):
                raise left_out(messages, between[0] if between else max(before, 0), row.place)
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
            if after == len(messages) or isinstance(messages[after], Split):
                continue
            answers, content = messages[after]["role"] == "assistant", str(messages[after]["content"])
            last = after == contents[-1]
            end = _end_of(text, position, content, closing, last=last, changed=not answers)
            if end is None:
                raise left_out(messages, _first_unlike(text[position:], closing, after, messages), row.place)
            if answers:
                prompt = around.prompts.get(after)
                if prompt is None:
                    prompt = around.prompts[after] = self._marked.prompt(messages[:after], row)
                asked, departs = self._asked(text, begin, gap, prompt)
                closed = end + self._closing(after, around, messages, row)
                turns[after] = Turn(begin=begin + asked, end=end, closed=closed, departs=departs)
            position = end
        return turns

    def _plain_form(
        self, messages: Sequence[Message], row: TemplateRow
    ) -> tuple[Sequence[Message], Around | None]:
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
            return plain, self._marked.around(plain, row)
        except StageError:  # the template rejects plain texts, such as tool results without a call
            return plain, None

    def _within(
        self,
        gap: str,
        number: int,
        messages: Sequence[Message],
        plain: tuple[Sequence[Message], Around | None],
        row: TemplateRow,
    ) -> Turn:
        """Returns the turn of message ``number`` as a position in ``gap``.

        ``gap`` also contains the text that closes the message before it and the text that opens the one after it.
        """
        bare, around = plain
        opening = around.gaps[number] if around else None
        begin, departs = self._asked(gap, 0, opening, self._marked.prompt(messages[:number], row))
        if around and gap.endswith(around.gaps[number + 1]):
            end = max(begin, len(gap) - len(around.gaps[number + 1]))
            closed = end + self._closing(number, around, bare, row)
            return Turn(begin=begin, end=end, closed=closed, departs=departs)
        until = near(messages[: number + 1], row)
        real = frozenset(n for n, message in enumerate(until) if message["role"] == "assistant")
        try:
            whole = self._marked.rendered(until, row, real=real)[-1]
        except StageError:
            whole = ""
        if not whole or not gap.startswith(whole):
            raise left_out(messages, number, row.place)
        end = len(whole.rstrip())
        return Turn(begin=begin, end=end, closed=end, alone=True, departs=departs)

    def _closing(self, number: int, around: Around, messages: Sequence[Message], row: TemplateRow) -> int:
        """Returns how many characters after content ``number`` close its turn.

        These are the characters that the template also writes there at the end of a conversation.
        """
        found = around.closings.get(number)
        if found is None:
            closing, found = around.gaps[number + 1], 0
            if number == len(messages) - 1:
                found = len(closing)
            else:
                with contextlib.suppress(StageError):
                    found = _shared(closing, self._marked.tail(messages[: number + 1], row))
            around.closings[number] = found
        return found

    def _asked(self, text: str, start: int, opening: str | None, prompt: PromptTexts) -> tuple[int, bool]:
        """Returns how many characters from ``start`` belong to the turn's prompt, and whether the prompt then differs.

        The text from ``start`` begins after the message before the turn. ``opening`` is the text before the content of
        a turn that has nothing but content; None if it is unknown.
        """
        without, asking = prompt
        if asking == without and opening is not None:
            asked = self.generation_prompt
            found = opening.rfind(asked) if asked else -1
            return (found + len(asked) if found >= 0 else len(opening)), False
        if text.startswith(asking, start):
            return len(asking), False
        # The prompt continues differently from this turn, for example with the beginning of reasoning.
        same = _shared(asking, text[start : start + len(asking)])
        shared = same if opening is None else min(same, len(opening))
        encoded = self._tokenizer(asking, add_special_tokens=False, return_offsets_mapping=True)
        begin = max((past for _, past in encoded["offset_mapping"] if past <= shared), default=0)
        return begin, bool(asking[same:].strip())


def _require_few(messages: Sequence[Message], row: TemplateRow) -> None:
    """Raises ``StageError`` 65 if all messages before each of too many turns would have to be rendered."""
    if not row.local and len(messages) > _MOST:
        raise row.place.mismatch(
            f"{len(messages)} messages are too many for this chat template, which derives what it writes around a turn "
            "from all messages before it",
            f"Divide the conversation into rows of at most {_MOST} messages, or set method.sft.trainOnPrompt.",
        )


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
