"""Structural schemas for CRDs from pydantic models.

The API server takes a narrow dialect of OpenAPI v3: no references, no ``null`` alternatives, no titles, one type
per place, closed by pruning instead of ``additionalProperties: false``. ``model_json_schema`` says the same
facts in plain JSON Schema; this module rewrites them and refuses whatever it does not know.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from finetune_operator.api.common import INT32_MAX
from finetune_operator.api.rules import RULES_KEY

type Schema = dict[str, Any]

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
#: Keywords that say nothing to the API server. Defaults belong to the merge, see the package's docstring.
_DROPPED = ("title", "default")


class UnsupportedSchemaError(ValueError):
    """A model uses something that a structural schema cannot say."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """The schema of ``model`` as a CRD wants it. Raises UnsupportedSchemaError, naming the place."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    definitions = source.pop("$defs", {})
    return _rewrite(source, definitions, model.__name__)


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
        schema["description"] = " ".join(schema["description"].split())
    if "properties" in schema:
        schema["properties"] = {
            name: _rewrite(value, definitions, f"{path}.{name}")
            for name, value in schema["properties"].items()
        }
    for below in ("items", "additionalProperties"):
        if below in schema:
            schema[below] = _rewrite(schema[below], definitions, f"{path}.{below}")
    unknown = schema.keys() - set(_KEPT) - set(_DROPPED)
    if unknown:
        raise UnsupportedSchemaError(
            f"{path}: {', '.join(sorted(unknown))} cannot be said in a structural schema"
        )
    return {keyword: schema[keyword] for keyword in _KEPT if keyword in schema}


def _resolve(source: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    """``source`` without references and without the null of an optional field; what stands nearer wins."""
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
