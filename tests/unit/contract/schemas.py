"""JSON schemas of the contract's records, and what of a change would break an older or a newer reader."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from finetune_contract import ContractVersion

type Object = dict[str, Any]

_DEFINITION = "#/$defs/"


def schema_of(record: type[BaseModel]) -> Object:
    """Without titles and descriptions, every enumeration where it is used."""
    schema = record.model_json_schema()
    definitions = schema.pop("$defs", {})
    enumerations = {name: each for name, each in definitions.items() if "enum" in each}
    records = {name: each for name, each in definitions.items() if name not in enumerations}
    records.setdefault(record.__name__, schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": f"{_DEFINITION}{record.__name__}",
        "$defs": {name: _plain(each, enumerations) for name, each in sorted(records.items())},
    }


def _plain(schema: Any, enumerations: Mapping[str, Object]) -> Any:
    if isinstance(schema, list):
        return [_plain(each, enumerations) for each in schema]
    if not isinstance(schema, dict):
        return schema
    target = str(schema.get("$ref", "")).removeprefix(_DEFINITION)
    if target in enumerations:
        rest = {name: each for name, each in schema.items() if name != "$ref"}
        return _plain({**enumerations[target], **rest}, enumerations)
    plain: Object = {}
    for name, each in schema.items():
        if name == "properties":
            plain[name] = {field: _plain(inner, enumerations) for field, inner in each.items()}
        elif name == "const":
            plain["enum"] = [each]
        elif name == "default":
            plain[name] = each
        elif name not in ("title", "description"):
            plain[name] = _plain(each, enumerations)
    if "anyOf" in plain:
        # An enumeration beside its own type, as exit codes beside any integer, is open: its values say nothing.
        anything = {option.get("type") for option in plain["anyOf"] if "enum" not in option}
        plain["anyOf"] = [
            each for each in plain["anyOf"] if "enum" not in each or each.get("type") not in anything
        ]
    return plain


def definition(schema: Object, reference: str) -> Object:
    found: Object = schema["$defs"][reference.removeprefix(_DEFINITION)]
    return found


def breaking(old: Object, new: Object, since: ContractVersion) -> list[str]:
    """What of ``new`` would be misread by a reader of ``old``, which is version ``since``, or the other way round."""
    return [
        f"{name}{wrong}"
        for name, before in old["$defs"].items()
        for wrong in (_changed(before, new["$defs"][name], since) if name in new["$defs"] else [" is gone"])
    ]


def _changed(old: Object, new: Object, since: ContractVersion) -> Iterator[str]:
    before, after = old.get("properties", {}), new.get("properties", {})
    for field in before.keys() - after.keys():
        yield f".{field} is gone"
    for field in sorted(after.keys() - before.keys()):
        mark = after[field].get("x-since")
        if mark is None or ContractVersion.parse(mark) <= since:
            yield f".{field} is new and is not annotated with a version after {since}"
        if field in new.get("required", ()):
            yield f".{field} is new and has no default"
    for field in sorted(before.keys() & after.keys()):
        if (field in old.get("required", ())) != (field in new.get("required", ())):
            yield f".{field} is required in one version only"
        elif _known_to(before[field], since) != _known_to(after[field], since):
            yield f".{field} has changed its type, its bounds, its values or its default"


def _known_to(field: Object, since: ContractVersion) -> Any:
    """The field without the values that came after ``since``."""
    newer = {
        value
        for value, version in field.get("x-values-since", {}).items()
        if ContractVersion.parse(version) > since
    }
    return _without({name: each for name, each in field.items() if name != "x-values-since"}, newer)


def _without(schema: Any, newer: set[str]) -> Any:
    if isinstance(schema, list):
        return [_without(each, newer) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _without(each, newer) for name, each in schema.items()}
    if "enum" in kept:
        kept["enum"] = sorted(each for each in kept["enum"] if each not in newer)
    if "discriminator" in kept:
        kinds: Object = kept["discriminator"]["mapping"]
        kept["discriminator"] = {kind: place for kind, place in kinds.items() if kind not in newer}
        kept["oneOf"] = sorted(kept["discriminator"].values())
    if isinstance(kept.get("default"), dict):
        # Of a record: what its own fields' defaults say is compared there.
        kept["default"] = {}
    return kept


def fields_in(document: Any, schema: Object, at: Object | None = None) -> Iterator[tuple[str, str]]:
    """Record and field of everything that is set in ``document``."""
    here = at if at is not None else {"$ref": schema["$ref"]}
    if isinstance(document, list):
        for index, each in enumerate(document):
            inner = here.get("items") or here.get("prefixItems", [{}] * len(document))[index]
            yield from fields_in(each, schema, inner)
    if not isinstance(document, dict):
        return
    for option in here.get("anyOf", ()):
        yield from fields_in(document, schema, option)
    if "discriminator" in here:
        kind = here["discriminator"]["mapping"][document[here["discriminator"]["propertyName"]]]
        yield from fields_in(document, schema, {"$ref": kind})
    if "$ref" in here:
        record = definition(schema, here["$ref"])
        for name, each in document.items():
            if name in record["properties"]:
                yield here["$ref"].removeprefix(_DEFINITION), name
                yield from fields_in(each, schema, record["properties"][name])
