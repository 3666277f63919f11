"""Reads fields of plain Kubernetes objects. Nothing raises: a value of another type counts as missing.

The API server checks objects against their schemas, but optional fields may be missing at every level.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from finetune_operator.api.timestamps import parse

type Object = Mapping[str, Any]

_EMPTY: Object = {}


def section(found: Object, key: str) -> Object:
    """Returns an object's field that is an object itself; empty if it is missing."""
    value = found.get(key)
    return value if isinstance(value, dict) else _EMPTY


def items(found: Object, key: str) -> Sequence[Object]:
    """Returns the objects in a list; empty if it is missing."""
    value = found.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list | tuple) else ()


def texts(found: Object, key: str) -> tuple[str, ...]:
    """Returns the strings in a list; empty if it is missing."""
    value = found.get(key)
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list | tuple) else ()


def text(found: Object, key: str) -> str | None:
    """Returns a string; None if it is missing."""
    value = found.get(key)
    return value if isinstance(value, str) else None


def number(found: Object, key: str, default: int = 0) -> int:
    """Returns an integer; ``default`` if it is missing."""
    value = found.get(key)
    return int(value) if isinstance(value, int) else default


def time(found: Object, key: str) -> datetime | None:
    """Returns a timestamp; None if it is missing, empty or has no time zone."""
    value = found.get(key)
    if not isinstance(value, str) or not value:
        return None
    try:
        parsed = parse(value)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None
