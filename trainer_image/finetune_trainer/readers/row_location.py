"""The location of a row, for messages: dataset, file and number."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.storage import name_of

#: Largest row of a file in bytes. Rows are held in memory whole, several times over.
MAX_ROW = 64 * 2**20
_SAVE = "Save the file as UTF-8."


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLocation:
    """The location of a row: the dataset's path in the spec, the file, and the row's number (a line number, from 1).

    Row 0 is the header of a table.
    """

    path: str
    file: str
    row: int
    one_of_many: bool = False
    """Whether the dataset has several files, so that messages must name the file."""
    number: int = 0
    """Number of the file in reading order, from 0."""

    def __str__(self) -> str:
        row = f"row {self.row}" if self.row else "the header"
        return f"{self.path}, {name_of(self.file)} {row}" if self.one_of_many else f"{self.path}, {row}"

    def mismatch(
        self,
        what: str,
        fix: str,
        *,
        actual: str = "",
        expected: str = "",
        reason: str = "DatasetSchemaMismatch",
    ) -> StageError:
        """Returns the error (``StageError`` 65) for a row that does not match its dataset's schema."""
        fix = f"{fix} File: {self.file}"
        return StageError(
            ExitCode.BAD_DATA, reason, what, where=str(self), actual=actual, expected=expected, fix=fix
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a dataset: its columns by name, and its location."""

    place: RowLocation
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A local data file and its names for messages. ``where`` is the field of the spec that names it."""

    dataset: str
    where: str
    uri: str
    path: Path
    number: int
    """Number in reading order, from 0."""
    one_of_many: bool
    separator: str | None = None
    """Text between rows or fields, for the kinds of files that have one; None for the usual."""
    ignored: frozenset[str] = frozenset()
    """Columns whose values need not be read."""

    def place(self, row: int) -> RowLocation:
        return RowLocation(
            path=self.dataset, file=self.uri, row=row, one_of_many=self.one_of_many, number=self.number
        )

    def decode(self, row: int, line: bytes) -> str:
        """Returns a line of the row as text. Raises ``StageError`` 65 if it is not text in UTF-8."""
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            actual = f"byte {line[error.start]:#04x}"
            raise self.place(row).mismatch("the row is not UTF-8", _SAVE, actual=actual) from None

    def unreadable(self, what: str, fix: str, *, actual: str = "", expected: str = "") -> StageError:
        """Returns the error (``StageError`` 65) for a file whose content does not match its suffix."""
        actual = f"{self.uri}: {actual}" if actual else self.uri
        return StageError(
            ExitCode.BAD_DATA, "UnreadableFile", what, where=self.where, actual=actual, expected=expected,
            fix=fix,
        )  # fmt: skip

    def too_large(self, row: int, fix: str = "Split the row, or remove it.") -> StageError:
        """Returns the error for a row that exceeds the largest size."""
        expected = f"at most {MAX_ROW // 2**20} MiB"
        return self.place(row).mismatch("the row is too large", fix, expected=expected)

    def has_nul(self, row: int) -> StageError:
        """Returns the error for a row that contains a NUL byte."""
        return self.place(row).mismatch("the row contains a NUL byte", _SAVE)

    def bad_separator(self, what: str, fix: str) -> StageError:
        """Returns the error (``StageError`` 64) for a separator that does not suit the file."""
        where, actual = f"{self.dataset}.separator", f"{json.dumps(self.separator)} for {self.uri}"
        return StageError(ExitCode.BAD_REQUEST, "UnknownSeparator", what, where=where, actual=actual, fix=fix)


def shown(text: str, limit: int = 60) -> str:
    """Returns the beginning of a text for messages, with characters that cannot be printed escaped."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text[:limit]
    ) + ("…" if len(text) > limit else "")
