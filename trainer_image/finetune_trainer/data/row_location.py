"""Where a row stands, for messages: dataset, file and number."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.storage import name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLocation:
    """Where a row stands: the dataset's path in the spec, the file, and the row (a line of the file, from 1)."""

    path: str
    file: str
    row: int
    one_of_many: bool = False
    """Whether the dataset has several files, so that a row number alone says nothing."""
    number: int = 0
    """Of the file, in the order of reading, from 0."""

    def __str__(self) -> str:
        return (
            f"{self.path}, {name_of(self.file)} row {self.row}"
            if self.one_of_many
            else f"{self.path}, row {self.row}"
        )

    def mismatch(self, what: str, fix: str, *, saw: str = "", expected: str = "") -> StageError:
        """A row that is not what a dataset may hold."""
        return StageError(
            ExitCode.BAD_DATA,
            "DatasetSchemaMismatch",
            what,
            where=str(self),
            saw=saw,
            expected=expected,
            fix=f"{fix} File: {self.file}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    place: RowLocation
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file on this machine, and what to call it. ``where`` is the field of the spec that names it."""

    dataset: str
    where: str
    uri: str
    path: Path
    number: int
    """In the order of reading, from 0."""
    one_of_many: bool

    def place(self, row: int) -> RowLocation:
        return RowLocation(
            path=self.dataset, file=self.uri, row=row, one_of_many=self.one_of_many, number=self.number
        )

    def unreadable(self, reason: str, what: str, saw: str, fix: str, *, expected: str = "") -> StageError:
        """The file as a whole is not what its name says."""
        return StageError(
            ExitCode.BAD_DATA, reason, what, where=self.where, saw=saw, expected=expected, fix=fix
        )
