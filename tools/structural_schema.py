"""Structural schemas for CRDs from pydantic models.

The API server accepts a narrow dialect of OpenAPI v3: no references, no ``null`` alternatives, no titles, one type
per place, closed by pruning instead of ``additionalProperties: false``. ``model_json_schema`` states the same
facts in plain JSON Schema; this module rewrites them and refuses every keyword that it does not know. Docstrings below
fields, which the interpreter does not keep, become descriptions; those below an enum's members become part of the
description of each field that holds the enum.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from finetune_operator.api.common import INT32_MAX, ApiModel, DistinctKeys, RuleCheck
from finetune_operator.api.rules import ValidationRule

type Schema = dict[str, Any]

#: Keyword that lists the rules.
RULES_KEY = "x-kubernetes-validations"

#: Keywords that mean the same in both dialects, in the order in which they are written.
_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    RULES_KEY,
)
#: Keyword of an enum with a line for each value; the lines move into the description of the field.
_VALUES = "x-values"
#: Keywords without a meaning for the API server. Defaults belong to the merge, see the package's docstring.
_DROPPED = ("title", "default", _VALUES)


class UnsupportedSchemaError(ValueError):
    """A model uses something that a structural schema cannot express."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """Returns the schema of ``model`` in a CRD's dialect. Raises UnsupportedSchemaError, which names the place."""
    source = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_WithDescriptions)
    definitions = source.pop("$defs", {})
    return _rewrite(source, definitions, model.__name__)


class _WithDescriptions(GenerateJsonSchema):
    """Adds its rules and the descriptions of its fields to each model, and those of its values to each enum."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described, model = super().model_schema(schema), schema["cls"]
        if rules := getattr(model, "rules", ()):
            described[RULES_KEY] = rule_documents(rules)
        for name, text in field_descriptions(model).items():
            described["properties"][model.model_fields[name].alias or name]["description"] = text
        return described

    def function_after_schema(self, schema: core_schema.AfterValidatorFunctionSchema) -> JsonSchemaValue:
        described = super().function_after_schema(schema)
        match schema["function"]["function"]:
            case RuleCheck(rules=rules):
                described[RULES_KEY] = rule_documents(rules)
            case DistinctKeys(key=key):
                described |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [to_camel(key)]}
        return described

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        values = value_descriptions(schema["cls"])
        return {
            **super().enum_schema(schema),
            _VALUES: [f"- {value}: {text}" for value, text in values.items()],
        }


def value_descriptions(enum: type[Enum]) -> dict[str, str]:
    """Returns the docstrings below the members of ``enum`` by the members' values, without those that have none."""
    docstrings = docstrings_below(enum)
    return {member.value: docstrings[member.name] for member in enum if member.name in docstrings}


def rule_documents(rules: Iterable[ValidationRule]) -> list[dict[str, str]]:
    """Returns the entries for ``x-kubernetes-validations``."""
    return [
        {"rule": rule.cel, "message": rule.message}
        | ({"fieldPath": "." + ".".join(rule.at)} if rule.at else {})
        for rule in rules
    ]


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Returns the docstrings below the fields of a model of the API, by the fields' names."""
    return {
        name: text
        for owner in reversed(model.__mro__)
        if issubclass(owner, ApiModel)
        for name, text in docstrings_below(owner).items()
        if name in model.model_fields
    }


def _rewrite(source: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    schema = _resolve(source, definitions, path)
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if schema.get("additionalProperties") is False:
        del schema["additionalProperties"]
    _bound_map_keys(schema, path)
    if "type" not in schema:
        raise UnsupportedSchemaError(f"{path}: has no single type")
    if schema["type"] == "integer":
        schema["format"] = "int32" if schema.get("maximum", INT32_MAX + 1) <= INT32_MAX else "int64"
    _bound_exclusively(schema)
    if "description" in schema:
        lines = [" ".join(schema["description"].split())]
        if values := _values(schema, definitions, path):
            lines += ["Possible values:", *values]
        schema["description"] = "\n".join(lines)
    if "properties" in schema:
        schema["properties"] = {
            name: _rewrite(value, definitions, f"{path}.{name}")
            for name, value in schema["properties"].items()
        }
    for below in ("items", "additionalProperties"):
        if below in schema:
            schema[below] = _rewrite(schema[below], definitions, f"{path}.{below}")
            if "enum" in schema[below]:  # the description of the field lists the values
                schema[below].pop("description", None)
    unknown = schema.keys() - set(_KEPT) - set(_DROPPED)
    if unknown:
        raise UnsupportedSchemaError(
            f"{path}: {', '.join(sorted(unknown))} cannot be expressed in a structural schema"
        )
    return {keyword: schema[keyword] for keyword in _KEPT if keyword in schema}


def _values(schema: Schema, definitions: Mapping[str, Any], path: str) -> list[str]:
    """Returns a line for each value of the enum that the place itself, its items or its map's values hold."""
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), Mapping):
            return _values(_resolve(schema[below], definitions, path), definitions, path)
    values: list[str] = schema.get(_VALUES, [])
    return values


def _resolve(source: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    """``source`` without references and without the null of an optional field; keywords nearer to the field win."""
    schema = dict(source)
    while True:
        if "$ref" in schema:
            target = definitions[schema.pop("$ref").removeprefix("#/$defs/")]
        elif "anyOf" in schema:
            alternatives = [option for option in schema.pop("anyOf") if option.get("type") != "null"]
            if len(alternatives) != 1:
                raise UnsupportedSchemaError(
                    f"{path}: {len(alternatives)} types in one place; make it a union of members"
                )
            (target,) = alternatives
        else:
            return schema
        rules = [*target.get(RULES_KEY, ()), *schema.get(RULES_KEY, ())]
        schema = {**target, **schema, **({RULES_KEY: rules} if rules else {})}


def _bound_exclusively(schema: Schema) -> None:
    """OpenAPI v3.0 says by a flag beside the bound what JSON Schema says by a keyword of its own."""
    for bound in ("minimum", "maximum"):
        keyword = f"exclusive{bound.capitalize()}"
        if keyword in schema:
            schema[bound], schema[keyword] = schema[keyword], True


def _bound_map_keys(schema: Schema, path: str) -> None:
    """A structural schema says nothing of a map's keys, so their bound becomes a rule."""
    if schema.get("type") != "object" or not isinstance(schema.get("additionalProperties"), Mapping):
        return
    keys = schema.pop("propertyNames", {})
    if "maxLength" not in keys or "minLength" not in keys or "maxProperties" not in schema:
        raise UnsupportedSchemaError(f"{path}: a map needs a bound on its size and on its keys")
    least, most = keys["minLength"], keys["maxLength"]
    rule = {
        "rule": f"self.all(key, size(key) >= {least} && size(key) <= {most})",
        "message": f"a key must have {least} to {most} characters",
    }
    schema[RULES_KEY] = [*schema.get(RULES_KEY, ()), rule]


def docstrings_below(owner: type) -> Mapping[str, str]:
    """Returns the docstrings below the assignments in the body of a class of a module, by name, each on one line."""
    return _of_module(sys.modules[owner.__module__]).get(owner.__qualname__, {})


@cache
def _of_module(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    classes = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef))
    return {each.name: dict(_documented(each)) for each in classes}


def _documented(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, below in pairwise(node.body):
        match statement, below:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
