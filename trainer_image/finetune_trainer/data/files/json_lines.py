"""Reads JSON: one object per line, or one document that contains the rows."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from finetune_contract import ExitCode
from finetune_trainer.data.files.json_documents import read_document
from finetune_trainer.data.files.json_values import parse, require_object, shown
from finetune_trainer.data.files.opening import CHUNK, opened
from finetune_trainer.data.row_location import MAX_ROW, DataFile, RowLocation
from finetune_trainer.errors import StageError


def read_json(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows of a file with JSON, whatever its layout. Their numbers are those of lines, or of objects."""
    if _is_document(file):
        yield from read_document(file)
        return
    with opened(file) as stream:
        for number, line in enumerate(iter(partial(stream.readline, MAX_ROW), b""), start=1):
            if len(line) >= MAX_ROW:
                raise file.too_large(number)
            if not line.isspace():
                yield number, _row(line, file, number)


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


def _row(line: bytes, file: DataFile, number: int) -> Mapping[str, Any]:
    try:
        value = parse(line.decode())
    except UnicodeDecodeError as error:
        raise file.place(number).not_utf8(error) from None
    except json.JSONDecodeError as error:
        if _is_unfinished(error) or _is_in_text(error):
            end = len(error.doc.rstrip())
            what, position = f"it ends unexpectedly after column {end}", end
        else:
            what, position = f"{error.msg} at column {error.colno}", error.pos
        raise _not_json(file.place(number), what, actual=_excerpt(error.doc, position)) from None
    except ValueError as error:
        raise _not_json(file.place(number), str(error)) from None
    return value if type(value) is dict else require_object(value, file.place(number))


def _is_unfinished(error: json.JSONDecodeError) -> bool:
    return error.pos >= len(error.doc.rstrip())


def _is_in_text(error: json.JSONDecodeError) -> bool:
    return error.msg.startswith("Unterminated string")


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


def _excerpt(text: str, position: int) -> str:
    start = max(0, position - 30)
    return ("…" if start else "") + shown(text[start : position + 30].strip())
