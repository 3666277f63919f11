"""Reads text files: every line that is not blank is a row, or every piece between separators."""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO

from finetune_trainer.readers.opening import CHUNK, decoded, lines, opened
from finetune_trainer.readers.row_location import MAX_ROW, DataFile

#: Number of lines at the beginning of a file that show whether it is a table or JSON.
_FIRST = 20
#: The beginning of rows in JSON.
_JSON = re.compile(r'\s*(?:\[\s*)?\{\s*"')


def read_text(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields rows with one column, ``text``, numbered by their line, or by their piece if there is a separator."""
    with opened(file, markup=True) as stream:
        for number, text in _lines(file, stream) if file.separator is None else _pieces(file, stream):
            if "\0" in text:
                raise file.has_nul(number)
            if text.strip():
                yield number, {"text": text}


def _refuse_rows(file: DataFile, begin: Sequence[bytes]) -> None:
    """Raises ``StageError`` 65 if the file begins with JSON, or if most of its first lines have as many fields between
    tabs as the first one.
    """
    texts = [line.decode(errors="replace").strip("\r\n ") for line in begin if line.strip()]
    as_text = f'To train lines: set {file.dataset}.separator: "\\n".'
    if _JSON.match("\n".join(texts)):
        raise file.unreadable("the lines are JSON", f"Name it .jsonl. {as_text}")
    if not texts or "\t" not in texts[0].strip():
        return
    csv.field_size_limit(CHUNK + MAX_ROW)  # a quoted field may have line breaks
    counts = [list(map(len, csv.reader(texts, delimiter="\t"))), [text.count("\t") for text in texts]]
    if any(others and others.count(first) * 2 > len(others) for first, *others in counts):
        raise file.unreadable(
            "the lines are fields between tabs, as in Excel's Unicode Text",
            f"Name it .tsv, if the first line names the columns. {as_text}",
        )


def contains_separator(file: DataFile) -> bool:
    """Whether the file's separator occurs in it. Reads the file up to there."""
    separator, rest = _separator(file), ""
    with opened(file, markup=True) as stream:
        for text in _decoded(file, stream):
            rest = rest[-len(separator) :] + text
            if separator and separator in rest:
                return True
    return False


def _lines(file: DataFile, stream: BinaryIO) -> Iterator[tuple[int, str]]:
    every, begin = lines(stream), list[bytes]()
    while len(begin) < _FIRST and sum(map(len, begin)) < CHUNK and (line := next(every, b"")):
        begin.append(line)
    _refuse_rows(file, begin)
    for number, line in enumerate(chain(begin, every), start=1):
        if len(line) >= MAX_ROW:
            raise file.too_large(number, f"Break it into lines, or set {file.dataset}.separator.")
        yield number, file.decode(number, line).rstrip("\r\n")


def _pieces(file: DataFile, stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yields the pieces without the line breaks at their ends."""
    separator, number, rest = _separator(file), 1, ""
    for text in _decoded(file, stream):
        searched = max(0, len(rest) - len(separator))  # a separator may begin in the text before
        rest += text
        if rest.find(separator, searched) >= 0:
            *pieces, rest = rest.split(separator)
            for piece in pieces:
                yield number, piece.strip("\n")
                number += 1
        if len(rest) > MAX_ROW:
            raise file.too_large(number, "Separate it, or split it.")
    yield number, rest.strip("\n")


def _separator(file: DataFile) -> str:
    assert file.separator is not None
    return file.separator.replace("\r\n", "\n")


def _decoded(file: DataFile, stream: BinaryIO) -> Iterator[str]:
    """Yields the text in chunks, with LF for every line break."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    return decoded(file, stream, decoder, "UTF-8")
