"""Prints objects and tables as kubectl does."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from finetune_operator.cli import text
from finetune_operator.objects import Object

_INDENT = 4
_LIST = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": []}
_JSON_LIST = json.dumps(_LIST, indent=_INDENT)
_YAML_LIST = "apiVersion: v1\nkind: List\nmetadata:\n  resourceVersion: ''\nitems:"


def item_text(item: Object, output: str) -> str:
    """Returns an object as ``json``, ``yaml`` or ``name``, as kubectl does without its managed fields."""
    if output == "name":
        return resource_name(item)
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    item = {**item, "metadata": metadata}
    if output == "json":
        return json_text(item)
    from finetune_operator.cli.yaml_text import yaml_text

    return yaml_text(item).rstrip("\n")


def json_text(value: Any) -> str:
    """Returns a value as JSON in which control characters are escaped."""
    written = json.dumps(value, indent=_INDENT, ensure_ascii=False)
    return text.escaped(written, lambda each: "\\u007f" if each == "\x7f" else json.dumps(each)[1:-1])


def list_text(items: Sequence[str], output: str) -> str:
    """Returns the List of objects, whose texts :func:`item_text` has made."""
    if output == "name":
        return "\n".join(items)
    if output == "json":
        # The text of an item has line ends between its members alone.
        below = ",\n".join(textwrap.indent(each, " " * 2 * _INDENT) for each in items)
        return _JSON_LIST.replace("[]", f"[\n{below}\n{' ' * _INDENT}]" if items else "[]")
    listed = "\n".join(f"- {each.replace(chr(10), chr(10) + '  ')}" for each in items)
    return f"{_YAML_LIST}\n{listed}" if items else f"{_YAML_LIST} []"


def resource_name(item: Object) -> str:
    """Returns ``finetunejob.tpu-finetune.dev/NAME``, as ``kubectl -o name`` does."""
    group = str(item["apiVersion"]).partition("/")[0]
    return f"{str(item['kind']).lower()}.{group}/{item['metadata']['name']}"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table with aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
