"""Captured blocks of a page: selected fields of objects and records as YAML or JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

#: A captured block: its name, its language and its text.
BLOCK = re.compile(r"<!-- captured: ([\w-]+) -->\n```(\w+)\n(.*?)```\n", re.DOTALL)
ELLIPSIS = "…"
_WIDTH = 124
_LONGEST_TEXT = 76
_DIGEST = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,56}\b")
_SEGMENT = re.compile(r"([^\[\]]+)(?:\[(.*)\])?")


class Cut(dict[str, Any]):
    """A mapping from which fields were left out."""


class CutList(list[Any]):
    """A list from which items were left out."""


def selected(value: Any, paths: Sequence[str]) -> Any:
    """The fields of ``value`` that ``paths`` name, in the order of ``paths``, with everything below them.

    A path consists of keys, separated by spaces, as labels contain dots; a list stands for its items.
    ``stages[Train,Export]`` keeps the items with these names or types.
    """
    return _selected(value, [path.split() for path in paths])


def _selected(value: Any, paths: Sequence[Sequence[str]]) -> Any:
    if not all(paths):
        return value
    if isinstance(value, list):
        return [_selected(item, paths) for item in value]
    kept: dict[str, Any] = {}
    for key, chosen in (_segment(path[0]) for path in paths):
        below = [path[1:] for path in paths if _segment(path[0])[0] == key]
        kept[key] = _selected(_items(value[key], chosen) if chosen else value[key], below)
    return kept if len(kept) == len(value) else Cut(kept)


def _segment(text: str) -> tuple[str, Sequence[str]]:
    match = _SEGMENT.fullmatch(text)
    assert match, text
    return match[1], match[2].split(",") if match[2] else ()


def _items(items: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Any]:
    kept = [each for each in items if {each.get("name"), each.get("type")} & set(names)]
    return kept if len(kept) == len(items) else CutList(kept)


def as_yaml(value: Mapping[str, Any]) -> str:
    """YAML with one line for each collection of scalars that fits. ``# …`` marks a collection that was cut."""
    return "".join(f"{line}\n" for line in _mapping(value))


def _mapping(value: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        mark = f"  # {ELLIPSIS}" if _cut(item) else ""
        short = f"{_flow(key)}: {_flow(item)}{mark}"
        if _is_flat(item) and len(short) <= _WIDTH:
            lines.append(short)
        elif isinstance(item, Mapping):
            lines += [f"{_flow(key)}:{mark}", *(f"  {line}" for line in _mapping(item))]
        elif isinstance(item, list):
            lines += [f"{_flow(key)}:{mark}", *(line for each in item for line in _item(each))]
        else:
            lines.append(short)
    return lines


def _item(value: Any) -> list[str]:
    if not isinstance(value, Mapping) or (_is_flat(value) and len(_flow(value)) <= _WIDTH):
        return [f"- {_flow(value)}"]
    first, *others = _mapping(value)
    return [f"- {first}", *(f"  {line}" for line in others)]


def _cut(value: Any) -> bool:
    items = value if isinstance(value, list) else ()
    return isinstance(value, Cut | CutList) or any(isinstance(each, Cut) for each in items)


def _is_flat(value: Any) -> bool:
    """Whether the value is a scalar or a collection of scalars."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return not any(isinstance(each, Mapping | list) for each in items)


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(
        _plain(value), default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def as_json(value: Mapping[str, Any]) -> str:
    """JSON with as many fields on a line as fit."""
    return f"{_json(_plain(value), '')}\n"


def _json(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(indent + line) <= _WIDTH or not isinstance(value, Mapping | list):
        return line
    inner = f"{indent}  "
    if isinstance(value, list):
        opening, closing, parts = "[", "]", [_json(item, inner) for item in value]
    else:
        opening, closing = "{", "}"
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {_json(item, inner)}" for key, item in value.items()
        ]
    lines = [f"{inner}{parts[0]}"]
    for part in parts[1:]:
        joined = f"{lines[-1]}, {part}"
        if "\n" in joined or len(joined) >= _WIDTH:
            lines[-1] += ","
            lines.append(f"{inner}{part}")
        else:
            lines[-1] = joined
    return "\n".join((opening, *lines, f"{indent}{closing}"))


def _plain(value: Any) -> Any:
    """The value with short digests, texts and fractions."""
    match value:
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case str():
            text = " ".join(_DIGEST.sub(rf"\1{ELLIPSIS}", value).split())
            if len(text) <= _LONGEST_TEXT:
                return text
            head, _, _ = text[:_LONGEST_TEXT].rpartition(" ")
            return f"{head} {ELLIPSIS}" if len(head) > _LONGEST_TEXT / 2 else text[:_LONGEST_TEXT] + ELLIPSIS
        case float():
            return float(f"{value:.4g}")
        case _:
            return value


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The page with the text of every captured block replaced. Raises KeyError for a block that ``blocks`` lacks."""
    return BLOCK.sub(
        lambda match: f"<!-- captured: {match[1]} -->\n```{match[2]}\n{blocks[match[1]]}```\n", page
    )
