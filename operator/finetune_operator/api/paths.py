"""Paths of fields in a spec, as users write them: ``hyperparameters.epochs``."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from finetune_operator.api.schema import structural_schema


@cache
def field_paths(model: type[BaseModel]) -> frozenset[str]:
    """Returns the paths of all objects and scalars of ``model``, which a profile's ``locked`` may name.

    Paths inside a list or a map are left out: they have no single value that could be compared.
    """
    return frozenset(path for path, _ in _properties(structural_schema(model), ""))


@cache
def number_paths(model: type[BaseModel]) -> frozenset[str]:
    """Returns the paths of integers and decimals, which a profile's ``limits`` may name."""
    return frozenset(
        path
        for path, schema in _properties(structural_schema(model), "")
        if schema["type"] in ("integer", "number")
    )


def _properties(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, below in schema.get("properties", {}).items():
        yield f"{prefix}{name}", below
        yield from _properties(below, f"{prefix}{name}.")
