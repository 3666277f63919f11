"""Turns an example into tokens and a mask of those that count toward the loss.

The chat template is applied once, to the whole conversation, exactly as at inference (:mod:`.chat`). The trained parts
are those that the template marks as generated (``{% generation %}``); without marks, the assistant's turns as found by
:mod:`.turns`, from the end of the generation prompt to the token that closes the turn.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune_contract import ExitCode
from finetune_trainer.data import notes
from finetune_trainer.data.chat import SHORTEST, Chat, Message, Tokenizer, digest
from finetune_trainer.data.row_location import RowLocation
from finetune_trainer.data.schema import Conversation, Example, PlainText, TextPair
from finetune_trainer.data.turns import Turn, TurnFinder
from finetune_trainer.errors import StageError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedExample:
    """One example: token ids, and for each whether its prediction is trained. Both have shape [length]."""

    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]
    notes: tuple[str, ...] = ()
    """Notes on parts of the row that are not trained as written (:mod:`.notes`)."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    """An example as text. ``turns`` are its trained parts; None if all of it is trained."""

    text: str
    turns: Sequence[Turn] | None
    notes: tuple[str, ...] = ()
    framed: bool = False
    """Whether to add the tokenizer's first and last tokens, because no template has written them."""


class Renderer:
    """Turns examples into tokens of one tokenizer.

    ``arguments`` and ``today`` are passed to the chat template (:class:`.chat.Chat`).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        train_on_prompt: bool,
        arguments: Mapping[str, Any] | None = None,
        today: date | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._train_on_prompt = train_on_prompt
        self.chat = Chat(tokenizer, arguments=arguments, today=today)
        self._turns = TurnFinder(self.chat, tokenizer)
        self._special = frozenset(tokenizer.all_special_ids) | _added_special_ids(tokenizer)
        self._adds_bos = _adds_bos(tokenizer)

    def identity(self) -> dict[str, str]:
        """Returns everything that determines how an example becomes tokens, by name."""
        tokenizer = self._tokenizer
        backend = [
            tokenizer.backend_tokenizer.to_str(),
            self._adds_bos,
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
        ]
        return {
            "tokenizer": digest([*backend, sorted(self._special)]),
            **self.chat.identity(),
            "trainOnPrompt": str(self._train_on_prompt),
        }

    def tokens(self, example: Example) -> TokenizedExample:
        """Returns the example's tokens. Raises ``StageError`` 65 if the template rejects the conversation."""
        return self.many([example])[0]

    def many(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """Returns the tokens of each example. Tokenizes all at once, which is several times as fast."""
        rendered = [self._rendered(example) for example in examples]
        if not rendered:
            return []
        encoded = self._tokenizer(
            [each.text for each in rendered], add_special_tokens=False, return_offsets_mapping=True
        )
        return [
            self._masked(each, ids, offsets)
            for each, ids, offsets in zip(
                rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True
            )
        ]

    def _rendered(self, example: Example) -> _Rendered:
        if isinstance(example, PlainText):
            return _Rendered(text=example.text, turns=None, framed=True)
        if isinstance(example, TextPair):
            if not self.chat.exists:
                text = example.prompt + example.completion
                answer = Turn(begin=len(example.prompt), end=len(text), closed=len(text), alone=True)
                return _Rendered(text=text, turns=None if self._train_on_prompt else [answer], framed=True)
            example = _as_chat(example)
        return self._conversation(example)

    def _conversation(self, example: Conversation) -> _Rendered:
        place, tools = example.place, example.tools
        said = [notes.TOOLS_LEFT_OUT] if tools and not self.chat.takes_tools else []
        messages, text = self.chat.settled(example.messages, place, tools=tools)
        if self._train_on_prompt:
            if example.held_out:
                raise place.mismatch(
                    "a message has weight 0, but method.sft.trainOnPrompt trains every message",
                    "Remove the weights, or remove trainOnPrompt.",
                )
            return _Rendered(
                text=text, turns=None, notes=(*said, *_left_out(example, [text] * len(messages)))
            )
        turns = self._turns.of(text, messages, place, tools=tools)
        shown = ["" if turn is None else text[turn.begin : turn.end] for turn in turns]
        wanted = [
            turn for turn, trained in zip(turns, example.trained, strict=True) if trained and turn is not None
        ]
        if wanted and wanted[-1].departs:
            said.append(notes.ASKED_OTHERWISE)
        marks = self.chat.marks(messages, tools=tools)
        if marks is not None:
            wanted = [
                Turn(begin=first, end=past, closed=past, alone=True)
                for first, past in marks
                if any(first < turn.closed and turn.begin < past for turn in wanted)
            ]
        return _Rendered(text=text, turns=wanted, notes=(*said, *_left_out(example, shown)))

    def _masked(
        self, rendered: _Rendered, ids: list[int], offsets: list[tuple[int, int]]
    ) -> TokenizedExample:
        if rendered.turns is None:
            trained = np.ones(len(ids), np.bool_)
        else:
            first, last = np.asarray(offsets, np.int64).reshape(-1, 2).T
            trained = np.zeros(len(ids), np.bool_)
            for turn in rendered.turns:
                trained |= (last > turn.begin) & (first < turn.end)
                if not turn.alone:
                    # If the closing tokens were not trained, the model would never learn to stop.
                    trained[self._closing(rendered.text, ids, first, last, turn)] = True
        if rendered.framed:
            bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
            before = [bos] if self._adds_bos and bos is not None else []
            after_it = [eos] if eos is not None else []
            ids = [*before, *ids, *after_it]
            trained = np.concatenate([[False] * len(before), trained, [True] * len(after_it)]).astype(
                np.bool_
            )
        return TokenizedExample(ids=np.asarray(ids, np.int32), trained=trained, notes=rendered.notes)

    def _closing(
        self,
        text: str,
        ids: list[int],
        first: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
        turn: Turn,
    ) -> slice:
        """Returns the tokens that close the turn; empty if there are none.

        These are the first special token after the turn, further special tokens that belong to it, and whitespace that
        the template writes between the turn and them.
        """
        start = special = int(np.searchsorted(first, turn.end))
        while (
            special < len(ids)
            and ids[special] not in self._special
            and last[special] <= turn.closed
            and not text[first[special] : last[special]].strip()
        ):
            special += 1
        end = special
        while end < len(ids) and ids[end] in self._special and (end == start or last[end] <= turn.closed):
            end += 1
        return slice(start, end if end > special else start)

    def prompt(self, text: str) -> list[int]:
        """Returns the token ids of a prompt: ``text`` as a user's message, or unchanged without a chat template.

        Prompts with completions are trained in the same form.
        """
        if not self.chat.exists:
            return self.opened(text)
        return self.ids(self.chat.continued([{"role": "user", "content": text}], asking=True))

    def asking(
        self,
        messages: Sequence[Message],
        place: RowLocation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Returns the token ids of a conversation up to where the assistant's next turn begins.

        Raises ``StageError`` 65 if the template rejects the conversation.
        """
        settled, _ = self.chat.settled(messages, place, tools=tools)
        return self.ids(self.chat.render(settled, place, tools=tools, asking=True))

    def answer(
        self,
        messages: Sequence[Message],
        place: RowLocation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Returns the last message, which is the assistant's, as the model writes it.

        Includes tool calls but no special tokens. Raises ``StageError`` 65 if the template rejects the conversation or
        does not render the message.
        """
        settled, text = self.chat.settled(messages, place, tools=tools)
        turn = self._turns.of(text, settled, place, tools=tools)[-1]
        assert turn is not None, "the last message is an assistant's"
        written: str = self._tokenizer.decode(self.ids(text[turn.begin : turn.end]), skip_special_tokens=True)
        return written.strip()

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokenizer's special tokens, which include those of its added tokens that are marked as special."""
        return self._special

    def end_ids(self) -> frozenset[int]:
        """Returns the tokens that end an answer.

        These are the end of sequence, and the token with which the template closes an assistant's turn if it accepts a
        conversation with a single answer.
        """
        ends = {self._tokenizer.eos_token_id, self._closing_id() if self.chat.exists else None}
        return frozenset(index for index in ends if index is not None)

    def _closing_id(self) -> int | None:
        """Returns the special token with which the template closes a turn; None if there is none or it is unknown."""
        place = RowLocation(path="", file="", row=0)
        for asked in SHORTEST:
            messages = [*asked, {"role": "assistant", "content": "z"}]
            trained = [message["role"] == "assistant" for message in messages]
            try:
                tokens = self.tokens(Conversation(place=place, messages=messages, trained=trained))
            except StageError:
                continue
            closing = None
            for index in reversed(tokens.ids[tokens.trained].tolist()):
                if index in self._special:
                    closing = index
                elif self._tokenizer.decode([index]).strip():
                    break
            return closing
        return None

    def generation_prompt(self) -> str:
        """Returns the generation prompt, which the template writes to request an assistant's turn; '' if none."""
        return self._turns.generation_prompt()

    def opened(self, text: str) -> list[int]:
        """Returns the token ids of a text, including the beginning-of-sequence token.

        If there is a chat template, the text already contains that token; otherwise it is added if the tokenizer does.
        """
        bos = self._tokenizer.bos_token_id
        if bos is None or not self._adds_bos or self.chat.exists:
            return self.ids(text)
        return [bos, *self.ids(text)]

    def ids(self, text: str) -> list[int]:
        """Returns the token ids of the text without added special tokens."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _left_out(example: Conversation, shown: Sequence[str]) -> list[str]:
    """Returns notes on parts of the trained messages that are missing in ``shown``, their rendered texts."""
    trained = [number for number, each in enumerate(example.trained) if each]
    lacking = {number for number in trained if notes.leaves_out(example.messages[number], shown[number])}
    said = []
    if lacking & set(trained[-1:]):
        said.append(notes.ANSWER_LEFT_OUT)
    if lacking & set(trained[:-1]):
        said.append(notes.TURN_LEFT_OUT)
    return said


def with_template(tokenizer: Tokenizer, template: str) -> None:
    """Sets the job's chat template on the tokenizer. Raises ``StageError`` 64 if it is not valid Jinja."""
    from jinja2.exceptions import TemplateSyntaxError

    tokenizer.chat_template = template.removeprefix("\ufeff")  # the byte order mark of a file
    try:
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=False
        )
    except TemplateSyntaxError as error:
        raise StageError(
            ExitCode.BAD_REQUEST,
            "ChatTemplateInvalid",
            "the chat template is not valid Jinja",
            where="spec.datasets.chatTemplate",
            actual=f"line {error.lineno}: {error.message}",
            expected="a template that transformers can render",
            fix="Correct this line.",
        ) from error
    except Exception:  # noqa: BLE001  templates may reject the probe, as some do without a system message
        _LOG.debug("the chat template rejects a conversation of one message", exc_info=True)


def _as_chat(pair: TextPair) -> Conversation:
    messages = [{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.completion}]
    return Conversation(place=pair.place, messages=messages, trained=[False, True])


def _adds_bos(tokenizer: Tokenizer) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and bos in list(tokenizer("x", add_special_tokens=True)["input_ids"])[:1]


def _added_special_ids(tokenizer: Any) -> frozenset[int]:
    """Returns the special tokens among the added tokens, which often include turn markers that have no name."""
    decoder = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(index for index, token in decoder.items() if getattr(token, "special", False))
