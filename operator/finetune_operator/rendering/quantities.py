"""Kubernetes quantities."""

import re
from decimal import Decimal

_SUFFIXES = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m"), start=-3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(
    r"\+?([0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})([numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]{1,3})"
)


def exact(value: object) -> Decimal | None:
    """Returns a quantity without its unit: 1000 for ``1k``. None if the value is none, or negative."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    amount, suffix = match.groups()
    exponent = suffix[1:] if suffix[:1] in ("e", "E") and suffix not in ("E", "Ei") else None
    return Decimal(amount).scaleb(int(exponent)) if exponent else Decimal(amount) * _SUFFIXES[suffix]


def number(quantity: str) -> float:
    """Returns a quantity that is valid by its schema without its unit."""
    found = exact(quantity)
    assert found is not None, "the schema admits quantities only"
    return float(found)


def gib(quantity: str) -> float:
    """Returns a quantity in GiB: 16.0 for ``16Gi``."""
    return number(quantity) / 2**30
