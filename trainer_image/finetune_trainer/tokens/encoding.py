"""Turns rendered texts into tokens and a mask of those that are trained.

The tokens up to a trained turn are those of its prompt alone. A prompt's last characters and an answer's first ones may
be one token of the whole text, such as a space and the word after it. A model that is given the prompt does not see
this token, so both sides are then encoded apart.
"""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from finetune_trainer.tokens.chat import Tokenizer
from finetune_trainer.tokens.contents import ControlTokens, Offsets
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.turns import Turn

if TYPE_CHECKING:
    from tokenizers import Encoding

#: Texts in front of a continuation whose own tokens are dropped. Most tokenizers of SentencePiece's kind write a space
#: in front of every text; none writes it behind a character. One that merges with what follows is not used.
_BEFORE = ("\n", "\ue000", "|")
#: Number of characters before the end of a prompt that are compared if they have the beginning of a word, before which
#: tokenizers divide a text whatever precedes it.
_NEAR = 64
_WORD = re.compile(r"(?<=\S) (?=[^\W\d_])")
#: Maximum number of cached ends of prompts. Templates have a few.
_MOST_KEPT = 1024

type Mask = npt.NDArray[np.bool_]

_FIRST, _PAST = itemgetter(0), itemgetter(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedExample:
    """One example: token ids, and for each whether its prediction is trained. Both have shape [length]."""

    ids: npt.NDArray[np.int32]
    trained: Mask
    notes: tuple[str, ...] = ()
    """Notes on parts of the row that are not trained as written (:mod:`.notes`)."""
    dropped: str | None = None
    """Reason not to train the row; None if it may be trained."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """An example as text. ``turns`` are its trained parts; None if all of it is trained except ``hidden``."""

    text: str
    turns: Sequence[Turn] | None
    hidden: Sequence[Turn] = ()
    begins: Sequence[int] = ()
    """Positions at which a prompt ends and a trained answer begins."""
    notes: Sequence[str] = ()
    dropped: str | None = None
    """Reason not to train the row; None if it may be trained."""
    framed: bool = False
    """Whether to add the tokenizer's first and last tokens, because no template has written them."""


class Encoded(NamedTuple):
    """Tokens of a text: their ids and their offsets, neither of whose two positions ever decreases."""

    ids: list[int]
    offsets: Offsets

    def ending_by(self, position: int) -> int:
        """Returns how many tokens end at or before ``position``.

        Some tokenizers leave white space out of the offsets: a token of nothing else is empty and at its own end.
        """
        return bisect_right(self.offsets, position, key=_PAST)

    def beginning_before(self, position: int) -> int:
        """Returns how many tokens begin before ``position``."""
        return bisect_left(self.offsets, position, key=_FIRST)


class Encoder:
    def __init__(self, tokenizer: Tokenizer, controls: ControlTokens) -> None:
        self._tokenizer, self._controls = tokenizer, controls
        self._kept_ids = lru_cache(_MOST_KEPT)(self.ids)
        self.adds_bos = tokenizer.bos_token_id in tokenizer("x", add_special_tokens=True)["input_ids"][:1]

    def many(self, rendered: Sequence[Rendered]) -> Iterator[TokenizedExample]:
        """Yields the tokens of each example. All are encoded at once, which is several times as fast."""
        if not rendered:
            return
        encodings = self._encodings([example.text for example in rendered])
        for example, encoding in zip(rendered, encodings, strict=True):
            yield self._made(example, encoding)

    def _encodings(self, texts: list[str]) -> "Sequence[Encoding]":
        # The offsets of all texts as lists at once would take far more time and memory than those of one at a time.
        encoded = self._tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
        )
        encodings: Sequence[Encoding] = encoded.encodings
        return encodings

    def _made(self, example: Rendered, encoding: "Encoding") -> TokenizedExample:
        said = list(example.notes)
        wanted = example.turns is not None
        turns = example.turns or example.hidden
        ids = encoding.ids
        if turns or example.begins:
            encoded = self._located(example.text, ids, encoding.offsets)
            apart = self._apart(example.text, encoded, example.begins)
            if apart is not None:
                encoded = apart
                said.append(Note.MERGED)
            ids = encoded.ids
        trained = np.full(len(ids), not wanted)
        for turn in turns:
            trained[encoded.ending_by(turn.begin) : encoded.beginning_before(turn.end)] = wanted
            if not turn.alone:
                # If the closing tokens were not trained, the model would never learn to stop.
                trained[self._closing(example.text, encoded, turn)] = wanted
        if example.framed:
            ids, trained = self._framed(example.text, ids, trained, said)
        return TokenizedExample(
            ids=np.asarray(ids, np.int32), trained=trained, notes=tuple(said), dropped=example.dropped
        )

    def ids(self, text: str) -> list[int]:
        """Returns the token ids of the text without tokens that the tokenizer adds at its ends."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def opened(self, ids: list[int]) -> list[int]:
        """Returns a text's tokens with one beginning-of-sequence token, if the tokenizer adds one."""
        bos = self._tokenizer.bos_token_id
        return [bos, *ids] if bos is not None and self.adds_bos and ids[:1] != [bos] else ids

    def _framed(self, text: str, ids: list[int], trained: Mask, said: list[str]) -> tuple[list[int], Mask]:
        """Adds the tokens that begin and end a text, unless the text has them itself."""
        opened = self.opened(ids)
        before, eos = len(opened) - len(ids), self._tokenizer.eos_token_id
        ended = eos is not None and text.rstrip().endswith(self._tokenizer.eos_token or "")
        after_it = [eos] if eos is not None and not ended else []
        if ended or (self.adds_bos and not before):
            said.append(Note.OWN_ENDS)
        trained = np.concatenate([np.zeros(before, np.bool_), trained, np.ones(len(after_it), np.bool_)])
        if self.adds_bos:
            trained[0] = False
        return [*opened, *after_it], trained

    def _closing(self, text: str, encoded: Encoded, turn: Turn) -> slice:
        """Returns the tokens that close the turn; empty if there are none.

        These are the first special token after the turn, further special tokens that belong to it, and whitespace that
        the template writes between the turn and them.
        """
        (ids, offsets), special = encoded, self._controls.ids
        start = end = encoded.beginning_before(turn.end)
        while (
            end < len(ids)
            and ids[end] not in special
            and offsets[end][1] <= turn.closed
            and not text[slice(*offsets[end])].strip()
        ):
            end += 1
        closing = end
        # White space before a special token that strips it has no token: only the position shows what follows directly.
        while (
            end < len(ids)
            and ids[end] in special
            and (offsets[end][0] == turn.end or offsets[end][1] <= turn.closed)
        ):
            end += 1
        return slice(start, end if end > closing else start)

    def _located(self, text: str, ids: list[int], offsets: Offsets) -> Encoded:
        """Returns the tokens with their positions, without white space that special tokens take from beside them."""
        return Encoded(ids, self._controls.without_stripped(text, ids, offsets))

    def _apart(self, text: str, whole: Encoded, begins: Iterable[int]) -> Encoded | None:
        """Returns the tokens of ``text`` encoded apart at those positions of ``begins`` where that makes a difference.

        ``whole`` is the text encoded at once. None if its tokens up to each position are those of the text up to there.
        """
        edges = [begin for begin in begins if begin and self._differs(text, whole, begin)]
        if not edges:
            return None
        joined = self._one(text[: edges[0]])
        for begin, end in itertools.pairwise([*edges, len(text)]):
            part = self._continuation(text[begin:end])
            if part is None:
                return None
            joined = Encoded(
                ids=joined.ids + part.ids,
                offsets=[*joined.offsets, *_moved(part.offsets, begin)],
            )
        return joined

    def _one(self, text: str) -> Encoded:
        (encoding,) = self._encodings([text])
        return self._located(text, encoding.ids, encoding.offsets)

    def _differs(self, text: str, whole: Encoded, begin: int) -> bool:
        """Whether the tokens of ``text[:begin]`` are not the first ones of the whole text."""
        past = whole.ending_by(begin)
        if past < len(whole.ids) and whole.offsets[past][0] < begin:
            return True
        # Tokenizers look ahead for white space and in numbers only: how they divide "  " depends on what follows.
        before = text[begin - 1]
        if not (before.isspace() or before.isnumeric()):
            return False
        start, character = self._start(text, whole, begin, past)
        end = text[character:begin]
        return whole.ids[start:past] != (self._kept_ids(end) if len(end) <= _NEAR else self.ids(end))

    def _start(self, text: str, whole: Encoded, begin: int, past: int) -> tuple[int, int]:
        """Returns the number and position of a token from which the prompt's tokens do not depend on those before it.

        This is the last special token, or the beginning of a word not far from the end, or the text's beginning.
        """
        near = max(0, begin - _NEAR)
        start = past
        while start and whole.offsets[start - 1][0] >= near:
            start -= 1
            if whole.ids[start] in self._controls.ids:
                return start, whole.offsets[start][0]
        if near and not self._begins_with_space and (word := _WORD.search(text, near, begin)):
            start = whole.ending_by(word.start())
            if start < past and whole.offsets[start][0] in (word.start(), word.end()):
                return start, word.start()
        return 0, 0

    def _continuation(self, text: str) -> Encoded | None:
        """Returns the tokens of a text that continues another one; None if the tokenizer cannot encode it as such."""
        for before in _BEFORE if self._begins_with_space else ("",):
            encoded = self._one(before + text)
            own = self.ids(before) if before else []
            past = encoded.ending_by(len(before))
            offsets = _moved(encoded.offsets[past:], -len(before))
            if encoded.ids[:past] == own and (not offsets or offsets[0][0] >= 0):
                return Encoded(ids=encoded.ids[past:], offsets=offsets)
        return None

    @cached_property
    def _begins_with_space(self) -> bool:
        """Whether the tokenizer writes a space in front of every text."""
        return self.ids("\nx")[len(self.ids("\n")) :] != self.ids("x")


def _moved(offsets: Offsets, by: int) -> Offsets:
    return [(first + by, past + by) for first, past in offsets]
