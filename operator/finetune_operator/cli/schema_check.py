"""Checks an object against a CRD's schema and rules. Each violation states the actual and the expected value."""

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import celpy
import jsonschema
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from finetune_operator.api import canonical, form, one_of, unknown_field, unquoted
from finetune_operator.api.crd import job_crd, profile_crd, root_schema
from finetune_operator.api.rules import RULES_KEY
from finetune_operator.cli.documents import Place
from finetune_operator.cli.violations import SchemaViolation, shown

type Schema = Mapping[str, Any]


def violations(
    kind: str, content: Mapping[str, Any], known: Sequence[SchemaViolation]
) -> list[SchemaViolation]:
    """Returns the ``known`` violations, then those of the CRD's schema and of its rules. ``content`` has no status."""
    schema = root_schema(job_crd() if kind == "FineTuneJob" else profile_crd())
    found = [*known, *check_schema(content, schema)]
    reported = {each.place for each in found}
    # A rule on a value of the wrong type or form would repeat the same error in a less helpful way.
    broken = check_rules(content, schema, sound=not found)
    return [*found, *(each for each in broken if each.place not in reported)]


def check_schema(content: Mapping[str, Any], schema: Schema) -> list[SchemaViolation]:
    """Returns missing and unknown fields, then violated keywords sorted by path."""
    return [*_members(content, schema, ()), *_keywords(content, schema)]


def check_rules(content: Mapping[str, Any], schema: Schema, *, sound: bool) -> list[SchemaViolation]:
    """Returns violated CEL rules, without transition rules.

    ``sound`` is whether the object matches the schema. If it does not, a rule that cannot be evaluated is no violation,
    since the schema violation is reported already.
    """
    # An integer beyond 64 bits is none in CEL, and the API server holds it as a decimal.
    return list(_violated(canonical(content), schema, (), sound=sound))


def _members(value: Any, schema: Schema, place: Place) -> Iterator[SchemaViolation]:
    """Yields missing and unknown fields.

    No keyword forbids unknown fields in a structural schema; the API server prunes them, and kubectl rejects them.
    """
    if isinstance(value, Mapping):
        missing = (name for name in schema.get("required", ()) if name not in value)
        yield from (SchemaViolation((*place, name), "required, but not set") for name in missing)
    if place == ("metadata",):  # Defined by Kubernetes, not by the CRD's schema.
        return
    for key, item, below in _children(value, schema):
        if below is None:
            at = (*place, key)
            yield SchemaViolation(at, unknown_field(at, item, tuple(schema["properties"])))
        else:
            yield from _members(item, below, (*place, key))


def _children(value: Any, schema: Schema) -> Iterator[tuple[str | int, Any, Schema | None]]:
    """Yields key, item and schema of each direct child of a value. The schema is None for an unknown field."""
    if isinstance(value, Mapping) and "properties" in schema:
        yield from ((str(key), item, schema["properties"].get(key)) for key, item in value.items())
    elif isinstance(value, Mapping) and "additionalProperties" in schema:
        yield from ((str(key), item, schema["additionalProperties"]) for key, item in value.items())
    elif isinstance(value, list) and "items" in schema:
        yield from ((index, item, schema["items"]) for index, item in enumerate(value))


def _keywords(content: Mapping[str, Any], schema: Schema) -> Iterator[SchemaViolation]:
    validator = _Validator(dict(schema))
    for error in sorted(
        validator.iter_errors(content), key=lambda e: [str(part) for part in e.absolute_path]
    ):
        place: Place = tuple(error.absolute_path)
        keyword = str(error.validator)
        if keyword != "required":  # Reported by _members, one by one.
            limit = error.message if keyword in _BOUNDS else error.validator_value
            yield SchemaViolation(place, *_explained(keyword, limit, error.instance))


def _bound(keyword: str) -> Callable[..., Iterator[jsonschema.ValidationError]]:
    """Returns a check of a bound that supports OpenAPI v3.0's flag ``exclusiveMinimum: true``.

    JSON Schema has a separate keyword with a number instead.
    """
    inclusive, exclusive, words = _BOUNDS[keyword]

    def check(
        validator: Any, limit: float, value: Any, schema: Schema
    ) -> Iterator[jsonschema.ValidationError]:
        flag = schema.get(f"exclusive{keyword.capitalize()}", False)
        if validator.is_type(value, "number") and not (exclusive if flag else inclusive)(value, limit):
            yield jsonschema.ValidationError(f"{words[flag]} {limit}")

    return check


_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool], tuple[str, str]]] = {
    "minimum": (operator.ge, operator.gt, ("must be at least", "must be above")),
    "maximum": (operator.le, operator.lt, ("may be at most", "must be below")),
}
_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {
        **{keyword: _bound(keyword) for keyword in _BOUNDS},
        "exclusiveMinimum": None,
        "exclusiveMaximum": None,
    },
)


def _explained(keyword: str, limit: Any, actual: Any) -> tuple[str, str]:
    """Returns message and fix for one violated keyword."""
    message, fix = "", ""
    match keyword:
        case "type" if (
            limit in ("integer", "number")
            and isinstance(actual, str)
            and (said := unquoted(actual, whole=limit == "integer"))
        ):
            message = said
        case "type":
            message, fix = f"must be {_article(limit)}, not {shown(actual)}", _type_fix(actual, limit)
        case "enum":
            message = f"unknown value {shown(actual)}{one_of(str(actual), limit)}"
        case "pattern":
            message = f"must be {form(limit)}, not {shown(actual)}"
            if actual.startswith("hf://") and "hf://models/" in message:
                fix = f"For a model or tokenizer, write hf://models/{actual.removeprefix('hf://')}."
        case "minimum" | "maximum":
            message = f"is {actual}, {limit}"
        case "minLength" | "minItems":
            message, fix = "must not be empty", "Leave the field out instead."
        case "maxLength":
            message = f"has {len(actual)} characters, may have at most {limit}"
        case _:  # maxItems and maxProperties: the remaining keywords that the CRDs use.
            message = f"has {len(actual)} entries, may have at most {limit}"
    return message, fix


def _type_fix(actual: Any, wanted: str) -> str:
    if wanted == "string" and isinstance(actual, int | float | bool):
        return "Write it in quotes."
    if wanted in ("integer", "number") and isinstance(actual, str):
        return f"Write {'a whole' if wanted == 'integer' else 'the'} number alone, without a unit."
    if wanted == "boolean" and isinstance(actual, str):
        return "Write it without quotes."
    if actual is None:
        return "Leave the field out, or give it a value."
    return ""


def _article(kind: str) -> str:
    return {"array": "a list", "integer": "an integer", "object": "an object"}.get(kind, f"a {kind}")


def _violated(value: Any, schema: Schema, place: Place, *, sound: bool) -> Iterator[SchemaViolation]:
    for rule in schema.get(RULES_KEY, ()):
        if "oldSelf" in rule["rule"]:
            continue
        try:
            holds = bool(_program(rule["rule"]).evaluate({"self": json_to_cel(value)}))
        except (CELEvalError, TypeError, ValueError, OverflowError):
            holds = not sound
        if not holds:
            yield SchemaViolation((*place, *rule.get("fieldPath", "").split(".")[1:]), rule["message"])
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
