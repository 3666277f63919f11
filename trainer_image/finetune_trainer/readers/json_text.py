"""Parses JSON strictly: no duplicate keys, no unpaired surrogates, bounded nesting; single values, and streams of them.

Of a stream one value is in memory at a time; all rows of a file together would take eleven times its size.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from finetune_trainer.readers.opening import CHUNK
from finetune_trainer.readers.row_location import MAX_ROW, shown

#: Largest depth of nested lists and objects. Templates and libraries process values recursively.
MAX_DEPTH = 100
TOO_DEEP = f"it is nested too deeply, more than {MAX_DEPTH} levels"
#: Upper bound on the characters of a JSON token other than a string (an escape, a literal). A parse error further from
#: the end of the text read so far is an error regardless of the text that follows.
_WORD = 32
_SPACE = re.compile(r"[ \t\r\n]*")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _twice(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return made


def _twice(name: str) -> ValueError:
    return ValueError(f"the key {shown(json.dumps(name))} occurs twice in one object")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates)


def parse(text: str) -> Any:
    """Parses a JSON value. Raises JSONDecodeError for a text that is not JSON, ValueError for all other faults."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _require_plain(value, text)
    return value


def _require_plain(value: Any, text: str) -> None:
    """Raises ValueError if a value contains an unpaired surrogate or is nested too deeply. ``text`` is its JSON."""
    if (r"\ud" in text or r"\uD" in text) and (half := half_character(value)):
        raise ValueError(f"{half} is a lone surrogate")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        level = [value]
        for _ in range(MAX_DEPTH + 1):
            level = [item for value in level for item in _items(value)]
        if level:
            raise ValueError(TOO_DEEP)


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def half_character(value: Any) -> str:
    """Returns the first unpaired surrogate in a JSON value as an escape; '' if there is none.

    Escapes in JSON can encode unpaired surrogates, which no tokenizer accepts.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x}"
    return ""


class JsonStream:
    """Values that are read from a stream of JSON text as needed.

    All methods raise ValueError for text that is not JSON, and for a value of more than ``MAX_ROW`` bytes.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._text, self._whole = stream, "", False
        self._characters = codecs.getincrementaldecoder("utf-8")()
        self._lines, self._at = 1, 0

    @property
    def line(self) -> int:
        """The number of the current line."""
        return self._lines + self._text.count("\n", 0, self._at)

    def values(self, key: str | None = None) -> Iterator[Any]:
        """Yields the elements of an array, those of the list ``key`` of an object, or all values one after another."""
        if key is not None:
            for name in self.members():
                for value in self.elements() if self.mark() == "[" else [self.value()]:
                    if name == key:
                        yield value
        elif self.mark() == "[":
            yield from self.elements()
        else:
            while self.mark():
                yield self.value()
        if self.mark():
            raise ValueError("there is content after the array")

    def elements(self) -> Iterator[Any]:
        """Yields the elements of the array that begins here."""
        for _ in self._items("]", "element"):
            yield self.value()

    def members(self) -> Iterator[str]:
        """Yields the keys of the object that begins here. The caller reads each key's value before the next key."""
        names: set[str] = set()
        for _ in self._items("}", "value"):
            name = self.value()
            if not isinstance(name, str):
                raise ValueError("a key is not text")
            if name in names:
                raise _twice(name)
            names.add(name)
            if self.mark() != ":":
                raise ValueError("there is no colon after a key")
            self._at += 1
            self.mark()
            yield name

    def mark(self) -> str:
        """Skips whitespace and returns the next character; '' at the end of the text."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or self._whole:
                return self._text[self._at : self._at + 1]
            self._more()

    def value(self) -> Any:
        """Returns the value that begins here."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # a number at the end of the text so far may continue
                if self._whole or (end < len(self._text) and self._text[end] not in ".eE"):
                    break
            except RecursionError:
                raise ValueError(TOO_DEEP) from None
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos + _WORD > len(self._text)
                if self._whole or not unfinished:
                    self._at = error.pos
                    raise ValueError(error.msg) from None
            self._require_size(len(self._text))
            self._more()
        self._require_size(end)
        _require_plain(value, self._text[self._at : end])
        self._at = end
        return value

    def _items(self, end: str, name: str) -> Iterator[None]:
        """Yields before each item of an array or object that ends with the character ``end``."""
        self.mark()
        self._at += 1
        number = 0
        while (follows := self.mark()) != end:
            if number:
                if follows != ",":
                    raise ValueError(
                        f"there is no comma after {name} {number}" if follows else "it ends unexpectedly"
                    )
                self._at += 1
                self.mark()
            number += 1
            yield
        self._at += 1

    def _require_size(self, end: int) -> None:
        if end - self._at > MAX_ROW:
            raise ValueError(f"a value is larger than {MAX_ROW // 2**20} MiB")

    def _more(self) -> None:
        """Reads as much text again as is already unparsed, so that parsing a long value is retried few times."""
        data = self._stream.read(max(CHUNK, len(self._text) - self._at))
        self._whole = not data
        self._lines += self._text.count("\n", 0, self._at)
        self._text, self._at = self._text[self._at :] + self._characters.decode(data, self._whole), 0
