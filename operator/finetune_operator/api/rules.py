"""Rules between fields, each written twice: as CEL for the API server and as Python for stored objects.

Tests ensure that both forms agree. Only core CEL is used (no Kubernetes extension libraries), so that they evaluate
the text of the CRD without an API server.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRule:
    """``cel`` and ``holds`` express the same rule on a value; ``message`` says how to fix a violation."""

    cel: str
    message: str
    holds: Callable[[Any], bool] | None
    """None for a transition rule (one that names ``oldSelf``), since only the API server has the old object."""
    at: tuple[str, ...] = ()
    """Path below the value that an error names; empty for the value itself."""


def exactly_one(*names: str) -> ValidationRule:
    """Exactly one member of a union is set. ``names`` as users write them."""
    listed = _listed(names)
    return ValidationRule(
        cel=f"{_count(names)} == 1",
        message=f"exactly one of {listed} must be set: keep the intended one",
        holds=lambda value: _set_members(value, names) == 1,
    )


def at_most_one(*names: str) -> ValidationRule:
    """At most one of the members is set."""
    return ValidationRule(
        cel=f"{_count(names)} <= 1",
        message=f"at most one of {_listed(names)} may be set: remove the others",
        holds=lambda value: _set_members(value, names) <= 1,
    )


def all_or_none(*names: str) -> ValidationRule:
    """All of the members are set, or none."""
    first, *others = names
    return ValidationRule(
        cel=" && ".join(f"has(self.{first}) == has(self.{other})" for other in others),
        message=f"{_listed(names, 'and')} belong together: set both or neither",
        holds=lambda value: _set_members(value, names) in (0, len(names)),
    )


def immutable(name: str) -> ValidationRule:
    """A field that decides the result is neither changed, nor added, nor removed after creation."""
    return ValidationRule(
        cel=(
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
        ),
        message=f"{name} cannot be changed, because it decides the result: create a job of another name",
        holds=None,
    )


def _count(names: Iterable[str]) -> str:
    return " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)


def _set_members(value: Any, names: Iterable[str]) -> int:
    """Returns the number of members, named as users write them, that a model instance has set."""
    attributes = _attributes(value.__class__)
    return sum(getattr(value, attributes[name]) is not None for name in names)


@cache
def _attributes(model: type[BaseModel]) -> Mapping[str, str]:
    """Returns the names of a model's attributes by the names that users write."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _listed(names: tuple[str, ...], word: str = "or") -> str:
    *head, last = names
    return f"{', '.join(head)} {word} {last}"
