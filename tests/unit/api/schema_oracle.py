"""Judges an object by a CRD's own schema and CEL rules, as the API server does: the oracle for the models.

Every check returns the places of what it refuses.
"""

import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import celpy
import jsonschema
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from finetune_operator.api import canonical
from tools.structural_schema import RULES_KEY

type Schema = Mapping[str, Any]
type Place = tuple[str | int, ...]


def check_schema(content: Mapping[str, Any], schema: Schema) -> list[Place]:
    """Missing and unknown fields, then violated keywords."""
    errors = _Validator(dict(schema)).iter_errors(content)
    # Missing fields are found one by one.
    keywords = [tuple(error.absolute_path) for error in errors if error.validator != "required"]
    return [*_members(content, schema, ()), *keywords]


def check_rules(content: Mapping[str, Any], schema: Schema, *, sound: bool) -> list[Place]:
    """Violated CEL rules, without transition rules.

    ``sound`` is whether the object matches the schema. If it does not, a rule that cannot be evaluated is no violation,
    since the schema violation is reported already.
    """
    # An integer beyond 64 bits is none in CEL, and the API server holds it as a decimal.
    return list(_violated(_without_nulls(canonical(content)), schema, (), sound=sound))


def _without_nulls(value: Any) -> Any:
    """The value without null fields, which the API server drops before it evaluates rules."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _members(value: Any, schema: Schema, place: Place) -> Iterator[Place]:
    """Missing and unknown fields.

    No keyword forbids unknown fields in a structural schema; the API server prunes them, and kubectl rejects them.
    """
    if isinstance(value, Mapping):
        yield from ((*place, name) for name in schema.get("required", ()) if name not in value)
    if place == ("metadata",):  # Defined by Kubernetes, not by the CRD's schema.
        return
    for key, item, below in _children(value, schema):
        if below is None:
            yield (*place, key)
        else:
            yield from _members(item, below, (*place, key))


def _children(value: Any, schema: Schema) -> Iterator[tuple[str | int, Any, Schema | None]]:
    """Key, item and schema of each direct child of a value. The schema is None for an unknown field."""
    if isinstance(value, Mapping) and "properties" in schema:
        yield from ((str(key), item, schema["properties"].get(key)) for key, item in value.items())
    elif isinstance(value, Mapping) and "additionalProperties" in schema:
        yield from ((str(key), item, schema["additionalProperties"]) for key, item in value.items())
    elif isinstance(value, list) and "items" in schema:
        yield from ((index, item, schema["items"]) for index, item in enumerate(value))


def _bound(keyword: str) -> Callable[..., Iterator[jsonschema.ValidationError]]:
    """A check of a bound that supports OpenAPI v3.0's flag ``exclusiveMinimum: true``.

    JSON Schema has a separate keyword with a number instead.
    """
    inclusive, exclusive = _BOUNDS[keyword]

    def check(
        validator: Any, limit: float, value: Any, schema: Schema
    ) -> Iterator[jsonschema.ValidationError]:
        flag = schema.get(f"exclusive{keyword.capitalize()}", False)
        if validator.is_type(value, "number") and not (exclusive if flag else inclusive)(value, limit):
            yield jsonschema.ValidationError(f"{keyword} {limit}")

    return check


def _pattern(
    validator: Any, pattern: str, value: Any, _schema: Schema
) -> Iterator[jsonschema.ValidationError]:
    """As Go reads a pattern: ``$`` is the end of the text only, not also a line's end before it."""
    if validator.is_type(value, "string") and not re.search(pattern.replace("$", r"\Z"), value):
        yield jsonschema.ValidationError(f"pattern {pattern}")


_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool]]] = {
    "minimum": (operator.ge, operator.gt),
    "maximum": (operator.le, operator.lt),
}
_Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {
        **{keyword: _bound(keyword) for keyword in _BOUNDS},
        "pattern": _pattern,
        "exclusiveMinimum": None,
        "exclusiveMaximum": None,
    },
)


def _violated(value: Any, schema: Schema, place: Place, *, sound: bool) -> Iterator[Place]:
    for rule in schema.get(RULES_KEY, ()):
        if "oldSelf" in rule["rule"]:
            continue
        try:
            holds = bool(_program(rule["rule"]).evaluate({"self": json_to_cel(value)}))
        except (CELEvalError, TypeError, ValueError, OverflowError):
            holds = not sound
        if not holds:
            yield (*place, *rule.get("fieldPath", "").split(".")[1:])
    for key, item, below in _children(value, schema):
        if below is not None:
            yield from _violated(item, below, (*place, key), sound=sound)


@cache
def _program(rule: str) -> celpy.Runner:
    environment = _environment()
    return environment.program(environment.compile(rule))


@cache
def _environment() -> celpy.Environment:
    limit = sys.getrecursionlimit()
    environment = celpy.Environment()
    sys.setrecursionlimit(limit)  # celpy raises the limit of the whole process; the CRDs' rules are shallow.
    return environment
