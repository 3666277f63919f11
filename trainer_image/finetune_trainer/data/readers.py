"""Readers of all supported kinds of data files. Each yields (row number from 1, row) in order, one row at a time.

All raise ``StageError`` 65 for a row or a file whose content does not match the file's suffix.
"""

import codecs
import contextlib
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from finetune_contract import ExitCode
from finetune_trainer.data.row_location import DataFile, RowLocation
from finetune_trainer.errors import StageError

type Rows = Iterator[tuple[int, Mapping[str, Any]]]
#: Number of records of an ArrayRecord file in memory at a time.
_RECORDS = 1024
#: Bytes of a JSON array that are read at a time.
_CHUNK = 2**20
#: Upper bound on the characters of a JSON token other than a string (an escape, a literal). A parse error further from
#: the end of the text read so far is an error regardless of the text that follows.
_WORD = 32
_SPACE = re.compile(r"[ \t\r\n]*")


def read_rows(file: DataFile) -> Rows:
    """Yields the file's rows, each with its number."""
    return _READERS[suffix_of(file.uri)](file)


def suffix_of(name: str) -> str:
    """Returns the supported suffix of a file name; '' if files of this type cannot be read."""
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def _json_lines(file: DataFile) -> Rows:
    with gzip.open(file.path, "rb") if file.uri.endswith(".gz") else file.path.open("rb") as stream:
        try:
            yield from _lines(stream, file)
        except (gzip.BadGzipFile, EOFError) as error:
            raise file.unreadable(
                "UnreadableFile",
                "the file is not complete gzip data",
                f"{file.uri}: {error}",
                "Compress and upload the file again.",
            ) from error


def _lines(stream: Any, file: DataFile) -> Rows:
    for number, line in enumerate(stream, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        place = file.place(number)
        try:
            value = _loaded(text)
        except UnicodeDecodeError as error:
            raise _not_utf8(place, error) from None
        except json.JSONDecodeError as error:
            end = len(error.doc.rstrip())
            if error.pos >= end or error.msg.startswith("Unterminated string"):
                raise _not_json(
                    place, f"it ends unexpectedly after column {end}", actual=_excerpt(error.doc, end)
                ) from None
            what = f"{error.msg} at column {error.colno}"
            raise _not_json(place, what, actual=_excerpt(error.doc, error.pos)) from None
        except ValueError as error:
            raise _not_json(place, str(error)) from None
        yield number, _object(value, place)


def _loaded(data: bytes) -> Any:
    """Parses a JSON value. Raises UnicodeDecodeError for bytes that are not UTF-8, ValueError for all other errors."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if rb"\ud" in data.lower():
        _require_characters(value)
    return value


def half_character(value: Any) -> str:
    """Returns the first unpaired surrogate in a JSON value as an escape; '' if there is none.

    Escapes in JSON can encode unpaired surrogates, which no tokenizer accepts.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x}"
    return ""


def _require_characters(value: Any) -> None:
    """Raises ValueError if the value contains an unpaired surrogate."""
    if half := half_character(value):
        raise ValueError(f"{half} is a lone surrogate")


def _json_document(file: DataFile) -> Rows:
    """Reads a JSON array of rows, or JSON lines in a file with the suffix ``.json``."""
    with file.path.open("rb") as stream:
        begin = stream.read(_CHUNK).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        stream.seek(0)
        if begin != b"[":
            yield from _lines(stream, file)
            return
        elements = enumerate(_elements(stream), start=1)
        while True:
            try:
                number, value = next(elements, (0, None))
            except ValueError as error:
                raise file.unreadable(
                    "DatasetNotJson",
                    f"the file is not JSON: {error}",
                    file.uri,
                    "Correct the file.",
                    expected="an array of objects",
                ) from None
            if not number:
                return
            yield number, _object(value, file.place(number))


def _elements(stream: Any) -> Iterator[Any]:
    """Yields the elements of a JSON array with one in memory at a time. Raises ValueError for invalid JSON.

    All elements of a file together would take eleven times its size.
    """
    text = _Characters(stream)
    text.mark()
    text.at += 1
    number = 0
    while (follows := text.mark()) != "]":
        if number:
            if follows != ",":
                raise ValueError(
                    f"there is no comma after element {number}" if follows else "it ends unexpectedly"
                )
            text.at += 1
            text.mark()
        number += 1
        yield text.value(f"element {number}")
    text.at += 1
    if text.mark():
        raise ValueError("there is content after the array")


