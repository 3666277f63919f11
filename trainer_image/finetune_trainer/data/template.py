"""An example as tokens and a mask of those that count towards the loss.

The chat template is applied once, to the whole conversation, exactly as it will be at inference. Where in the rendered
text each assistant turn stands is found by rendering a second time with markers as contents: what lies between the
fixed parts is the content, whatever the template did to it. (Rendering growing prefixes, the usual way, fails for
templates that treat the last turn differently, such as Qwen3's.) A turn that is trained begins right after what the
template writes to ask for it (``<|im_start|>assistant``) and ends with the token that closes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from finetune_contract import ExitCode
from finetune_trainer.data.schema import Conversation, Example, TextPair
from finetune_trainer.data.sources import Place
from finetune_trainer.errors import StageError

#: Private-use characters: no template strips or matches them.
_OPEN, _CLOSE = "\ue000", "\ue001"


class Tokenizer(Protocol):
    """What is used of a transformers fast tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    bos_token_id: int | None
    all_special_ids: list[int]

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...

    def __call__(self, text: str, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One example: ids and, for each, whether predicting it is trained. Both of shape (length,)."""

    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)


class Renderer:
    """Turns examples into tokens for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, train_on_prompt: bool) -> None:
        self._tokenizer = tokenizer
        self._train_on_prompt = train_on_prompt
        self._special = frozenset(tokenizer.all_special_ids) | _added_special_ids(tokenizer)
        self._adds_bos = _adds_bos(tokenizer)
        self._asks: str | None = None

    def tokens(self, example: Example) -> Tokens:
        """The example's tokens. Raises ``StageError`` 65 where the template refuses the conversation."""
        if isinstance(example, Conversation):
            return self._conversation(example)
        return self._conversation(_as_chat(example)) if self._tokenizer.chat_template else self._pair(example)

    def prompt(self, text: str) -> list[int]:
        """Token ids that ask the model to answer ``text``: as a user's message of a chat, or, without a chat
        template, as it stands. A prompt with its completion is trained the same way."""
        if not self._tokenizer.chat_template:
            bos = self._tokenizer.bos_token_id
            return [*([bos] if self._adds_bos and bos is not None else []), *self._encode(text)[0]]
        rendered = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        return self._encode(rendered)[0]

    def asking(self, messages: Sequence[Mapping[str, Any]], place: Place) -> list[int]:
        """Token ids of the conversation so far, up to where the assistant's next turn begins. Raises ``StageError`` 65
        where the template refuses it."""
        return self._encode(self._render(messages, place, asking=True))[0]

    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the end of sequence, and what the template closes an assistant's turn with."""
        ends = {self._tokenizer.eos_token_id}
        if self._tokenizer.chat_template:
            pair = TextPair(place=Place(path="", file="", row=0), prompt="x", completion="y")
            tokens = self._conversation(_as_chat(pair))
            ends |= {int(i) for i in tokens.ids[tokens.trained][-1:] if int(i) in self._special}
        return frozenset(i for i in ends if i is not None)

    def _pair(self, pair: TextPair) -> Tokens:
        ids, _, ends = self._encode(pair.prompt + pair.completion)
        trained = [self._train_on_prompt or end > len(pair.prompt) for end in ends]
        if self._adds_bos and self._tokenizer.bos_token_id is not None:
            ids, trained = [self._tokenizer.bos_token_id, *ids], [False, *trained]
        if self._tokenizer.eos_token_id is not None:
            ids, trained = [*ids, self._tokenizer.eos_token_id], [*trained, True]
        return Tokens(ids=np.asarray(ids, np.int32), trained=np.asarray(trained, np.bool_))

    def _conversation(self, conversation: Conversation) -> Tokens:
        text = self._render(conversation.messages, conversation.place)
        ids, starts, ends = self._encode(text)
        if self._train_on_prompt:
            return Tokens(ids=np.asarray(ids, np.int32), trained=np.ones(len(ids), np.bool_))
        trained = np.zeros(len(ids), np.bool_)
        first, last = np.asarray(starts), np.asarray(ends)
        spans = turn_spans(
            text,
            conversation.messages,
            lambda messages: self._render(messages, conversation.place),
            self._generation_prompt(),
            conversation.place,
        )
        for wanted, (begin, end) in zip(conversation.trained, spans, strict=True):
            if not wanted:
                continue
            inside = (last > begin) & (first < end)
            trained |= inside
            # The turn's closing token: without it the model never learns to stop.
            after = int(np.searchsorted(first, end)) if len(first) else 0
            if after < len(ids) and ids[after] in self._special:
                trained[after] = True
        return Tokens(ids=np.asarray(ids, np.int32), trained=trained)

    def _generation_prompt(self) -> str:
        """What the template writes to ask for an assistant's turn, '' where it cannot."""
        if self._asks is None:
            ask = [{"role": "user", "content": "x"}]
            plain = self._tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=False)
            asking = self._tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
            self._asks = asking.removeprefix(plain) if asking.startswith(plain) else ""
        return self._asks

    def _render(self, messages: Sequence[Mapping[str, Any]], place: Place, *, asking: bool = False) -> str:
        if not self._tokenizer.chat_template:
            raise StageError(
                ExitCode.BAD_DATA,
                "ChatTemplateMissing",
                "the data are conversations, but the tokenizer has no chat template",
                where=place.path,
                expected="a tokenizer with a chat template, as instruction-tuned models have",
                fix="Use prompt and completion as plain text, or name another model.tokenizer.",
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=asking
            )
        except Exception as error:
            raise place.mismatch(
                f"the model's chat template refuses this conversation: {error}",
                "Change the conversation to what the template allows, often: user and assistant in turns.",
                saw=f"roles {', '.join(str(message['role']) for message in messages)[:200]}",
            ) from error
        return text

    def _encode(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """Ids with the first and the past-the-last character of each."""
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        return list(encoded["input_ids"]), [start for start, _ in offsets], [end for _, end in offsets]


def _as_chat(pair: TextPair) -> Conversation:
    messages = [{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.completion}]
    return Conversation(place=pair.place, messages=messages, trained=[False, True])


def turn_spans(
    text: str, messages: Sequence[Mapping[str, Any]], render: Any, generation_prompt: str, place: Place
) -> list[tuple[int, int]]:
    """Where in ``text`` each message's part that a model would write stands, as (first, past the last) character.

    Raises ``StageError`` 65 when the template leaves a message out or reorders them.
    """
    marked = render([{**m, "content": f"{_OPEN}{i}{_CLOSE}"} for i, m in enumerate(messages)])
    fixed: list[str] = []
    rest = marked
    for index in range(len(messages)):
        before, marker, rest = rest.partition(f"{_OPEN}{index}{_CLOSE}")
        if not marker:
            raise _left_out(messages, index, place)
        fixed.append(before)
    fixed.append(rest)

    spans: list[tuple[int, int]] = []
    if not text.startswith(fixed[0]):
        raise _left_out(messages, 0, place)
    position = len(fixed[0])
    for index, message in enumerate(messages):
        closing = fixed[index + 1]
        end = _end_of_content(
            text, position, str(message["content"]), closing, last=index == len(messages) - 1
        )
        if end is None:
            raise _left_out(messages, index, place)
        opening = fixed[index]
        asked = opening.rfind(generation_prompt) if generation_prompt else -1
        begin = position if asked < 0 else position - len(opening) + asked + len(generation_prompt)
        spans.append((begin, end))
        position = end + len(closing)
    return spans


def _end_of_content(text: str, position: int, content: str, closing: str, *, last: bool) -> int | None:
    for candidate in (content, content.strip()):
        end = position + len(candidate)
        if text.startswith(candidate, position) and text.startswith(closing, end):
            return end
    if last:
        end = len(text) - len(closing)
        return end if end >= position and text.endswith(closing) else None
    end = text.find(closing, position) if closing else -1
    return end if end >= 0 else None


def _left_out(messages: Sequence[Mapping[str, Any]], index: int, place: Place) -> StageError:
    return place.mismatch(
        f"the model's chat template does not show message {index + 1} ({messages[index]['role']}) as it stands",
        "Remove or merge this message, or set method.sft.trainOnPrompt.",
    )


def _adds_bos(tokenizer: Tokenizer) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and bos in list(tokenizer("x", add_special_tokens=True)["input_ids"])[:1]


def _added_special_ids(tokenizer: Any) -> frozenset[int]:
    """Turn markers are often added tokens that are no named special token."""
    decoder = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(index for index, token in decoder.items() if getattr(token, "special", False))
