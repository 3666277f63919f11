"""Decimals of a spec, and the rule that keeps them exact.

A decimal of a spec is a JSON number, so every reader holds it as a 64-bit floating-point number. What the user means
is the shortest decimal that reads back as that number: ``2e-5``, ``2.0e-5`` and ``0.00002`` are all 0.00002, and a
price of ``1.10`` is exactly 1.1. Up to 15 significant digits survive unchanged. The API server keeps ``1.0`` as
``1``, so both are written as the integer (:func:`canonical`) before a document is stored or hashed; prices and limits
are compared and shown as decimals (:func:`exact`).
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

#: The largest integer that survives every JSON reader.
SAFE_INTEGER_MAX: Final = 2**53 - 1


def canonical(value: Any, *, large_as_float: bool = True) -> Any:
    """Returns ``value``, plain JSON, with each number in one canonical form: an integer if it is whole.

    ``large_as_float``: whether an integer that not every reader holds becomes the float that such a reader holds.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, dict):
        return {key: canonical(item, large_as_float=large_as_float) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item, large_as_float=large_as_float) for item in value]
    if isinstance(value, int):
        return _as_float(value) if large_as_float and abs(value) > SAFE_INTEGER_MAX else value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= SAFE_INTEGER_MAX else value
    return canonical(dict(value), large_as_float=large_as_float) if isinstance(value, Mapping) else value


def exact(number: float) -> Decimal:
    """Returns the decimal that a number of a spec means: 1.1 for ``1.1``, not the nearest binary fraction."""
    return Decimal(str(canonical(number)))


def unquoted(text: str, *, whole: bool) -> str | None:
    """Returns the explanation for ``text`` that holds a number where a number is required; None if it holds none.

    ``whole``: an integer is required, and a fraction without quotes would be refused as well.
    """
    try:
        number = float(text)
    except ValueError:
        return None
    if not text.isascii() or not math.isfinite(number) or (whole and not number.is_integer()):
        return None
    return f'"{text}" is text; write {text.strip()} without quotes'


def _as_float(number: int) -> int | float:
    """Returns the float, because the API server writes 1e20 with all its digits."""
    try:
        return float(number)
    except OverflowError:
        return number


def decimal(value: float) -> str:
    """A number as the API holds it: ``1.234``, ``2e-05``."""
    return f"{value:.6g}"


def mebibytes(size: int) -> str:
    """As Kubernetes writes it, rounded up."""
    return f"{-(-size // 2**20)}Mi"
