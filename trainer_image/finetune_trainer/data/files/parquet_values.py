"""Converts values of Arrow's types to JSON values. Pure.

Arrow's numbers, booleans and texts are JSON values already; NaN and infinite numbers stay, as in Python's JSON.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache, partial
from typing import Any

from finetune_trainer.data.files.json_values import MAX_DEPTH, TOO_DEEP

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


#: Extension types by their names, all others by the names of their identifiers in Arrow.
_CONVERTERS: Mapping[str, Convert | None] = {
    **dict.fromkeys(("arrow.bool8", "arrow.json", "NA", "BOOL", "STRING", "LARGE_STRING", "STRING_VIEW")),
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")),
    **dict.fromkeys(("HALF_FLOAT", "FLOAT", "DOUBLE")),
    **dict.fromkeys(("BINARY", "LARGE_BINARY", "BINARY_VIEW", "FIXED_SIZE_BINARY"), bytes.decode),
    **dict.fromkeys(("DECIMAL32", "DECIMAL64", "DECIMAL128", "DECIMAL256"), "{:f}".format),
    **dict.fromkeys(("TIMESTAMP", "DATE32", "DATE64", "TIME32", "TIME64"), _iso),
    "DURATION": _duration,
    "arrow.uuid": str,
}
_LISTS = frozenset({"LIST", "LARGE_LIST", "FIXED_SIZE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW"})


def converter(kind: Any, depth: int = 1) -> Convert | None:
    """Returns what converts values of an Arrow type. Raises TypeError for a type whose values have no JSON value."""
    if depth > MAX_DEPTH:
        raise TypeError(TOO_DEEP)
    nested = partial(converter, depth=depth + 1)
    name = _name(kind)
    if name in ("DICTIONARY", "RUN_END_ENCODED"):
        return nested(kind.value_type)
    if name in _LISTS:
        return _list(nested(kind.value_type))
    if name == "MAP":
        return _map(nested(kind.key_type), nested(kind.item_type))
    if name == "STRUCT":
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise TypeError("several of its keys have the same name")
        convert = {field.name: nested(field.type) for field in kind}
        return _wrapped_list(kind, nested) or _struct(convert)
    if name not in _CONVERTERS:
        raise TypeError("values of this type have no JSON value")
    return _CONVERTERS[name]


def _name(kind: Any) -> str:
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        return str(kind.extension_name)
    return _names()[kind.id]


@cache
def _names() -> Mapping[int, str]:
    import pyarrow

    return {getattr(pyarrow.lib, name): name[5:] for name in dir(pyarrow.lib) if name.startswith("Type_")}


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


def _wrapped_list(kind: Any, nested: Callable[[Any], Convert | None]) -> Convert | None:
    """Returns what unwraps {list: [{element: value}]} to [value]; None for a type of another form."""
    if kind.num_fields != 1 or kind[0].name not in _OUTER or _name(kind[0].type) not in _LISTS:
        return None
    inner = kind[0].type.value_type
    if _name(inner) != "STRUCT" or inner.num_fields != 1 or inner[0].name not in _INNER:
        return None
    outer_name, inner_name = kind[0].name, inner[0].name
    convert = _list(nested(inner[0].type))

    def unwrap(value: Mapping[str, Any]) -> Any:
        if value[outer_name] is None:
            return None
        values = [None if each is None else each[inner_name] for each in value[outer_name]]
        return convert(values) if convert else values

    return unwrap
