"""Counts values that a dataset contains and nothing reads, and refuses those with a known meaning. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import UnreadValue
from finetune_trainer.data.advice import leave_out, quoted
from finetune_trainer.errors import StageError
from finetune_trainer.readers.known_names import MAX_NAME, Scope, is_empty, known_name
from finetune_trainer.readers.row_location import RowLocation, shown

#: Columns that say where a text comes from.
ABOUT = frozenset({
    "id", "uuid", "url", "source", "title", "date", "timestamp", "created", "added", "language", "lang", "dump",
    "license", "meta", "metadata", "domain", "dataset", "file", "file_name", "file_path", "path", "author", "subset",
    "split", "type",
})  # fmt: skip
#: Maximum number of names, and of characters of an example.
MOST_NAMES, _EXAMPLE = 50, 200
#: Characters of a value, and number of names, that are shown in an error.
_SHOWN, _SHOWN_NAMES = 60, 8


class _Count:
    """The values under one name."""

    __slots__ = ("example", "ignored", "number", "text")

    def __init__(self, value: Any, *, ignored: bool) -> None:
        self.number, self.text, self.ignored, self.example = 0, False, ignored, _excerpt(value, _EXAMPLE)


class UnreadValues:
    """Values of one dataset that nothing reads, by name, in the order of their first occurrence."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self._more = 0

    def add(self, name: str, value: Any, *, ignored: bool = False) -> None:
        """Counts a value, unless it is null or empty. Beyond ``MOST_NAMES`` names it is counted without its name."""
        name = name[:MAX_NAME]
        count = self._counts.get(name)
        if count is None and ignored and len(self._counts) < MOST_NAMES:
            # Counted even without a value: readers of files do not read such columns.
            count = self._counts[name] = _Count("", ignored=True)
        if value is None or value == "" or (not isinstance(value, int | float) and is_empty(value)):
            return
        if count is None:
            if len(self._counts) >= MOST_NAMES:
                self._more += 1
                return
            count = self._counts[name] = _Count(value, ignored=ignored)
        count.example = count.example or _excerpt(value, _EXAMPLE)
        count.number += 1
        count.text = count.text or _has_text(value)

    def found(self) -> tuple[list[UnreadValue], int]:
        """Returns what was counted, and the number of values under further names."""
        values = [
            UnreadValue(
                name=name, count=count.number, text=count.text, ignored=count.ignored, example=count.example
            )
            for name, count in self._counts.items()
        ]  # fmt: skip
        return values, self._more


def refused(
    names: Sequence[str],
    scope: Scope,
    where: str,
    values: Mapping[str, Any],
    place: RowLocation,
    *,
    mapped: str = "",
    prefix: str = "",
) -> StageError:
    """Returns the error for values under names with a known meaning that nothing reads.

    ``where`` is what has the values, for example a message; ``mapped`` is the way to have them read, if there is one;
    ``prefix`` precedes the names in ``columns.ignore``.
    """
    first = names[0]
    known = known_name(scope, first)
    listed = [prefix + name for name in names[:_SHOWN_NAMES]]
    others = f"; also {', '.join(map(quoted, listed[1:]))}" if len(names) > 1 else ""
    more = f", and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
    return place.mismatch(
        f'nothing reads "{shown(first, MAX_NAME)}" of {where}{f", {known.what}" if known else ""}{others}',
        f"{mapped or f'Remove {"them" if others else "it"} from the rows'}, or {leave_out(*listed)}{more}.",
        actual=_excerpt(values[first], _SHOWN),
        reason="ValueNotRead",
    )


def _has_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, str) or (isinstance(value, list) and any(map(_has_text, value)))


def _excerpt(value: Any, length: int) -> str:
    """Returns the beginning of a value as one line of printable text."""
    text = value[: 4 * length] if isinstance(value, str) else _json(value)
    text = "".join(character if character.isprintable() else " " for character in text[: 2 * length])
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__
