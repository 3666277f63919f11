"""Reads CSV and TSV files: every field is text as it is written, without types and without words for null.

Quotes, and line breaks within them, are those of RFC 4180. The first row names the columns.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from finetune_trainer.errors import StageError
from finetune_trainer.readers.opening import lines, opened
from finetune_trainer.readers.row_location import MAX_ROW, DataFile, shown

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_FIELDS = "Quote fields that contain the separator or a line break, and write a quote within them twice."


def read_delimited(file: DataFile, *, usual: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows below the header, numbered from 1. ``usual`` separates fields unless the dataset says otherwise.

    Raises ``StageError`` 65 for a row that has not as many fields as the header, 64 for a separator that is not one
    character or does not occur.
    """
    separator = usual if file.separator is None else file.separator
    if len(separator) != 1 or separator in '"\r\n\0':
        what = "a separator of fields is one character, neither a quote nor a line break"
        raise file.bad_separator(what, 'Write, for example, ";".')
    with opened(file) as stream:
        table = _Table(file, stream, separator)
        rows = table.rows()
        header = next(rows, None)
        if header is not None and header[0].lower().startswith("sep=") and set(header[1:]) <= {""}:
            header = next(rows, None)  # Excel's line about the separator
        if header is None:
            return
        header = [name.strip() for name in header]
        _require_names(file, header, separator)
        for fields in rows:
            if len(fields) != len(header):
                raise table.mismatch(
                    "the row does not have as many fields as the header",
                    _FIELDS,
                    actual=f"{len(fields)}, the first: {shown(fields[0], 40)}",
                    expected=f"{len(header)}: {shown(', '.join(header), 100)}",
                )
            yield table.number, dict(zip(header, fields, strict=True))


class _Table:
    """The rows of a file that are not blank, each a list of fields. ``number`` is the current row's, 0 the header's."""

    def __init__(self, file: DataFile, stream: BinaryIO, separator: str) -> None:
        csv.field_size_limit(MAX_ROW)
        self._file, self._size, self._line, self.number = file, 0, 1, 0
        self._csv = csv.reader(self._lines(stream), delimiter=separator, strict=True)

    def rows(self) -> Iterator[list[str]]:
        try:
            for fields in self._csv:
                if fields:
                    yield fields
                    self.number += 1
                self._size, self._line = 0, self._csv.line_num + 1
        except csv.Error as error:
            unclosed = "end of data" in str(error)
            raise self.mismatch(
                "the row is not CSV",
                f"Close every quote, write a quote within a quoted field twice, or set {self._file.dataset}.separator.",
                actual="a quote that is not closed" if unclosed else shown(str(error)),
            ) from None

    def mismatch(self, what: str, fix: str, *, actual: str, expected: str = "") -> StageError:
        """Returns the error (``StageError`` 65) for the current row, with the line where it begins."""
        place = self._file.place(self.number)
        return place.mismatch(f"line {self._line}: {what}", fix, actual=actual, expected=expected)

    def _lines(self, stream: BinaryIO) -> Iterator[str]:
        for line in lines(stream):
            self._size += len(line)
            if self._size >= MAX_ROW:  # an unclosed quote joins all lines that follow
                raise self._file.too_large(self.number, "Split the row, or close its quote.")
            if b"\0" in line:
                raise self._file.has_nul(self.number)
            yield self._file.decode(self.number, line)


def _require_names(file: DataFile, header: Sequence[str], separator: str) -> None:
    """Raises ``StageError`` for a header that does not name every column once, or is not separated as expected."""
    names = shown(", ".join(header), 100)
    if len(header) == 1 and file.separator is not None:
        raise file.bad_separator("it does not occur in the header", f"The header is: {names}.")
    other = next((other for other in _SEPARATORS if len(header) == 1 and other in header[0]), None)
    if other is not None:
        raise file.unreadable(
            f"the header has one column, which contains {_SEPARATORS[other]}",
            f"Set {file.dataset}.separator: {json.dumps(other)}.",
            actual=names,
            expected=f"columns separated by {_SEPARATORS[separator]}",
        )
    times = Counter(header)
    for number, name in enumerate(header, start=1):
        if not name.strip() or times[name] > 1:
            raise file.unreadable(
                "the header does not name every column once",
                "Name the columns in the first row (in pandas: to_csv(path, index=False)).",
                actual=f"column {number} is {shown(json.dumps(name, ensure_ascii=False), 60)}",
                expected="names that are unique and not blank",
            )
