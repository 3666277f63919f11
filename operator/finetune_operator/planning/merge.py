"""Merges built-in defaults, profile defaults and the job, in ascending priority. Plain JSON, never changed in place.

Profile locks need no layer of their own: a job that sets a locked path to another value is refused
(:mod:`.policy.job_checks`), so the lower layers determine the value of each locked path.
"""

from collections.abc import Mapping
from typing import Any

#: Mutually exclusive members by section. Each inner tuple is one alternative.
UNIONS: Mapping[str, tuple[tuple[tuple[str, ...], ...], ...]] = {
    "hyperparameters": (
        (("epochs",), ("steps",)),
        (("globalBatchSize",), ("perDeviceBatchSize",)),
        (("warmupRatio",), ("warmupSteps",)),
    ),
    "resources": ((("tpu",), ("accelerator", "topology")),),
}


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merges layers; later layers win. Maps merge by key, lists and scalars replace, union members drop the others."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _overlay(merged, layer, ())
    return merged


def _overlay(base: Mapping[str, Any], top: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    merged = dict(base)
    for group in UNIONS.get(".".join(path), ()):
        chosen = [member for member in group if any(top.get(name) is not None for name in member)]
        if chosen:
            for member in group:
                for name in member:
                    if member not in chosen:
                        merged.pop(name, None)
    for name, value in top.items():
        below = merged.get(name)
        if value is None:
            continue
        if isinstance(value, dict) and isinstance(below, dict):
            merged[name] = _overlay(below, value, (*path, name))
        else:
            merged[name] = value
    return merged


def lookup(document: Mapping[str, Any], path: str) -> Any:
    """Returns the value at a dotted path, or None if there is none."""
    value: Any = document
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
