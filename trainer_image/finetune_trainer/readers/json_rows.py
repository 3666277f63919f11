"""Reads JSON: one object per line, an array of rows, an object around one, or objects of several lines."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from finetune_trainer.readers.json_text import JsonStream, parse
from finetune_trainer.readers.known_names import known_name
from finetune_trainer.readers.opening import CHUNK, opened
from finetune_trainer.readers.row_location import MAX_ROW, DataFile, RowLocation, shown

#: Keys of an object around a list of rows, as other tools write them.
_AROUND = frozenset({
    "data", "dataset", "rows", "examples", "instances", "items", "records", "samples", "entries", "results",
    "questions", "train", "training", "test", "validation", "valid", "val", "dev", "eval",
})  # fmt: skip
#: Meanings of columns by which an object is a row itself.
_NEEDED = frozenset({"messages", "prompt", "completion", "chosen", "rejected", "text", "tools"})


def read_json(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows of a file with JSON, whatever its layout. Their numbers are those of lines, or of objects."""
    return _documents(file) if _is_document(file) else _lines(file)


def require_object(value: object, place: RowLocation) -> Mapping[str, Any]:
    """Returns the value, which must be an object. Raises ``StageError`` 65 for any other."""
    if isinstance(value, dict):
        return value
    raise place.mismatch(
        "the row is not an object",
        "Write every row as an object with named columns.",
        actual=type(value).__name__,
        expected="a JSON object",
    )


def _is_document(file: DataFile) -> bool:
    """Whether values extend over several lines, or the file is one value. Reads the first two lines."""
    with opened(file) as stream:
        lines = (line for line in iter(partial(stream.readline, CHUNK), b"") if not line.isspace())
        first = next(lines, b"")
        if first.lstrip()[:1] != b"{":
            return first.lstrip()[:1] == b"["
        if len(first) >= CHUNK:
            return True  # a long row or a whole document, both of which can be read as one
        try:
            parse(first.decode())
        except json.JSONDecodeError as error:
            # A line break within a text is never valid, so such a line is cut off.
            return error.msg == "Extra data" or (_is_unfinished(error) and not _is_in_text(error))
        except ValueError:
            return False
        return next(lines, None) is None


def _lines(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with opened(file) as stream:
        for number, line in enumerate(iter(partial(stream.readline, MAX_ROW), b""), start=1):
            if len(line) >= MAX_ROW:
                raise file.too_large(number)
            if line.isspace():
                continue
            try:
                value = parse(file.decode(number, line))
            except ValueError as error:
                what, actual = _fault(error)
                raise file.place(number).mismatch(
                    f"the line is not JSON: {what}",
                    "Correct or remove this line.",
                    actual=actual,
                    expected="one JSON object per line",
                    reason="DatasetNotJson",
                ) from None
            yield number, value if type(value) is dict else require_object(value, file.place(number))


def _fault(error: ValueError) -> tuple[str, str]:
    """Returns what is wrong with a line, and the text there."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error), ""
    what, at = f"{error.msg} at column {error.colno}", error.pos
    if _is_unfinished(error) or _is_in_text(error):
        at = len(error.doc.rstrip())
        what = f"it ends unexpectedly after column {at}"
    start = max(0, at - 30)
    return what, ("…" if start else "") + shown(error.doc[start : at + 30].strip())


def _is_unfinished(error: json.JSONDecodeError) -> bool:
    return error.pos >= len(error.doc.rstrip())


def _is_in_text(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Unterminated string")


def _documents(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    try:
        with opened(file) as stream:
            text = JsonStream(stream)
            key = _key_of_rows(file, text) if text.mark() == "{" else None
        with opened(file) as stream:
            text = JsonStream(stream)
            for number, value in enumerate(text.values(key), start=1):
                yield number, require_object(value, file.place(number))
    except ValueError as error:
        raise file.place(number + 1).mismatch(
            f"the file is not JSON: line {text.line}: {shown(str(error), 200)}",
            "Correct the file.",
            expected="one object per line, an array of objects, or an object with one list of them",
            reason="DatasetNotJson",
        ) from None


def _key_of_rows(file: DataFile, text: JsonStream) -> str | None:
    """Returns the key whose list contains the rows, for a file that is one object; otherwise None.

    Raises ``StageError`` 65 for an object that contains several such lists, or columns instead of rows.
    """
    names = []
    lists: dict[str, Mapping[str, Any]] = {}
    """The first row of each list of rows."""
    lengths = set()
    """Numbers of rows of columns; 0 for a value that is not a column."""
    for name in text.members():
        names.append(name)
        length = 0
        if text.mark() == "[":
            for length, value in enumerate(text.elements(), start=1):
                if length == 1 and isinstance(value, dict):
                    lists[name] = value
        else:
            value = text.value()
            # pandas writes a column as an object with row numbers as keys
            length = len(value) if isinstance(value, dict) and {"0", "1"} <= value.keys() else 0
        lengths.add(0 if name in lists else length)
    if text.mark():
        return None
    if len(lengths) == 1 and max(lengths) > 1:
        raise file.unreadable(
            "the file is one object of columns instead of rows",
            'Write one object per row (in pandas: to_json(path, orient="records", lines=True)).',
            actual=f"columns {shown(', '.join(names), 100)}",
        )
    known = {name: meaning for name in names if (meaning := known_name("column", name))}
    columns = [name for name in known if name.lower() not in {*_AROUND, "status"}]  # that of an API's answer
    is_row = any(known[name].way in _NEEDED for name in columns) or not lists.keys().isdisjoint(columns)
    if not lists or is_row or any({"role", "from"} & row.keys() for row in lists.values()):
        return None
    key, *others = lists
    if columns and key.lower() in _AROUND:
        raise file.unreadable(
            "the object around the rows has values that belong into rows",
            "Write them into every row, or remove them.",
            actual=shown(", ".join(columns), 100),
        )
    if others:
        raise file.unreadable(
            "the file is one object with several lists of rows",
            "Write the rows of each list to a file of its own.",
            actual=shown(", ".join(lists), 100),
            expected="one list",
        )
    return key if len(names) == 1 or key.lower() in _AROUND else None
