"""Paths of fields in a spec, as users write them: ``hyperparameters.epochs``."""

from collections.abc import Iterator, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@cache
def field_paths(model: type[BaseModel]) -> frozenset[str]:
    """Returns the paths of all objects and scalars of ``model``, which a profile's ``locked`` may name.

    Paths inside a list or a map are left out: they have no single value that could be compared.
    """
    return frozenset(path for path, _ in _fields(model, ""))


@cache
def number_paths(model: type[BaseModel]) -> frozenset[str]:
    """Returns the paths of integers and decimals, which a profile's ``limits`` may name."""
    return frozenset(path for path, kind in _fields(model, "") if kind in (int, float))


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields path and type of each field."""
    for name, field in model.model_fields.items():
        path, kind = f"{prefix}{field.alias or name}", _without_none(field.annotation)
        yield path, kind
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{path}.")


def _without_none(annotation: Any) -> Any:
    """Returns the type inside ``T | None`` and ``Annotated[T, ...]``."""
    match get_origin(annotation):
        case origin if origin is Annotated:
            return _without_none(get_args(annotation)[0])
        case origin if origin in (Union, UnionType):
            (inner,) = (each for each in get_args(annotation) if each is not NoneType)
            return _without_none(inner)
    return annotation


def known_fields(model: type[BaseModel], location: Sequence[int | str]) -> tuple[str, ...]:
    """Returns the fields, as users write them, of the object at ``location`` below ``model``; () if there is no
    object."""
    return tuple(_fields_at(model, location))


def only_required_text(model: type[BaseModel], location: Sequence[int | str]) -> str | None:
    """Returns the field that alone is required of the object at ``location`` below ``model``, and is a text; None if
    there is none."""
    required = [(name, field) for name, field in _fields_at(model, location).items() if field.is_required()]
    (name, field) = required[0] if len(required) == 1 else ("", None)
    return name if field and _without_none(field.annotation) is str else None


def _fields_at(model: type[BaseModel], location: Sequence[int | str]) -> dict[str, FieldInfo]:
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for f in current.model_fields.values() if f.alias == part), None) if current else None
        current = model_within(field.annotation) if field else None
    return {field.alias or "": field for field in current.model_fields.values()} if current else {}


def model_within(annotation: Any) -> type[BaseModel] | None:
    """Returns the model inside ``M``, ``M | None``, ``tuple[M, ...] | None`` and their annotated forms, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = model_within(argument)
        if found:
            return found
    return None
