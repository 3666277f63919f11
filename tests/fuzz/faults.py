"""Faults of manifests, as people, templates and other programs make them: each in one place of a document.

The functions change the document. ``draw`` is that of a hypothesis strategy.
"""

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.unit.api.documents import Document, following
from tests.unit.cli.scalars import KEYS, SCALARS

type Fault = Callable[[st.DrawFn, "Slot"], None]

_WRONG: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 1, 1.5, "x", "", [], {}, ["x"], {"x": 1}, -1, 10**12]
)
_UNKNOWN = st.sampled_from(["unknownField", "Suspend", "__proto__", "x y", ""])
#: Encloses a scalar or key that is written into the manifest without quotes.
_RAW = "\u27ea{}\u27eb"


@dataclass(frozen=True, slots=True)
class Slot:
    """A value inside a document. ``schema`` is the value's, ``owner`` the container's; empty for an unknown field."""

    container: Any
    key: Any
    schema: Document
    owner: Document


def slots(value: Any, schema: Document) -> Iterator[Slot]:
    """Yields every value inside ``value``."""
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        below = [(key, item, known.get(key, other)) for key, item in value.items()]
    elif isinstance(value, list):
        below = [(index, item, schema.get("items", {})) for index, item in enumerate(value)]
    else:
        return
    for key, item, inner in below:
        yield Slot(value, key, inner, schema)
        yield from slots(item, inner)


def spoil(draw: st.DrawFn, document: Any, schema: Document, faults: tuple[Fault, ...]) -> None:
    """Makes one of the faults in one place, if the document has any."""
    if places := list(slots(document, schema)):
        draw(st.sampled_from(faults))(draw, draw(st.sampled_from(places)))


def replace(draw: st.DrawFn, slot: Slot) -> None:
    """A value of another type, or one that may not be meant."""
    slot.container[slot.key] = deepcopy(draw(_WRONG))


def remove(_draw: st.DrawFn, slot: Slot) -> None:
    """A missing field, or one item less."""
    del slot.container[slot.key]


def add_unknown(draw: st.DrawFn, slot: Slot) -> None:
    """A field that the object does not have."""
    if isinstance(slot.container, dict):
        slot.container[draw(_UNKNOWN)] = deepcopy(draw(_WRONG))


def misname(draw: st.DrawFn, slot: Slot) -> None:
    """A field in another spelling."""
    if isinstance(slot.container, dict):
        snake = re.sub(r"(?=[A-Z])", "_", slot.key).lower()
        name = draw(st.sampled_from([slot.key.lower(), slot.key.capitalize(), snake, f"{slot.key}s"]))
        slot.container[name] = slot.container.pop(slot.key)


def exceed(draw: st.DrawFn, slot: Slot) -> None:
    """A value of the right type beside its bounds, form or enumeration."""
    if values := _beside(slot.schema, slot.container[slot.key]):
        slot.container[slot.key] = draw(st.sampled_from(values))


def repeat(_draw: st.DrawFn, slot: Slot) -> None:
    """An item that occurs twice."""
    if isinstance(slot.container, list):
        slot.container.append(deepcopy(slot.container[slot.key]))


def add_member(draw: st.DrawFn, slot: Slot) -> None:
    """Another field of the same object, which a rule between fields may forbid or require."""
    members = slot.owner.get("properties")
    if members and isinstance(slot.container, dict):
        name = draw(st.sampled_from(sorted(members)))
        if members[name]["type"] != "object" or "properties" in members[name]:
            slot.container[name] = draw(following(members[name]))


def write_scalar(draw: st.DrawFn, slot: Slot) -> None:
    """A scalar without quotes, which YAML may not read as the text that it looks like."""
    slot.container[slot.key] = _RAW.format(draw(st.sampled_from(sorted(SCALARS))))


def write_key(draw: st.DrawFn, slot: Slot) -> None:
    """A key without quotes."""
    if isinstance(slot.container, dict):
        slot.container[_RAW.format(draw(st.sampled_from(sorted(KEYS))))] = "x"


OF_VALUES: tuple[Fault, ...] = (replace, remove, add_unknown, misname, exceed, repeat, add_member)
OF_YAML: tuple[Fault, ...] = (write_scalar, write_scalar, write_key)


def manifest(document: Document) -> str:
    """The text of a document, in YAML if something is written without quotes, else in JSON."""
    text = json.dumps(document, ensure_ascii=False)
    return re.sub(_RAW.format("(.*?)").join('""'), lambda found: str(json.loads(f'"{found[1]}"')), text)


def _beside(schema: Document, value: Any) -> list[Any]:
    match schema.get("type"):
        case "integer" | "number":
            low, high = schema.get("minimum", 0), schema.get("maximum", 2**63)
            return [low, low - 1, high, high + 1, 0.5, 2**63, -0.0, 1e300, str(value)]
        case "boolean":
            return ["true", "yes", 0, 1]
        case "string" if "enum" in schema:
            return [schema["enum"][0].lower(), f"{schema['enum'][-1]}s", f"{schema['enum'][0]} ", ""]
        case "string":
            most = schema.get("maxLength", 64)
            return [
                "",
                "!",
                "a b",
                " a",
                "a\n",
                "-",
                "\u00e9",
                "a" * most,
                "a" * (most + 1),
                "\U0001f642" * most,
            ]
        case "array":
            least, most = schema.get("minItems", 0), schema["maxItems"]
            items = value if isinstance(value, list) and value else ["x"]
            return [items[:1] * (most + 1), items * 2, items[: least - 1] if least else []]
        case "object" if "additionalProperties" in schema:
            most = schema["maxProperties"]
            return [{f"k{number}": "x" for number in range(most + 1)}, {"": "x"}, {"a" * 400: "x"}]
    return []
