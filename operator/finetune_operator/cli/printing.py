"""Prints objects and tables as kubectl does."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

type Object = Mapping[str, Any]


def object_text(objects: Sequence[Object], output: str, *, single: bool = False) -> str:
    """Returns objects as ``json``, ``yaml`` or ``name``.

    Args:
        objects: whole objects, of one kind.
        output: the format.
        single: whether to print the only object itself instead of a List.
    """
    if output == "name":
        return "\n".join(resource_name(each) for each in objects)
    shown: Any = (
        objects[0]
        if single
        else {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": list(objects)}
    )
    if output == "json":
        return json.dumps(shown, indent=4, ensure_ascii=False)
    from finetune_operator.cli.yaml_text import yaml_text

    return yaml_text(shown).rstrip("\n")


def resource_name(item: Object) -> str:
    """Returns ``finetunejob.tpu-finetune.dev/NAME``, as ``kubectl -o name`` does."""
    group = str(item["apiVersion"]).partition("/")[0]
    return f"{str(item['kind']).lower()}.{group}/{item['metadata']['name']}"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table with aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