class _Characters:
    """JSON text that is read from a stream as needed. ``at`` is the position of the next character."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._text, self._whole = stream, "", False
        self._characters = codecs.getincrementaldecoder("utf-8-sig")()
        self._decoder = json.JSONDecoder()
        self.at = 0

    def mark(self) -> str:
        """Skips whitespace and returns the next character; '' at the end of the text."""
        while True:
            space = _SPACE.match(self._text, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self._text) or self._whole:
                return self._text[self.at : self.at + 1]
            self._more()

    def value(self, name: str) -> Any:
        """Parses the value that begins at the current position. ``name`` describes it in errors."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self.at)
                if self._whole or (
                    end < len(self._text) and self._text[end] not in ".eE"
                ):  # may continue a number
                    break
            except RecursionError:
                raise ValueError("it is nested too deeply") from None
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos + _WORD > len(self._text)
                if self._whole or not unfinished:
                    raise ValueError(f"{error.msg} in {name}") from None
            self._more()
        if r"\ud" in self._text[self.at : end].lower():
            _require_characters(value)
        self.at = end
        return value

    def _more(self) -> None:
        """Reads as much text again as is already unparsed, so that parsing a long value is retried few times."""
        data = self._stream.read(max(_CHUNK, len(self._text) - self.at))
        self._whole = not data
        self._text, self.at = self._text[self.at :] + self._characters.decode(data, self._whole), 0


def _parquet(file: DataFile) -> Rows:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file.path)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield number, {column: _own(value) for column, value in row.items()}
    except pyarrow.ArrowException as error:
        raise file.unreadable(
            "UnreadableFile",
            "the file is not complete Parquet data",
            f"{file.uri}: {error}"[:300],
            "Write and upload the file again.",
        ) from error


def _own(value: Any) -> Any:
    """Returns a column's value without keys whose value is null.

    In a columnar file every object has the keys of all rows' objects, and null stands for a missing key. Nulls in lists
    are kept, because they are values of the row.
    """
    if isinstance(value, dict):
        return {name: _own(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_own(each) for each in value]
    return value


def _array_record(file: DataFile) -> Rows:
    """Yields records with their numbers, from 1: JSON objects, or ``tf.train.Example`` with one text per column.

    In a ``tf.train.Example``, whose form is MaxText's, a text that is a JSON list (of messages) is read as that list.
    Raises ``StageError`` 65, for a file that is cut off possibly after the last record.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        reader = ArrayRecordReader(str(file.path), "readahead_buffer_size:0")
        count = reader.num_records()
        for start in range(0, count, _RECORDS):
            records = reader.read(list(range(start, min(start + _RECORDS, count))))
            for number, record in enumerate(records, start=start + 1):
                yield number, _record(record, file.place(number))
        reader.close()  # raises if the file is faulty
    except (RuntimeError, ValueError) as error:
        raise file.unreadable(
            "UnreadableFile",
            "the file is not complete ArrayRecord data",
            f"{file.uri}: {error}"[:300],
            "Write and upload the file again.",
        ) from error


def _record(record: bytes, place: RowLocation) -> Mapping[str, Any]:
    if record[:1] in (b"{", b"["):
        try:
            return _object(_loaded(record), place)
        except ValueError as error:
            raise place.mismatch(
                "the record is not JSON", "Write it again.", actual=str(error)[:200]
            ) from None
    from google.protobuf.message import DecodeError
    from maxtext.input_pipeline.protos.example_pb2 import Example

    example = Example()
    try:
        example.ParseFromString(record)
        return {name: _text(feature) for name, feature in example.features.feature.items()}
    except (DecodeError, UnicodeDecodeError) as error:
        raise place.mismatch(
            "the record is neither a JSON object nor a tf.train.Example of strings",
            "Write records as JSON objects, or columns as UTF-8 text.",
            actual=str(error)[:200],
        ) from None


def _text(feature: Any) -> Any:
    values = feature.bytes_list.value
    if len(values) != 1:
        return [value.decode() for value in values]
    text = values[0].decode()
    if text.startswith("[{"):
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            return json.loads(text)
    return text


def _text_lines(file: DataFile) -> Rows:
    """Reads every line that is not blank as a row with one column, ``text``."""
    with file.path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise _not_utf8(file.place(number), error) from None
            if text.strip():
                yield number, {"text": text}


def _not_json(place: RowLocation, what: str, *, actual: str = "") -> StageError:
    return StageError(
        ExitCode.BAD_DATA,
        "DatasetNotJson",
        f"the line is not JSON: {what}",
        where=str(place),
        actual=actual,
        expected="one JSON object per line",
        fix=f"Correct or remove this line. File: {place.file}",
    )


def _not_utf8(place: RowLocation, error: UnicodeDecodeError) -> StageError:
    return place.mismatch(
        "the line is not UTF-8", "Save the file as UTF-8.", actual=f"byte {error.object[error.start]:#04x}"
    )


def _object(value: object, place: RowLocation) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise place.mismatch(
            "the row is not an object",
            "Write every row as an object with named columns.",
            actual=type(value).__name__,
            expected="a JSON object",
        )
    return value


def _excerpt(text: str, position: int) -> str:
    start = max(0, position - 30)
    return ("…" if start else "") + text[start : position + 30].strip()


_READERS: Mapping[str, Callable[[DataFile], Rows]] = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".json": _json_document,
    ".parquet": _parquet,
    ".arrayrecord": _array_record,
    ".array_record": _array_record,
    ".txt": _text_lines,
}
SUFFIXES = tuple(_READERS)
