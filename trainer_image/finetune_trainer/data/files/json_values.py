"""Parses single JSON values strictly: no duplicate keys, no unpaired surrogates, bounded nesting. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from finetune_trainer.data.row_location import RowLocation

#: Largest depth of nested lists and objects. Templates and libraries process values recursively.
MAX_DEPTH = 100
TOO_DEEP = f"it is nested too deeply, more than {MAX_DEPTH} levels"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shown(json.dumps(twice), 60)} occurs twice in one object")
    return made


DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates)


def parse(text: str) -> Any:
    """Parses a JSON value. Raises JSONDecodeError for a text that is not JSON, ValueError for all other faults."""
    try:
        value = DECODER.decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    require_plain(value, text)
    return value


def require_plain(value: Any, text: str) -> None:
    """Raises ValueError if a value contains an unpaired surrogate or is nested too deeply. ``text`` is its JSON."""
    if (r"\ud" in text or r"\uD" in text) and (half := half_character(value)):
        raise ValueError(f"{half} is a lone surrogate")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        require_depth(value)


def require_depth(value: Any) -> None:
    """Raises ValueError if lists and objects are nested more than ``MAX_DEPTH`` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for each in level
            if isinstance(each, (list, dict))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def half_character(value: Any) -> str:
    """Returns the first unpaired surrogate in a JSON value as an escape; '' if there is none.

    Escapes in JSON can encode unpaired surrogates, which no tokenizer accepts.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x}"
    return ""


def require_object(value: object, place: RowLocation) -> Mapping[str, Any]:
    """Returns the value, which must be an object. Raises ``StageError`` 65 for any other."""
    if not isinstance(value, dict):
        raise place.mismatch(
            "the row is not an object",
            "Write every row as an object with named columns.",
            actual=type(value).__name__,
            expected="a JSON object",
        )
    return value


def shown(text: str, limit: int = 60) -> str:
    """Returns the beginning of a text for messages, with characters that cannot be printed escaped."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text[:limit]
    ) + ("…" if len(text) > limit else "")
