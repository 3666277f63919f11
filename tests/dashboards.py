"""The queries of the shipped dashboards and of docs/observability.md, with values in place of Grafana's variables."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from devcluster.layout import ROOT

FOLDER = ROOT / "deploy" / "grafana"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query and where it is."""

    place: str
    expr: str


def panel_queries(name: str, variables: Mapping[str, str]) -> Iterator[Query]:
    """The queries of the panels of a dashboard. ``variables``: values of Grafana's variables, by name."""
    for panel in json.loads((FOLDER / f"{name}.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield Query(place=f"{name}: {panel['title']}", expr=_filled(target["expr"], variables))


def documented_queries() -> Iterator[Query]:
    """The queries in the tables of docs/observability.md."""
    text = (ROOT / "docs" / "observability.md").read_text()
    for title, expr in re.findall(r"^\| ([^|]*) \|.* `([^`]*finetune_[^`]*)` \|$", text, re.MULTILINE):
        yield Query(place=title, expr=expr)


def _filled(expr: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return variables[found.group(1)]

    return re.sub(r"\$(\w+)", value, expr)
