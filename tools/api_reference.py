"""Generates the API reference in Markdown from the schemas in the CRDs."""

from collections.abc import Iterator, Mapping
from typing import Any

from finetune_operator.api.common import API_VERSION, INT32_MAX
from finetune_operator.api.numbers import SAFE_INTEGER_MAX
from tools.crd import job_crd, profile_crd, root_schema
from tools.structural_schema import RULES_KEY

_INTRODUCTION = f"""\
# API reference

Group and version `{API_VERSION}`. Fields that are not listed are refused. A field that is left out takes
the profile's default, then the built-in one that its description names. Numbers of a spec are
written without quotes, for example `2e-5`; a status has decimals as strings.
"""

_UNBOUNDED = (INT32_MAX, SAFE_INTEGER_MAX)


def reference() -> str:
    """Returns the whole page in Markdown."""
    parts = [_INTRODUCTION]
    for crd in (job_crd(), profile_crd()):
        names, schema = crd["spec"]["names"], root_schema(crd)
        scope = "in a namespace" if crd["spec"]["scope"] == "Namespaced" else "cluster-wide"
        parts.append(
            f"## {names['kind']}\n\n{schema['description']} Lives {scope}; `kubectl get {names['plural']}`.\n"
        )
        parts.extend(_rules(schema))
        for part in ("spec", "status"):
            parts.extend(_objects(schema["properties"][part], f"{names['kind']}.{part}"))
    return "\n".join(parts)


def _objects(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yields a section per object, outer ones first."""
    required = set(schema.get("required", ()))
    rows = [
        f"| `{name}` | {_type(field)} | {'yes' if name in required else ''} | {_cell(field)} |"
        for name, field in schema["properties"].items()
    ]
    yield "\n".join(
        [
            f"### {path}",
            "",
            schema.get("description", ""),
            "",
            *_rules(schema),
            "| field | type | required | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
    for name, field in schema["properties"].items():
        inner, suffix = (field["items"], "[]") if field["type"] == "array" else (field, "")
        if "properties" in inner:
            yield from _objects(inner, f"{path}.{name}{suffix}")


def _rules(schema: Mapping[str, Any]) -> list[str]:
    """Returns a list of the rules between the fields; empty if there are none."""
    rules = [f"- {rule['message']}" for rule in schema.get(RULES_KEY, ())]
    return [*rules, ""] if rules else []


def _type(schema: Mapping[str, Any]) -> str:
    match schema["type"]:
        case "array":
            return f"list of {_type(schema['items'])}, at most {schema['maxItems']}"
        case "object" if "additionalProperties" in schema:
            return f"map to {_type(schema['additionalProperties'])}, at most {schema['maxProperties']}"
        case "string" if "enum" in schema:
            return ", ".join(f"`{value}`" for value in schema["enum"])
        case "string" if schema.get("format") == "date-time":
            return "time"
        case "integer":
            least, most = schema["minimum"], schema["maximum"]
            return f"integer, {least} or more" if most in _UNBOUNDED else f"integer, {least} to {most}"
        case kind:
            return ", ".join([kind, *_bounds(schema)])


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    if "minimum" in schema:
        yield f"above {schema['minimum']}" if "exclusiveMinimum" in schema else f"{schema['minimum']} or more"
    if "maximum" in schema:
        yield f"below {schema['maximum']}" if "exclusiveMaximum" in schema else f"{schema['maximum']} or less"


def _cell(schema: Mapping[str, Any]) -> str:
    """Returns the description, with the rules on the field before the values of its enum."""
    text, *values = schema.get("description", "").replace("|", r"\|").replace("<", r"\<").split("\n")
    rules = [f"({rule['message']})" for rule in schema.get(RULES_KEY, ()) if "properties" not in schema]
    return "<br>".join([" ".join([text, *rules]), *values]).rstrip()
