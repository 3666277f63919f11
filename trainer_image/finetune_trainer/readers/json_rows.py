"""Reads JSON: one object per line, an array of rows, an object around one, or objects of several lines."""

from collections.abc import Iterator, Mapping
from typing import Any

from finetune_trainer.readers.json_text import JsonStream
from finetune_trainer.readers.known_names import known_name
from finetune_trainer.readers.opening import opened
from finetune_trainer.readers.row_location import DataFile, RowLocation, shown

#: Keys of an object around a list of rows, as other tools write them.
_AROUND = frozenset({
    "data", "dataset", "rows", "examples", "instances", "items", "records", "samples", "entries", "results",
    "questions", "train", "training", "test", "validation", "valid", "val", "dev", "eval",
})  # fmt: skip
#: Meanings of columns by which an object is a row itself.
_NEEDED = frozenset({"messages", "prompt", "completion", "chosen", "rejected", "text", "tools"})


def read_json(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows of a file with JSON, whatever its layout. Their numbers are those of lines, or of elements."""
    try:
        with opened(file) as stream:
            text = JsonStream(stream)
            key = _key_of_rows(file, text) if text.mark() == "{" else None
        with opened(file) as stream:
            text = JsonStream(stream)
            for value in text.values(key):
                if type(value) is not dict:  # a row's place is made only where it is named
                    require_object(value, file.place(text.number))
                yield text.number, value
    except ValueError as error:
        raise file.place(text.number).mismatch(
            f"the file is not JSON: line {text.line}: {shown(str(error), 200)}",
            "Correct or remove this row.",
            actual=text.near,
            expected="one object per line, an array of objects, or an object with one list of them",
            reason="DatasetNotJson",
        ) from None


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
