"""Groups rows that are tokenized together."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: Maximum characters of a group's texts. Tokenizer output takes about 300 bytes per token until converted to arrays.
_CHARACTERS = 4 * 2**20


def tokenize_batches[Row](rows: Iterable[Row], most: int, value: Callable[[Row], Any]) -> Iterator[list[Row]]:
    """Yields groups of up to ``most`` rows, fewer if the texts in their ``value`` are long."""
    group: list[Row] = []
    held = 0
    for row in rows:
        size = characters(value(row))
        if group and (len(group) == most or held + size > _CHARACTERS):
            yield group
            group, held = [], 0
        group.append(row)
        held += size
    if group:
        yield group


def characters(value: Any) -> int:
    """Returns the number of characters of the texts in a value."""
    # Rows are JSON: the concrete types are tested several times as fast as Mapping and Sequence.
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(characters, value.values()))
    return sum(map(characters, value)) if isinstance(value, list | tuple) else 0
