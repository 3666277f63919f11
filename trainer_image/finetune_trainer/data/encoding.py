"""Encodes texts so that the tokens up to a trained turn are those of its prompt alone.

A prompt's last characters and an answer's first ones may be one token of the whole text, such as a space and the word
after it. A model that is given the prompt does not see this token, so both sides are then encoded apart.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from finetune_trainer.data.chat import Tokenizer
from finetune_trainer.data.controls import ControlTokens

#: Texts in front of a continuation whose own tokens are dropped. Most tokenizers of SentencePiece's kind write a space
#: in front of every text; none writes it behind a character. One that merges with what follows is not used.
_BEFORE = ("\n", "\ue000", "|")
#: Maximum number of cached ends of prompts, and of their characters. Templates have a few that are short.
_MOST_KEPT, _LONGEST_KEPT = 1024, 200


class Encoded(NamedTuple):
    """Tokens of a text: their ids, and the positions of the first character of each and past the last one."""

    ids: list[int]
    first: np.ndarray
    last: np.ndarray


class Encoder:
    """Encodes texts with a tokenizer, without tokens that it adds at the ends."""

    def __init__(self, tokenizer: Tokenizer, controls: ControlTokens) -> None:
        self._tokenizer, self._controls = tokenizer, controls
        self._kept: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def many(self, texts: Sequence[str]) -> Iterator[Encoded]:
        """Yields the tokens of each text. All are encoded at once, which is several times as fast."""
        encoded = self._tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            # Several times as fast as an array of the list of pairs.
            flat = np.fromiter(itertools.chain.from_iterable(offsets), np.int64, 2 * len(offsets))
            first, last = flat.reshape(-1, 2).T
            first, last = self._controls.without_stripped(text, ids, first, last)
            yield Encoded(ids, first, last)

    def apart(self, text: str, whole: Encoded, begins: Iterable[int]) -> Encoded | None:
        """Returns the tokens of ``text`` encoded apart at those positions of ``begins`` where that makes a difference.

        ``whole`` is the text encoded at once. None if its tokens up to each position are those of the text up to there.
        """
        edges = [begin for begin in begins if begin and self._differs(text, whole, begin)]
        if not edges:
            return None
        (joined,) = self.many([text[: edges[0]]])
        for begin, end in itertools.pairwise([*edges, len(text)]):
            part = self._continuation(text[begin:end])
            if part is None:
                return None
            joined = Encoded(
                ids=joined.ids + part.ids,
                first=np.concatenate([joined.first, part.first + begin]),
                last=np.concatenate([joined.last, part.last + begin]),
            )
        return joined

    def _differs(self, text: str, whole: Encoded, begin: int) -> bool:
        """Whether the tokens of ``text[:begin]`` are not the first ones of the whole text."""
        past = _tokens_before(whole, begin)
        if past < len(whole.ids) and whole.first[past] < begin:
            return True
        # Tokenizers look ahead for white space and in numbers only: how they divide "  " depends on what follows.
        before = text[begin - 1]
        if not (before.isspace() or before.isnumeric()):
            return False
        start = past
        while start and whole.ids[start - 1] not in self._controls.ids:
            start -= 1
        # Nothing before a special token has an effect on the tokens after it.
        start = max(start - 1, 0)
        return whole.ids[start:past] != self._end_ids(text[whole.first[start] if start else 0 : begin])

    def _end_ids(self, text: str) -> list[int]:
        if len(text) > _LONGEST_KEPT:
            return self.ids(text)
        kept = self._kept.get(text)
        if kept is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            kept = self._kept[text] = self.ids(text)
        return kept

    def _continuation(self, text: str) -> Encoded | None:
        """Returns the tokens of a text that continues another one; None if the tokenizer cannot encode it as such."""
        for before in _BEFORE if self._begins_with_space else ("",):
            (encoded,) = self.many([before + text])
            own = self.ids(before) if before else []
            past = _tokens_before(encoded, len(before))
            first, last = encoded.first[past:] - len(before), encoded.last[past:] - len(before)
            if encoded.ids[:past] == own and (first >= 0).all():
                return Encoded(ids=encoded.ids[past:], first=first, last=last)
        return None

    @cached_property
    def _begins_with_space(self) -> bool:
        """Whether the tokenizer writes a space in front of every text."""
        return self.ids("\nx")[len(self.ids("\n")) :] != self.ids("x")


def _tokens_before(encoded: Encoded, position: int) -> int:
    """Returns how many tokens end at or before ``position``.

    Some tokenizers leave white space out of the offsets: a token of nothing else is empty and at its own end.
    """
    return int(encoded.last.searchsorted(position, side="right"))
