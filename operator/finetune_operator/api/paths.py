"""Names of places in a spec, as users write them: ``hyperparameters.epochs``."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from finetune_operator.api.schema import structural_schema


@cache
def field_paths(model: type[BaseModel]) -> frozenset[str]:
    """Every place that ``model`` knows, objects and leaves: what a profile's ``locked`` may name.

    Nothing inside a list or a map: such a place has no one value that could be compared.
    """
    return frozenset(path for path, _ in _properties(structural_schema(model), ""))


@cache
def number_paths(model: type[BaseModel]) -> frozenset[str]:
    """Those that hold an integer or a decimal: what a profile's ``limits`` may name."""
    return frozenset(
        path
        for path, schema in _properties(structural_schema(model), "")
        if schema["type"] in ("integer", "number")
    )


def _properties(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, below in schema.get("properties", {}).items():
        yield f"{prefix}{name}", below
        yield from _properties(below, f"{prefix}{name}.")
