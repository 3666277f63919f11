"""Reads fields of plain Kubernetes objects. Nothing raises: a value of another type counts as missing.

The API server checks objects against their schemas, but optional fields may be missing at every level. Tenants decide
what their objects contain, so texts and lists are cut.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from finetune_operator.api.timestamps import parse
from finetune_operator.objects import Object

_EMPTY: Object = {}
#: Maximum number of characters of a text, of a container's message as kubelets cut it, and of a condition's.
_TEXT, _MESSAGE, CONDITION_MESSAGE = 1024, 4096, 32_768
#: Maximum number of elements of a list.
_ITEMS = 32


def section(found: Object, key: str) -> Object:
    """Returns an object's field that is an object itself; empty if it is missing."""
    value = found.get(key)
    return value if isinstance(value, dict) else _EMPTY


def items(found: Object, key: str, **having: object) -> Sequence[Object]:
    """Returns the first objects in a list, of those that have these values; empty if it is missing."""
    value = found.get(key)
    if not isinstance(value, list | tuple):
        return ()
    objects = (item for item in value if isinstance(item, dict))
    wanted = (item for item in objects if all(item.get(name) == having[name] for name in having))
    return list(islice(wanted, _ITEMS))


def texts(found: Object, key: str) -> tuple[str, ...]:
    """Returns the first strings in a list; empty if it is missing."""
    value = found.get(key)
    if not isinstance(value, list | tuple):
        return ()
    return tuple(each[:_TEXT] for each in islice(value, _ITEMS) if isinstance(each, str))


def text(found: Object, key: str, most: int = _TEXT) -> str | None:
    """Returns a string, cut if it is long; None if it is missing."""
    value = found.get(key)
    return value[:most] if isinstance(value, str) else None


def message(found: Object, most: int = _MESSAGE) -> str | None:
    """Returns the message of a condition, container or Event, cut if it is long; None if it is missing."""
    return text(found, "message", most)


def number(found: Object, key: str, default: int = 0) -> int:
    """Returns an integer; ``default`` if it is missing."""
    value = found.get(key)
    return int(value) if isinstance(value, int) else default


def amount(found: Object, key: str) -> float | None:
    """Returns a number, which may be written as text; None if it is missing or not finite."""
    value = found.get(key)
    try:
        read = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
    return read if read is not None and math.isfinite(read) else None


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
