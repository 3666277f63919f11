"""Every field and every value of an enum has a description that can be understood without the code."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tools.crd import job_crd, profile_crd, root_schema

type Schema = dict[str, Any]

#: Words of prose that says less than a technical term, or is not idiomatic.
BANNED = (
    "told",
    "tells",
    "nobody",
    "somebody",
    "whoever",
    "in vain",
    "goes on",
    "to be had",
    "that very",
    "looked at",
    "stranger",
)
LEAST_WORDS = 4
#: A value's own line is a phrase: at least two words beside the value.
LEAST_WORDS_OF_A_VALUE = 2


def fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    for below in ("items", "additionalProperties"):
        if below in schema:
            yield from fields(schema[below], f"{path}[]")


FIELDS = {
    path: field
    for crd in (job_crd(), profile_crd())
    for part in ("spec", "status")
    for path, field in fields(
        root_schema(crd)["properties"][part], f"{crd['spec']['names']['singular']}.{part}"
    )
}


def values(field: Schema) -> list[str]:
    """The enum's values of a field, of its items or of its map's values."""
    for below in ("items", "additionalProperties"):
        if below in field:
            return values(field[below])
    return list(field.get("enum", ()))


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_description_is_a_phrase_of_at_least_four_words(field: Schema) -> None:
    text = field["description"].partition("\nPossible values:\n")[0]
    assert len(text.split()) >= LEAST_WORDS, text
    assert text.endswith((".", "…")), text


@pytest.mark.parametrize("path", [path for path, field in FIELDS.items() if values(field)])
def test_a_description_explains_every_value(path: str) -> None:
    field = FIELDS[path]
    for value in values(field):
        found = re.search(rf"(?:^- |[.] ){value}: ([^\n]+)", field["description"], re.MULTILINE)
        assert found, f"{value} is missing: {field['description']}"
        assert len(found[1].split()) >= LEAST_WORDS_OF_A_VALUE, found[0]


@pytest.mark.parametrize("crd", [job_crd(), profile_crd()], ids=["FineTuneJob", "FineTuneProfile"])
def test_descriptions_are_free_of_banned_words(crd: Schema) -> None:
    banned = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
    assert [text for text in descriptions(root_schema(crd)) if banned.search(text)] == []


def descriptions(value: Any) -> Iterator[str]:
    """Those of fields, and those of the objects in lists and maps."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "description" and isinstance(item, str):
            yield item
        elif isinstance(item, dict | list):
            yield from descriptions(item)
