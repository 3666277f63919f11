"""Reads JSON documents: an array of rows, an object around one, or objects that extend over several lines.

One row is in memory at a time; all rows of a file together would take eleven times its size.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from finetune_contract import ExitCode
from finetune_trainer.data.files.json_values import DECODER, TOO_DEEP, require_object, require_plain, shown
from finetune_trainer.data.files.opening import CHUNK, opened
from finetune_trainer.data.row_location import MAX_ROW, DataFile
from finetune_trainer.errors import StageError

#: Upper bound on the characters of a JSON token other than a string (an escape, a literal). A parse error further from
#: the end of the text read so far is an error regardless of the text that follows.
_WORD = 32
_TOO_LARGE = f"a value is larger than {MAX_ROW // 2**20} MiB"
_SPACE = re.compile(r"[ \t\r\n]*")
#: Keys of an object around a list of rows, as other tools write them.
_AROUND = frozenset({
    "data", "dataset", "rows", "examples", "instances", "items", "records", "samples", "entries", "results",
    "questions", "train", "training", "test", "validation", "valid", "val", "dev", "eval",
})  # fmt: skip
#: Columns by which an object is a row itself.
_COLUMNS = frozenset({
    "messages", "conversations", "prompt", "completion", "question", "answer", "chosen", "rejected", "text",
    "instruction", "output", "response", "tools", "functions",
})  # fmt: skip


def read_document(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows of a JSON document, numbered from 1. Raises ``StageError`` 65 for any other content."""
    key = _key_of_rows(file)
    number = 0
    with opened(file) as stream:
        text = JsonText(stream)
        try:
            for number, value in enumerate(text.rows(key), start=1):
                yield number, require_object(value, file.place(number))
        except ValueError as error:
            raise _not_json(file, text, number + 1, error) from None


def _key_of_rows(file: DataFile) -> str | None:
    """Returns the key whose list contains the rows, for a file that is one object; otherwise None.

    Raises ``StageError`` 65 for an object that contains several such lists, or columns instead of rows.
    """
    with opened(file) as stream:
        text = JsonText(stream)
        firsts: dict[str, Any] = {}
        lengths = set()
        try:
            if text.mark() != "{":
                return None
            for name in text.members():
                if text.mark() != "[":
                    value = text.value()
                    # pandas writes a column as an object with row numbers as keys
                    lengths.add(len(value) if isinstance(value, dict) and {"0", "1"} <= value.keys() else 0)
                    continue
                length = 0
                for value in text.elements():
                    firsts.setdefault(name, value)
                    length += 1
                lengths.add(0 if isinstance(firsts.get(name), dict) else length)
            if text.mark():
                return None
        except ValueError as error:
            raise _not_json(file, text, 1, error) from None
        names = text.names
    if len(lengths) == 1 and max(lengths) > 1:
        raise file.unreadable(
            "UnreadableFile",
            "the file is one object of columns instead of rows",
            f"{file.uri}: columns {shown(', '.join(names), 100)}",
            'Write one object per row (in pandas: to_json(path, orient="records", lines=True)).',
        )
    lists = [name for name, first in firsts.items() if isinstance(first, dict)]
    if any({"role", "from"} & firsts[name].keys() for name in lists) or _COLUMNS & {*names} or not lists:
        return None
    if len(lists) > 1:
        raise file.unreadable(
            "UnreadableFile",
            "the file is one object with several lists of rows",
            f"{file.uri}: {shown(', '.join(lists), 100)}",
            "Write the rows of each list to a file of its own.",
            expected="one list",
        )
    return lists[0] if len(names) == 1 or lists[0].lower() in _AROUND else None


class JsonText:
    """JSON text that is read from a stream as needed. ``at`` is the position of the next character.

    All methods raise ValueError for text that is not JSON, and for a value of more than ``MAX_ROW`` bytes.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._text, self._whole = stream, "", False
        self._characters = codecs.getincrementaldecoder("utf-8")()
        self._lines = 1
        self.at = 0
        self.names: list[str] = []
        """Keys of the object that ``members`` reads."""

    @property
    def line(self) -> int:
        return self._lines + self._text.count("\n", 0, self.at)

    def rows(self, key: str | None) -> Iterator[Any]:
        """Yields the elements of an array, those of the list ``key`` of an object, or all values one after another."""
        if key is not None:
            for name in self.members():
                if name == key:
                    yield from self.elements()
                else:
                    self._skip()
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
        for _ in self._items("}", "value"):
            name = self.value()
            if not isinstance(name, str):
                raise ValueError("a key is not text")
            if name in self.names:
                raise ValueError(f"the key {shown(json.dumps(name))} occurs twice in one object")
            self.names.append(name)
            if self.mark() != ":":
                raise ValueError("there is no colon after a key")
            self.at += 1
            self.mark()
            yield name

    def mark(self) -> str:
        """Skips whitespace and returns the next character; '' at the end of the text."""
        while True:
            space = _SPACE.match(self._text, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self._text) or self._whole:
                return self._text[self.at : self.at + 1]
            self._more()

    def value(self) -> Any:
        """Parses the value that begins here."""
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self.at)
                if self._whole or (
                    end < len(self._text) and self._text[end] not in ".eE"
                ):  # may continue a number
                    break
            except RecursionError:
                raise ValueError(TOO_DEEP) from None
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos + _WORD > len(self._text)
                if self._whole or not unfinished:
                    self.at = error.pos
                    raise ValueError(error.msg) from None
            if len(self._text) - self.at > MAX_ROW:
                raise ValueError(_TOO_LARGE)
            self._more()
        if end - self.at > MAX_ROW:
            raise ValueError(_TOO_LARGE)
        require_plain(value, self._text[self.at : end])
        self.at = end
        return value

    def _items(self, end: str, name: str) -> Iterator[int]:
        """Yields before each item of an array or object that ends with the character ``end``."""
        self.mark()
        self.at += 1
        number = 0
        while (follows := self.mark()) != end:
            if number:
                if follows != ",":
                    raise ValueError(
                        f"there is no comma after {name} {number}" if follows else "it ends unexpectedly"
                    )
                self.at += 1
                self.mark()
            number += 1
            yield number
        self.at += 1

    def _skip(self) -> None:
        if self.mark() == "[":
            for _ in self.elements():
                pass
        else:
            self.value()

    def _more(self) -> None:
        """Reads as much text again as is already unparsed, so that parsing a long value is retried few times."""
        data = self._stream.read(max(CHUNK, len(self._text) - self.at))
        self._whole = not data
        self._lines += self._text.count("\n", 0, self.at)
        self._text, self.at = self._text[self.at :] + self._characters.decode(data, self._whole), 0


def _not_json(file: DataFile, text: JsonText, row: int, error: ValueError) -> StageError:
    return StageError(
        ExitCode.BAD_DATA,
        "DatasetNotJson",
        f"the file is not JSON: line {text.line}: {shown(str(error), 200)}",
        where=str(file.place(row)),
        expected="one object per line, an array of objects, or an object with one list of them",
        fix=f"Correct the file. File: {file.uri}",
    )
