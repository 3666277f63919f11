"""Names of places in a spec, as users write them: ``datasets.train[0].weight``."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from finetune_operator.api.parsing import model_within


def set_paths(spec: BaseModel) -> tuple[str, ...]:
    """Every leaf that the user set, in the order of the API.

    A leaf is a scalar, a map, a list of scalars, or an object without members (``lora: {}``).
    """
    return tuple(_set_paths(spec, ""))


def field_paths(model: type[BaseModel]) -> frozenset[str]:
    """Every place that ``model`` knows, objects and leaves, list items without their index
    (``datasets.train.weight``): what a profile's ``limits`` and ``locked`` may name."""
    return frozenset(_field_paths(model, ""))


def _set_paths(value: BaseModel, prefix: str) -> Iterator[str]:
    for name, field in type(value).model_fields.items():
        item = getattr(value, name)
        if name in value.model_fields_set and item is not None:
            yield from _below(item, f"{prefix}{field.alias}")


def _below(item: Any, path: str) -> Iterator[str]:
    match item:
        case BaseModel() if item.model_fields_set:
            yield from _set_paths(item, f"{path}.")
        case tuple() if item and isinstance(item[0], BaseModel):
            for index, entry in enumerate(item):
                yield from _below(entry, f"{path}[{index}]")
        case _:
            yield path


def _field_paths(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        yield path
        inner = model_within(field.annotation)
        if inner:
            yield from _field_paths(inner, f"{path}.")
