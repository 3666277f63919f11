"""Converts values of Arrow's types to JSON values. Pure.

Times become ISO 8601 text, decimals and UTF-8 bytes text, maps objects. In structs a null stands for a missing key,
because every object of a column has the keys of all rows' objects. Arrow's numbers, booleans and texts are JSON values
already; NaN and infinite numbers stay, as in Python's JSON.
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from finetune_trainer.readers.json_text import MAX_DEPTH, TOO_DEEP

#: Converts a value that is not null. None, where one is expected, leaves values as they are.
type Convert = Callable[[Any], Any]
#: Structs in which BigQuery and Spark wrap lists, {list: [{element: …}]}: the names of their only keys.
_OUTER, _INNER = frozenset({"list", "bag"}), frozenset({"element", "item", "array", "array_element"})


def _duration(value: timedelta) -> str:
    """Returns a duration in ISO 8601. Those in nanoseconds are of a class of pandas, which has the method."""
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    seconds, micros = divmod(value // timedelta(microseconds=1), 1_000_000)
    return f"PT{seconds}.{micros:06}S" if micros else f"PT{seconds}S"


def _iso(value: Any) -> str:
    return str(value.isoformat())


#: By the names of types in Arrow, those of extension types included.
_CONVERTERS: Mapping[str, Convert | None] = {
    **dict.fromkeys(("null", "bool", "arrow.bool8", "string", "large_string", "string_view", "arrow.json")),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
    **dict.fromkeys(("halffloat", "float", "double")),
    **dict.fromkeys(("binary", "large_binary", "binary_view", "fixed_size_binary"), bytes.decode),
    **dict.fromkeys(("decimal32", "decimal64", "decimal128", "decimal256"), "{:f}".format),
    **dict.fromkeys(("timestamp", "date32", "date64", "time32", "time64"), _iso),
    "duration": _duration,
    "arrow.uuid": str,
}
_LISTS = frozenset({"list", "large_list", "fixed_size_list", "list_view", "large_list_view"})


def converter(kind: Any, depth: int = 1) -> Convert | None:
    """Returns what converts values of an Arrow type. Raises TypeError for a type whose values have no JSON value."""
    if depth > MAX_DEPTH:
        raise TypeError(TOO_DEEP)
    nested = partial(converter, depth=depth + 1)
    name = _name(kind)
    if name in ("dictionary", "run_end_encoded"):
        return nested(kind.value_type)
    if name in _LISTS:
        return _list(nested(kind.value_type))
    if name == "map":
        return _map(nested(kind.key_type), nested(kind.item_type))
    if name == "struct":
        converters = {field.name: nested(field.type) for field in kind}
        if len(converters) < kind.num_fields:
            raise TypeError("several of its keys have the same name")
        return _unwrapped(kind, _struct(converters))
    if name not in _CONVERTERS:
        raise TypeError("values of this type have no JSON value")
    return _CONVERTERS[name]


def _name(kind: Any) -> str:
    """Returns the first word of a type such as ``list<item: string>``, or of an extension's name."""
    word = re.match(r"(?:extension<)?([\w.]+)", str(kind))
    return word[1] if word else ""


def _list(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct(converters: Mapping[str, Convert | None]) -> Convert:
    if not any(converters.values()):
        return lambda values: {name: value for name, value in values.items() if value is not None}
    return lambda values: {
        name: convert(value) if (convert := converters[name]) else value
        for name, value in values.items()
        if value is not None
    }


def _map(key: Convert | None, item: Convert | None) -> Convert:
    """Returns an object with keys as text. A null in a map is the row's own and stays."""

    def convert(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        made = {
            str(key(name) if key else name): item(value) if item and value is not None else value
            for name, value in pairs
        }
        if len(made) != len(pairs):
            raise ValueError("a map with a key twice")
        return made

    return convert


def _unwrapped(kind: Any, convert: Convert) -> Convert:
    """Returns what unwraps {list: [{element: value}]} to [value], and leaves structs of other forms as they are."""
    if kind.num_fields != 1 or kind[0].name not in _OUTER or _name(kind[0].type) not in _LISTS:
        return convert
    struct = kind[0].type.value_type
    if _name(struct) != "struct" or struct.num_fields != 1 or struct[0].name not in _INNER:
        return convert
    outer, inner = kind[0].name, struct[0].name

    def unwrap(value: Mapping[str, Any]) -> list[Any] | None:
        items = convert(value).get(outer)
        return None if items is None else [(item or {}).get(inner) for item in items]

    return unwrap
