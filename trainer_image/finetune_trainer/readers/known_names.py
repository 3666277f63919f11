"""Names of columns and of keys of messages with a known meaning (``known_names.csv``), whatever their spelling.

A value under such a name is read, or refused by name; it is never passed over. Each row of the table has the trainers
and datasets that use the names; ``*`` in a name stands for any text. ``meaning`` is the API's name of the column to
which the names map, ``flag`` for values that say whether something is trained, or empty if nothing reads them; ``way``
is the column of the API to suggest where they are not read.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

#: Texts without content; CSV files write empty lists and objects in this way.
_NOTHING = frozenset({"", "[]", "{}"})
type Scope = Literal["column", "message"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownName:
    """The meaning of a name. ``what`` describes it in errors; ``order`` is its place among the names of the meaning."""

    meaning: str
    what: str
    way: str
    order: int


def known_name(scope: Scope, name: str) -> KnownName | None:
    """Returns the meaning of a column or key; None if it has none that is known. Case and separators do not count."""
    plain = _plain(name)
    table = _table()[scope]
    return table.get(plain) or next(
        (known for pattern, known in table.items() if "*" in pattern and fnmatchcase(plain, pattern)), None
    )


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, blank text, an empty list or object, or only such values."""
    values = [value]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            values.extend(value.values())
        elif isinstance(value, list | tuple):
            values.extend(value)
        elif value is not None and not (isinstance(value, str) and value.strip() in _NOTHING):
            return False
    return True


def _plain(name: str) -> str:
    return re.sub(r"[^\w*]|_", "", name).lower()


@cache
def _table() -> Mapping[str, Mapping[str, KnownName]]:
    table: dict[str, dict[str, KnownName]] = {"column": {}, "message": {}}
    for order, (row, name) in enumerate(_names()):
        table[row["scope"]][_plain(name)] = KnownName(
            meaning=row["meaning"], what=row["what"], way=row["way"], order=order
        )
    return table


def _names() -> Iterator[tuple[Mapping[str, str], str]]:
    text = files("finetune_trainer.readers").joinpath("known_names.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        for name in row["names"].split(";"):
            yield row, name
