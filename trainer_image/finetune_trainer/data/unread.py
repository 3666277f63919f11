"""Counts values that a dataset contains and nothing reads, and refuses those with a known meaning. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(slots=True, kw_only=True)
class _Count:
    name: str
    ignored: bool
    count: int = 0
    text: bool = False
    example: str = ""


class UnreadValues:
    """Values of one dataset that nothing reads, by name, in the order of their first occurrence."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self._more = 0

    def add(self, name: str, value: Any, *, ignored: bool = False) -> None:
        """Counts a value, unless it is null or empty. Beyond ``MOST_NAMES`` names it is counted without its name."""
        name = name[:MAX_NAME]
        says = isinstance(value, int | float) or not is_empty(value)
        count = self._counts.get(name)
        if count is None:
            # One that is ignored counts even without a value: readers of files do not read such columns.
            if len(self._counts) >= MOST_NAMES or not (says or ignored):
                self._more += says
                return
            count = self._counts[name] = _Count(name=name, ignored=ignored)
        if says:
            count.example = count.example or _excerpt(value, _EXAMPLE)
            count.count += 1
            count.text = count.text or _has_text(value)

    def found(self) -> tuple[list[UnreadValue], int]:
        """Returns what was counted, and the number of values under further names."""
        return [UnreadValue(**asdict(count)) for count in self._counts.values()], self._more


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
    text = (
        value[: 4 * length] if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    )
    text = "".join(character if character.isprintable() else " " for character in text[: 2 * length])
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def characters(value: Any) -> int:
    """Returns how many characters the texts in a JSON value have, keys excluded."""
    count, values = 0, [value]
    while values:
        value = values.pop()
        if isinstance(value, str):
            count += len(value)
        # Rows are JSON: the concrete types are tested several times as fast as Mapping and Sequence.
        elif isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list | tuple):
            values.extend(value)
    return count
