"""The kinds of files that rows come in: file -> (row number from 1, row), in their order, one at a time.

Each raises ``StageError`` 65 for a row, or a file, that is not what its name says.
"""

import contextlib
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from finetune_contract import ExitCode
from finetune_trainer.data.place import DataFile, Place
from finetune_trainer.errors import StageError

type Rows = Iterator[tuple[int, Mapping[str, Any]]]
#: Records of an ArrayRecord file in memory at a time.
_RECORDS = 1024


def read_rows(file: DataFile) -> Rows:
    """The file's rows, each with its number."""
    return _READERS[suffix_of(file.uri)](file)


def suffix_of(name: str) -> str:
    """Which kind of file it is by name; '' for one that cannot be read."""
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def _json_lines(file: DataFile) -> Rows:
    with gzip.open(file.path, "rb") if file.uri.endswith(".gz") else file.path.open("rb") as stream:
        try:
            yield from _lines(stream, file)
        except (gzip.BadGzipFile, EOFError) as error:
            raise file.unreadable(
                "UnreadableFile",
                "the file is not whole gzip data",
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
            what = f"{error.msg} at column {error.colno}"
            raise _not_json(place, what, saw=_excerpt(error.doc, error.pos)) from None
        except ValueError as error:
            raise _not_json(place, str(error)) from None
        yield number, _object(value, place)


def _loaded(data: bytes) -> Any:
    """The JSON value. Raises UnicodeDecodeError for bytes that are no UTF-8, ValueError for what else is wrong."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if rb"\ud" in data.lower():  # escapes may leave half of a pair, which no tokenizer takes
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise ValueError(f"\\u{half:04x} is half of a character, its other half is missing") from None
    return value


def _json_document(file: DataFile) -> Rows:
    """A JSON array of rows; a file of JSON lines under this name is read as such."""
    data = file.path.read_bytes()
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from _lines(io.BytesIO(data), file)
        return
    try:
        values = _loaded(data)
    except ValueError as error:
        raise file.unreadable(
            "DatasetNotJson",
            f"the file is not JSON: {error}",
            file.uri,
            "Mend the file.",
            expected="an array of objects",
        ) from None
    for number, value in enumerate(values, start=1):
        yield number, _object(value, file.place(number))


def _parquet(file: DataFile) -> Rows:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file.path)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                number += 1
                yield number, value
    except pyarrow.ArrowException as error:
        raise file.unreadable(
            "UnreadableFile",
            "the file is not whole Parquet data",
            f"{file.uri}: {error}"[:300],
            "Write and upload the file again.",
        ) from error


def _array_record(file: DataFile) -> Rows:
    """Records that are JSON objects, or ``tf.train.Example`` with one text for each column, as MaxText reads them. A
    text that holds a JSON list (of messages) is taken as that list."""
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        reader = ArrayRecordReader(str(file.path), "readahead_buffer_size:0")
        count = reader.num_records()
        for start in range(0, count, _RECORDS):
            records = reader.read(list(range(start, min(start + _RECORDS, count))))
            for number, record in enumerate(records, start=start + 1):
                yield number, _record(record, file.place(number))
        reader.close()  # says what was wrong with the file
    except (RuntimeError, ValueError) as error:
        raise file.unreadable(
            "UnreadableFile",
            "the file is not whole ArrayRecord data",
            f"{file.uri}: {error}"[:300],
            "Write and upload the file again.",
        ) from error


def _record(record: bytes, place: Place) -> Mapping[str, Any]:
    if record[:1] in (b"{", b"["):
        try:
            return _object(_loaded(record), place)
        except ValueError as error:
            raise place.mismatch("the record is not JSON", "Write it again.", saw=str(error)[:200]) from None
    from google.protobuf.message import DecodeError
    from maxtext.input_pipeline.protos.example_pb2 import Example

    example = Example()
    try:
        example.ParseFromString(record)
        return {name: _text(feature) for name, feature in example.features.feature.items()}
    except (DecodeError, UnicodeDecodeError) as error:
        raise place.mismatch(
            "the record is neither a JSON object nor a tf.train.Example of texts",
            "Write records as JSON objects, or columns as UTF-8 text.",
            saw=str(error)[:200],
        ) from None


def _text(feature: Any) -> Any:
    values = feature.bytes_list.value
    if len(values) != 1:
        return [value.decode() for value in values]
    text = values[0].decode()
    if text.startswith("[{"):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
    return text


def _text_lines(file: DataFile) -> Rows:
    """Every line that is not blank is a row with one column, ``text``."""
    with file.path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise _not_utf8(file.place(number), error) from None
            if text.strip():
                yield number, {"text": text}


def _not_json(place: Place, what: str, *, saw: str = "") -> StageError:
    return StageError(
        ExitCode.BAD_DATA,
        "DatasetNotJson",
        f"the line is not JSON: {what}",
        where=str(place),
        saw=saw,
        expected="one JSON object per line",
        fix=f"Mend or remove this line. File: {place.file}",
    )


def _not_utf8(place: Place, error: UnicodeDecodeError) -> StageError:
    return place.mismatch(
        "the line is not UTF-8", "Save the file as UTF-8.", saw=f"byte {error.object[error.start]:#04x}"
    )


def _object(value: object, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise place.mismatch(
            "the row is no object",
            "Write every row as an object with named columns.",
            saw=type(value).__name__,
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
