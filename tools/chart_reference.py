"""README of the chart: its metadata, and a table of its values from the comments of values.yaml."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_INTRODUCTION = """\
# {name}

{description}

Version {version}; needs Kubernetes {kube}. Install it as [install-gke.md](../../docs/install-gke.md#the-operator)
describes; upgrades and rollbacks are the topic of [upgrades.md](../../docs/upgrades.md). There is no chart repository:
the chart is installed from this folder, with an image that you have built.

```bash
helm install finetune-operator charts/finetune-operator -n finetune-system --create-namespace -f values.yaml
helm test finetune-operator -n finetune-system --timeout 25m    # with test.namespace set
```

## Values

`values.schema.json` refuses every key and value that it does not know, with its place.

| value | default | |
|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of the chart."""

    path: str
    default: Any
    comment: str


def chart_reference(chart: Path) -> str:
    """Returns the page in Markdown. ``chart`` is the chart's folder."""
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    rows = (
        f"| `{value.path}` | {_shown(value.default)} | {value.comment} |\n"
        for value in values((chart / "values.yaml").read_text(encoding="utf-8"))
    )
    head = _INTRODUCTION.format(
        name=metadata["name"],
        description=metadata["description"],
        version=metadata["version"],
        kube=metadata["kubeVersion"].removesuffix("-0").removeprefix(">=") + " or later",
    )
    return head + "".join(rows)


def values(text: str) -> Iterator[Value]:
    """Yields the values in the order of the file: a key with nested keys is none itself, unless it has a comment.

    The comment is the block of lines with ``#`` right above the key; a blank line ends it.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from _below(root, "", text.splitlines())


def _below(node: yaml.MappingNode, path: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        name = f"{path}{key.value}"
        comment = _above(lines, key.start_mark.line)
        nested = isinstance(value, yaml.MappingNode) and not value.flow_style
        if not nested or (comment and not _commented(value, lines)):
            yield Value(path=name, default=_parsed(value), comment=comment)
        else:
            yield from _below(value, f"{name}.", lines)


def _commented(node: yaml.MappingNode, lines: list[str]) -> bool:
    """Returns whether a key of the mapping has a comment of its own: then each is a value."""
    return any(_above(lines, key.start_mark.line) for key, _ in node.value)


def _above(lines: list[str], line: int) -> str:
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(found).replace("|", "\\|").replace("<", "&lt;")


def _parsed(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _shown(default: Any) -> str:
    return f"`{json.dumps(default)}`"
