"""Descriptions name the built-in defaults that planning fills in."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from finetune_operator.api.crd import job_crd, root_schema
from finetune_operator.planning.merge import BUILT_IN

#: Described as they will be; until then the job's status says what stands instead.
LATER = {"export.checkpoint"}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}".lstrip("."))
    else:
        yield path, value


def as_written(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case [single]:
            return str(single)
        case str() if re.match(r"[0-9]", value):
            return f'"{value}"'
        case _:
            return str(value)


@pytest.mark.parametrize(
    ("path", "value"), [leaf for leaf in leaves(BUILT_IN) if leaf[0] not in {*LATER, "method.type"}]
)
def test_the_description_names_the_built_in_default(path: str, value: Any) -> None:
    schema = root_schema(job_crd())["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
    assert f"Default: {as_written(value)}" in schema["description"]
