"""The tables of ``docs/reference/renamed.md``."""

import re
from collections.abc import Mapping

from devcluster.layout import ROOT

_ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)


def words() -> Mapping[str, str]:
    """Values and field names in objects and records, old to new."""
    return _table("Names in objects and records")


def decision_fields() -> Mapping[str, str]:
    """Fields of a recorded decision, old to new."""
    return _table("Fields of a decision")


def files() -> Mapping[str, str]:
    """Paths from the root of the repository, old to new."""
    return _table("Files")


def _table(heading: str) -> Mapping[str, str]:
    text = (ROOT / "docs/reference/renamed.md").read_text()
    _, _, below = text.partition(f"## {heading}\n")
    section, _, _ = below.partition("\n## ")
    return dict(_ROW.findall(section))
