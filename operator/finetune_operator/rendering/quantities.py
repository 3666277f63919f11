"""Kubernetes quantities."""

import re

_UNITS = {
    "": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def number(quantity: str) -> float:
    """Returns the quantity without its unit: 1000 for ``1k``. ``quantity`` is valid by its schema."""
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", quantity)
    assert match is not None, "the schema admits quantities only"
    return float(match[1]) * _UNITS[match[2]]


def gib(quantity: str) -> float:
    """Returns a quantity in GiB: 16.0 for ``16Gi``."""
    return number(quantity) / 2**30
