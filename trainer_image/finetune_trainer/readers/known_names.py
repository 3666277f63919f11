"""Names of columns and of keys of messages with a known meaning (``known_names.csv``), whatever their spelling.

A value under such a name is read, or refused by name; it is never passed over. Each row of the table has the trainers
and datasets that use the names; ``*`` in a name stands for any text. ``meaning`` is the API's name of the column to
which the names map, ``flag`` for values that say whether something is trained, or empty if nothing reads them; ``way``
is the column of the API to suggest where they are not read.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal

#: Texts without content; CSV files write empty lists and objects in this way.
_NOTHING = frozenset({"", "[]", "{}"})
#: Values of labels and flags; CSV files have them as text.
_LABELS: Mapping[object, bool] = {
    True: True, False: False, "true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False,
}  # fmt: skip
#: Longest name with a meaning in characters. Longer ones are counted and shown as far as this.
MAX_NAME = 100
#: Number of names, and of sets of names, that are kept, and of characters of a set.
_MOST_NAMES, _MOST_SETS, _LONGEST_SET = 2**14, 512, 4096
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
    return None if len(name) > MAX_NAME else _known_name(scope, name)


@lru_cache(_MOST_NAMES)
def _known_name(scope: Scope, name: str) -> KnownName | None:
    plain = _plain(name)
    table = _table()[scope]
    return table.get(plain) or next(
        (known for pattern, known in table.items() if "*" in pattern and fnmatchcase(plain, pattern)), None
    )


def by_names[T](derive: Callable[[tuple[str, ...]], T]) -> Callable[[tuple[str, ...]], T]:
    """Returns ``derive`` with a cache: rows of one kind have the same names. Of long sets only the last is kept."""
    kept: dict[tuple[str, ...], T] = {}
    last = lru_cache(1)(derive)

    def derived(names: tuple[str, ...]) -> T:
        if names in kept:
            return kept[names]
        if sum(map(len, names)) >= _LONGEST_SET:
            return last(names)
        if len(kept) >= _MOST_SETS:
            kept.clear()
        return kept.setdefault(names, derive(names))

    return derived


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


def as_label(value: Any) -> bool | None:
    """Returns what a value says that is true or false, 1 or 0, or the same as text; None for any other value."""
    value = value.strip().lower() if isinstance(value, str) else value
    return _LABELS.get(value) if isinstance(value, str | int | float) else None


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
