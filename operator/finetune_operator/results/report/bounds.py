"""Bounds what a report shows of a record: tenants write records, and a file of them may be one text."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

#: The largest integer that is shown. Records have smaller ones, unless they are forged.
_MOST = 2**63 - 1


def bounded[T](value: T, *, text: int = 1024, items: int = 32) -> T:
    """Returns a record, list or text with at most ``text`` characters in each text and ``items`` entries in each list.

    A text that is cut ends in ``…``; integers are limited to 63 bits.
    """
    found: Any = value
    match found:
        case str():
            found = found if len(found) <= text else f"{found[: text - 1]}…"
        case bool():
            pass
        case int():
            found = max(-_MOST, min(found, _MOST))
        case BaseModel():
            fields = {name: bounded(each, text=text, items=items) for name, each in found}
            found = found.model_copy(update=fields)
        case Mapping():
            some = list(found.items())[:items]
            found = {bounded(key, text=text): bounded(each, text=text, items=items) for key, each in some}
        case list() | tuple():
            found = type(found)([bounded(each, text=text, items=items) for each in found[:items]])
    return found  # type: ignore[no-any-return]
