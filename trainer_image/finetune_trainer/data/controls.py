"""A tokenizer's special tokens in texts: which texts are blank, and which contain a control token."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from finetune_trainer.data.chat import Message, Tokenizer

#: Characters that show nothing: white space, controls, Unicode's Default_Ignorable_Code_Point, and Braille's blank.
_UNSEEN = (
    r"\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff"
)
#: What surrounds a thought, in contents and in what templates write for an empty one (Qwen3, Magistral, Kimi, Gemma 4,
#: gpt-oss).
_THOUGHT = (
    r"</?(?:think|thinking|thought|reasoning|seed:think)>|\[/?THINK\]|◁/?think▷|<\|channel>thought\b|<channel\|>"
    r"|<\|channel\|>\w+(?=<\|message\|>)"
)


class ControlTokens:
    """The special tokens of a tokenizer, those without a name included, which are often the markers of turns."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        special = {index: token for index, token in added.items() if getattr(token, "special", False)}
        self.ids = frozenset(tokenizer.all_special_ids) | special.keys()
        self._stripping = {
            index: (token.lstrip, token.rstrip)
            for index, token in special.items()
            if token.lstrip or token.rstrip
        }
        alone = {str(token) for token in special.values() if token.single_word}
        texts = {*map(str, special.values()), *tokenizer.special_tokens_map.values()}
        written = sorted(text for text in texts if isinstance(text, str) and text.strip())
        self._blank = re.compile(rf"(?:[{_UNSEEN}]++|{_THOUGHT}|{_any_of(written)})*+")
        thought = re.compile(_THOUGHT)
        self.texts: Sequence[str] = [text for text in written if not thought.fullmatch(text)]
        """The tokens as text, without those that mark a thought."""
        lowers = _lowers(tokenizer) and any(token.normalized for token in special.values())
        # One pattern for each first character: a pattern that begins with a literal searches several times as fast.
        self._searches = [
            re.compile(_any_of([*group], alone), re.IGNORECASE if lowers else 0).search
            for _, group in itertools.groupby(self.texts, key=lambda text: text[0])
        ]

        self._search = self._searches[0] if len(self._searches) == 1 else None

    def blank(self, text: str) -> bool:
        """Whether the text has nothing but special tokens, white space, other unseen characters and empty thoughts."""
        return self._blank.fullmatch(text) is not None

    def blank_message(self, message: Message) -> bool:
        """Whether the assistant's message is blank: neither text nor reasoning nor calls."""
        content = message.get("content")
        if isinstance(content, str) and not self.blank(content):
            return False
        return len(message) == 2 or all(
            self.blank(value) if isinstance(value, str) else not value
            for name, value in message.items()
            if name != "role"
        )

    def within(self, value: Any) -> bool:
        """Whether a text, or any text in a list or mapping, contains a special token that does not mark a thought."""
        if isinstance(value, str):
            return self._search(value) is not None if self._search else any(s(value) for s in self._searches)
        return any(map(self.within, _parts(value)))

    def without_stripped(
        self, text: str, ids: Sequence[int], first: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the offsets of the row's tokens without the white space that special tokens take from their sides.

        A token with lstrip or rstrip covers the white space beside it, which may belong to a turn.
        """
        if not self._stripping or not (
            found := [n for n, index in enumerate(ids) if index in self._stripping]
        ):
            return first, last
        first, last = first.copy(), last.copy()
        for number in found:
            left, right = self._stripping[ids[number]]
            covered = text[first[number] : last[number]]
            if left:
                first[number] += len(covered) - len(covered.lstrip())
            if right:
                last[number] -= len(covered) - len(covered.rstrip())
        return first, last


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, Sequence) else ()


def _any_of(texts: Sequence[str], alone: Iterable[str] = ()) -> str:
    """Returns a pattern for any of the sorted texts; those in ``alone`` only with no letter or digit beside them."""
    return "|".join(_grouped(texts, frozenset(alone))) or r"(?!)"


def _grouped(texts: Sequence[str], alone: frozenset[str]) -> Iterator[str]:
    """Yields patterns of the texts grouped by their first two characters, so that few are tried at a position."""
    for begin, group in itertools.groupby(texts, key=lambda text: text[:2]):
        rests = []
        # A longer text first, because it may begin with a shorter one.
        for text in sorted(group, key=len, reverse=True):
            pattern = re.escape(text[2:])
            beside = rf"(?<!\w(?s:.{{{len(begin)}}})){pattern}(?!\w)"
            rests.append(beside if text in alone else pattern)
        yield f"{re.escape(begin)}(?:{'|'.join(rests)})"


def _lowers(tokenizer: Tokenizer) -> bool:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A") == "a"
