"""An example as tokens and a mask of those that count towards the loss.

The chat template is applied once, to the whole conversation, exactly as it will be at inference. Where in the rendered
text each assistant turn stands is found by rendering a second time with markers as contents: what lies between the
fixed parts is the content, whatever the template did to it. (Rendering growing prefixes, the usual way, fails for
templates that treat the last turn differently, such as Qwen3's.) A turn that is trained begins right after what the
template writes to ask for it (``<|im_start|>assistant``) and ends with the token that closes it.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from finetune_contract import ExitCode
from finetune_trainer.data.place import Place
from finetune_trainer.data.schema import Conversation, Example, PlainText, TextPair
from finetune_trainer.errors import StageError

_LOG = logging.getLogger(__name__)
#: Private-use characters: no template strips or matches them.
_OPEN, _CLOSE = "\ue000", "\ue001"
#: Sequences of roles whose fixed parts are remembered.
_MOST_KEPT = 1024


class Tokenizer(Protocol):
    """What is used of a transformers fast tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    bos_token_id: int | None
    all_special_ids: list[int]
    backend_tokenizer: Any

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...

    def __call__(self, text: str | list[str], **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One example: ids and, for each, whether predicting it is trained. Both of shape (length,)."""

    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    """An example as text. ``spans``: the trained characters as (first, past the last); None: all of them."""

    text: str
    spans: Sequence[tuple[int, int]] | None
    closed: bool = False
    """Whether the special token after a span belongs to it."""
    framed: bool = False
    """Whether the tokenizer's own first and last tokens are put around it: no template has."""


class Renderer:
    """Turns examples into tokens for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, train_on_prompt: bool) -> None:
        self._tokenizer = tokenizer
        self._train_on_prompt = train_on_prompt
        self._special = frozenset(tokenizer.all_special_ids) | _added_special_ids(tokenizer)
        self._adds_bos = _adds_bos(tokenizer)
        self._asks: str | None = None
        self._fixed: dict[tuple[str, ...], list[str]] = {}

    def identity(self) -> dict[str, str]:
        """What decides how an example becomes tokens, by name."""
        tokenizer = self._tokenizer
        backend = [
            tokenizer.backend_tokenizer.to_str(),
            self._adds_bos,
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
        ]
        return {
            "tokenizer": _digest([*backend, sorted(self._special)]),
            "chatTemplate": _digest(tokenizer.chat_template or ""),
            "trainOnPrompt": str(self._train_on_prompt),
        }

    def tokens(self, example: Example) -> Tokens:
        """The example's tokens. Raises ``StageError`` 65 where the template refuses the conversation."""
        return self.many([example])[0]

    def many(self, examples: Sequence[Example]) -> list[Tokens]:
        """The tokens of each; the tokenizer works on all at once, which is several times as fast."""
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
            return _Rendered(text=example.text, spans=None, framed=True)
        if isinstance(example, TextPair):
            if not self._tokenizer.chat_template:
                text = example.prompt + example.completion
                spans = None if self._train_on_prompt else [(len(example.prompt), len(text))]
                return _Rendered(text=text, spans=spans, framed=True)
            example = _as_chat(example)
        text = self._render(example.messages, example.place)
        if self._train_on_prompt:
            return _Rendered(text=text, spans=None)
        every = turn_spans(
            text,
            example.messages,
            self._fixed_parts(example.messages, example.place),
            self.generation_prompt(),
            example.place,
        )
        spans = [span for span, wanted in zip(every, example.trained, strict=True) if wanted]
        return _Rendered(text=text, spans=spans, closed=True)

    def _masked(self, rendered: _Rendered, ids: list[int], offsets: list[tuple[int, int]]) -> Tokens:
        if rendered.spans is None:
            trained = np.ones(len(ids), np.bool_)
        else:
            first, last = np.asarray(offsets, np.int64).reshape(-1, 2).T
            trained = np.zeros(len(ids), np.bool_)
            for begin, end in rendered.spans:
                trained |= (last > begin) & (first < end)
                # The turn's closing token: without it the model never learns to stop.
                after = int(np.searchsorted(first, end))
                if rendered.closed and after < len(ids) and ids[after] in self._special:
                    trained[after] = True
        if rendered.framed:
            bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
            before = [bos] if self._adds_bos and bos is not None else []
            after_it = [eos] if eos is not None else []
            ids = [*before, *ids, *after_it]
            trained = np.concatenate([[False] * len(before), trained, [True] * len(after_it)]).astype(
                np.bool_
            )
        return Tokens(ids=np.asarray(ids, np.int32), trained=trained)

    def prompt(self, text: str) -> list[int]:
        """Token ids that ask the model to answer ``text``: as a user's message of a chat, or, without a chat
        template, as it stands. A prompt with its completion is trained the same way."""
        if not self._tokenizer.chat_template:
            return self.opened(text)
        rendered = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        return self.ids(rendered)

    def asking(self, messages: Sequence[Mapping[str, Any]], place: Place) -> list[int]:
        """Token ids of the conversation so far, up to where the assistant's next turn begins. Raises ``StageError`` 65
        where the template refuses it."""
        return self.ids(self._render(messages, place, asking=True))

    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the end of sequence, and what the template closes an assistant's turn with."""
        ends = {self._tokenizer.eos_token_id}
        if self._tokenizer.chat_template:
            pair = TextPair(place=Place(path="", file="", row=0), prompt="x", completion="y")
            tokens = self.tokens(pair)
            ends |= {int(i) for i in tokens.ids[tokens.trained][-1:] if int(i) in self._special}
        return frozenset(i for i in ends if i is not None)

    def generation_prompt(self) -> str:
        """What the template writes to ask for an assistant's turn, '' where it cannot."""
        if self._asks is None:
            ask = [{"role": "user", "content": "x"}]
            plain = self._tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=False)
            asking = self._tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
            self._asks = asking.removeprefix(plain) if asking.startswith(plain) else ""
        return self._asks

    def _fixed_parts(self, messages: Sequence[Mapping[str, Any]], place: Place) -> list[str]:
        """What the template writes before, between and after the contents; kept by the sequence of roles."""
        plain = all(len(message) == 2 for message in messages)
        key = tuple(str(message["role"]) for message in messages)
        if plain and key in self._fixed:
            return self._fixed[key]
        fixed = fixed_parts(messages, lambda marked: self._render(marked, place), place)
        if plain and len(self._fixed) < _MOST_KEPT:
            self._fixed[key] = fixed
        return fixed

    def _render(self, messages: Sequence[Mapping[str, Any]], place: Place, *, asking: bool = False) -> str:
        if not self._tokenizer.chat_template:
            raise StageError(
                ExitCode.BAD_DATA,
                "ChatTemplateMissing",
                "the data are conversations, but the tokenizer has no chat template",
                where=place.path,
                expected="a tokenizer with a chat template, as instruction-tuned models have",
                fix="Set datasets.chatTemplate, or name another model.tokenizer.",
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

    def opened(self, text: str) -> list[int]:
        """Token ids of a text, the token that begins one included: a chat template has written it, else the tokenizer
        may put one."""
        bos = self._tokenizer.bos_token_id
        if bos is None or not self._adds_bos or self._tokenizer.chat_template:
            return self.ids(text)
        return [bos, *self.ids(text)]

    def ids(self, text: str) -> list[int]:
        """Token ids of the text as it stands."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def with_template(tokenizer: Tokenizer, template: str) -> None:
    """Gives the tokenizer the job's own chat template. Raises ``StageError`` 64 where it is no Jinja."""
    from jinja2.exceptions import TemplateSyntaxError

    tokenizer.chat_template = template
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
            saw=f"line {error.lineno}: {error.message}",
            expected="a template as transformers reads them",
            fix="Correct this line.",
        ) from error
    except Exception:  # noqa: BLE001  a template may refuse the probe, as some do without a system message
        _LOG.debug("the chat template refuses a conversation of one message", exc_info=True)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _as_chat(pair: TextPair) -> Conversation:
    messages = [{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.completion}]
    return Conversation(place=pair.place, messages=messages, trained=[False, True])


def fixed_parts(
    messages: Sequence[Mapping[str, Any]], render: Callable[[Sequence[Mapping[str, Any]]], str], place: Place
) -> list[str]:
    """The text around the contents, one piece more than there are messages.

    Raises ``StageError`` 65 when the template leaves a message out or reorders them.
    """
    rest = render([{**m, "content": f"{_OPEN}{i}{_CLOSE}"} for i, m in enumerate(messages)])
    fixed: list[str] = []
    for index in range(len(messages)):
        before, marker, rest = rest.partition(f"{_OPEN}{index}{_CLOSE}")
        if not marker:
            raise _left_out(messages, index, place)
        fixed.append(before)
    return [*fixed, rest]


def turn_spans(
    text: str,
    messages: Sequence[Mapping[str, Any]],
    fixed: Sequence[str],
    generation_prompt: str,
    place: Place,
) -> list[tuple[int, int]]:
    """Where in ``text`` each message's part that a model would write stands, as (first, past the last) character.

    Raises ``StageError`` 65 when the template does not show a message as it stands.
    """
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
