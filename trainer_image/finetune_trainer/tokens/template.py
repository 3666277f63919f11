"""Turns an example into tokens and a mask of those that count toward the loss.

The chat template is applied once, to the whole conversation, exactly as at inference (:mod:`.chat`). The trained parts
are those that the template marks as generated (``{% generation %}``); without marks, the assistant's turns as found by
:mod:`.turns`, from the end of the generation prompt to the token that closes the turn.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune_contract import OWN_TEMPLATE, ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.tokens.chat import Chat, Message, Tokenizer, Tools, digest
from finetune_trainer.tokens.contents import Contents, ControlTokens
from finetune_trainer.tokens.encoding import Encoder, Rendered, TokenizedExample
from finetune_trainer.tokens.example import Conversation, Example, PlainText, TextPair
from finetune_trainer.tokens.notes import BLANK_ANSWER, BLANK_TEXT, Note, leaves_out
from finetune_trainer.tokens.turns import Turn, TurnFinder

_LOG = logging.getLogger(__name__)
#: Number of trained tokens that are decoded first to find out whether any of them is text.
_FEW = 32


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
        self._controls = ControlTokens(tokenizer, self._turns.closing if self.chat.exists else "")
        self.special_ids = self._controls.ids
        """The tokenizer's special tokens, which include added tokens that are marked as special or close turns."""
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self._encoder = Encoder(tokenizer, self._controls)

    @cached_property
    def _contents(self) -> Contents:
        asked = self.generation_prompt() if self.chat.exists else ""
        return Contents(self._tokenizer, self._controls, asked, self._train_on_prompt)

    def identity(self) -> dict[str, str]:
        """Returns everything that determines how an example becomes tokens, by name."""
        tokenizer = self._tokenizer
        ends = [self._encoder.adds_bos, tokenizer.bos_token_id, tokenizer.eos_token_id]
        return {
            "tokenizer": digest([tokenizer.backend_tokenizer.to_str(), *ends, sorted(self._controls.ids)]),
            **self.chat.identity(),
            "trainOnPrompt": str(self._train_on_prompt),
        }

    def tokens(self, example: Example) -> TokenizedExample:
        """Returns the example's tokens. Raises ``StageError`` 65 if the template rejects the conversation."""
        return self.many([example])[0]

    def many(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """Returns the tokens of each example. Tokenizes all at once, which is several times as fast."""
        return list(self._encoder.many([self._rendered(example) for example in examples]))

    def _rendered(self, example: Example) -> Rendered:
        if isinstance(example, Conversation):
            return self._conversation(example, self._contents.of_conversation(example))
        if isinstance(example, PlainText):
            return Rendered(
                text=example.text,
                turns=None,
                notes=self._contents.of_text(example),
                dropped=BLANK_TEXT if self._controls.blank(example.text) else None,
                framed=True,
            )
        said = self._contents.of_pair(example, joined=not self.chat.exists)
        if self.chat.exists:
            return self._conversation(_as_chat(example), said)
        text = example.prompt + example.completion
        answer = Turn(begin=len(example.prompt), end=len(text), closed=len(text), alone=True)
        return Rendered(
            text=text,
            turns=None if self._train_on_prompt else [answer],
            begins=[answer.begin],
            notes=said,
            dropped=BLANK_ANSWER if self._controls.blank(example.completion) else None,
            framed=True,
        )

    def _conversation(self, example: Conversation, said: list[str]) -> Rendered:
        """Returns the example as the template renders it. ``said`` are notes on its contents."""
        place, tools = example.place, example.tools
        said = [*([Note.TOOLS_LEFT_OUT] if tools and not self.chat.takes_tools else ()), *said]
        messages, text = self.chat.settled(example.messages, place, tools=tools)
        trained = [number for number, wanted in enumerate(example.trained) if wanted]
        blank = {number for number in trained if self._controls.blank_message(example.messages[number])}
        if self._train_on_prompt and example.held_out:
            raise place.mismatch(
                "a message has weight 0, but method.sft.trainOnPrompt trains every message",
                "Remove the weights, or remove trainOnPrompt.",
            )
        if trained and len(blank) == len(trained):
            return Rendered(text=text, turns=[], dropped=BLANK_ANSWER)
        turns = []
        if blank or not self._train_on_prompt:
            turns = self._turns.of(text, messages, place, tools=tools)
        if self._train_on_prompt:
            hidden = [turn for number in sorted(blank) if (turn := turns[number]) is not None]
            said += [Note.BLANK_TURN] if blank else []
            said += _left_out(example, [text] * len(messages))
            return Rendered(text=text, turns=None, hidden=hidden, notes=said)
        shown = ["" if turn is None else text[turn.begin : turn.end] for turn in turns]
        blank |= {number for number in trained if self._controls.blank(shown[number])}
        wanted = [turn for number in trained if number not in blank and (turn := turns[number]) is not None]
        if trained and not wanted:
            return Rendered(text=text, turns=[], dropped=BLANK_ANSWER)
        if wanted and wanted[-1].departs:
            said.append(Note.ASKED_OTHERWISE)
        said += [Note.BLANK_TURN] if blank else []
        begins = [turn.begin for turn in wanted]
        marks = self.chat.marks(messages, tools=tools)
        if marks is not None:
            wanted = [
                Turn(begin=first, end=past, closed=past, alone=True)
                for first, past in marks
                if any(first < turn.closed and turn.begin < past for turn in wanted)
            ]
        said += _left_out(example, shown)
        return Rendered(text=text, turns=wanted, begins=begins, notes=said)

    def prompt(self, text: str) -> list[int]:
        """Returns the token ids of a prompt: ``text`` as a user's message, or unchanged without a chat template.

        Prompts with completions are trained in the same form.
        """
        if not self.chat.exists:
            return self.opened(text)
        return self.ids(self.chat.continued([{"role": "user", "content": text}], asking=True))

    def asking(self, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None) -> list[int]:
        """Returns the token ids of a conversation up to where the assistant's next turn begins.

        Raises ``StageError`` 65 if the template rejects the conversation.
        """
        settled, _ = self.chat.settled(messages, place, tools=tools)
        return self.ids(self.chat.render(settled, place, tools=tools, asking=True))

    def answer(self, messages: Sequence[Message], place: RowLocation, *, tools: Tools = None) -> str:
        """Returns the last message, which is the assistant's, as the model writes it.

        Includes tool calls but no special tokens. Raises ``StageError`` 65 if the template rejects the conversation or
        does not render the message.
        """
        settled, text = self.chat.settled(messages, place, tools=tools)
        turn = self._turns.of(text, settled, place, tools=tools)[-1]
        assert turn is not None, "the last message is an assistant's"
        written: str = self._tokenizer.decode(self.ids(text[turn.begin : turn.end]), skip_special_tokens=True)
        return written.strip()

    def end_ids(self) -> frozenset[int]:
        """Returns the tokens that end an answer.

        These are the end of sequence, and the special token with which the template closes an assistant's turn if it
        accepts a conversation with a single answer.
        """
        closing = self.ids(self._turns.closing) if self.chat.exists else []
        first = next((index for index in closing if index in self._controls.ids), None)
        return frozenset(index for index in (self._tokenizer.eos_token_id, first) if index is not None)

    def generation_prompt(self) -> str:
        """Returns the generation prompt, which the template writes to request an assistant's turn; '' if none."""
        return self._turns.generation_prompt

    def opened(self, text: str) -> list[int]:
        """Returns the token ids of a text, including one beginning-of-sequence token.

        If there is a chat template, the text already contains that token; otherwise it is added if the tokenizer does.
        """
        return self.ids(text) if self.chat.exists else self._encoder.opened(self.ids(text))

    def ids(self, text: str) -> list[int]:
        """Returns the token ids of the text without added special tokens."""
        return self._encoder.ids(text)

    def blank(self, ids: npt.NDArray[np.int32]) -> bool:
        """Whether the tokens are only special tokens, white space and empty thoughts."""
        return all(self._controls.blank(self._tokenizer.decode(some)) for some in (ids[:_FEW], ids))


def _left_out(example: Conversation, shown: Sequence[str]) -> list[str]:
    """Returns notes on parts of the trained messages that are missing in ``shown``, their rendered texts."""
    trained = [number for number, wanted in enumerate(example.trained) if wanted]
    lacking = [number for number in trained if leaves_out(example.messages[number], shown[number])]
    return sorted(
        {Note.ANSWER_LEFT_OUT if number == trained[-1] else Note.TURN_LEFT_OUT for number in lacking}
    )


def with_template(tokenizer: Tokenizer, template: str) -> None:
    """Sets the job's chat template on the tokenizer, with the tokenizer's own text where the template includes it,
    unless the own text has the rest already.

    Raises ``StageError`` 64 if it is not valid Jinja, or includes a template that the tokenizer does not have.
    """
    from jinja2.exceptions import TemplateSyntaxError

    template = template.removeprefix("\ufeff")  # the byte order mark of a file
    before, included, after = template.rpartition(OWN_TEMPLATE)
    if included:
        own = _own_template(tokenizer)
        # The export of a job with this template has it already.
        template = own if own.startswith(before) and own.endswith(after) else f"{before}{own}{after}"
    tokenizer.chat_template = template
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    except TemplateSyntaxError as error:
        raise StageError(
            ExitCode.BAD_REQUEST, "ChatTemplateInvalid", "the chat template is not valid Jinja",
            where="spec.datasets.chatTemplate", actual=f"line {error.lineno}: {error.message}",
            expected="a template that transformers can render", fix="Correct this line.",
        ) from error  # fmt: skip
    except Exception:  # noqa: BLE001  templates may reject the probe, as some do without a system message
        _LOG.debug("the chat template rejects a conversation of one message", exc_info=True)


def _own_template(tokenizer: Tokenizer) -> str:
    try:
        template: str = tokenizer.get_chat_template()
    except ValueError as error:
        raise StageError(
            ExitCode.BAD_REQUEST, "ChatTemplateMissing",
            "the job's chat template includes the tokenizer's own, and the tokenizer has none",
            where="spec.datasets.chatTemplate", actual=OWN_TEMPLATE,
            expected="a tokenizer with a chat template, as instruction-tuned models have",
            fix="Name such a tokenizer in model.tokenizer, or write a template in place of this line.",
        ) from error  # fmt: skip
    return template


def _as_chat(pair: TextPair) -> Conversation:
    messages = [{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.completion}]
    return Conversation(place=pair.place, messages=messages, trained=[False, True])
