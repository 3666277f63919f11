"""Reads the tables of reasons in docs/troubleshooting.md, for ``finetune explain``, which has no docs at hand."""

import csv
import io
import re
from collections.abc import Iterator

#: Sections with a table of reasons, and what the rows are called there.
_SECTIONS = {
    "The job does not start: `Valid` is False": "the condition Valid",
    "The job waits: `status.waiting`": "status.waiting",
    "Other conditions": "a condition",
    "The job failed: `status.failure`": "status.failure",
    "The operator's reconciles: the label `reason`": "metrics of the operator",
}
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_NAME = re.compile(r"`([A-Z][A-Za-z]+)`")


def reasons(troubleshooting: str) -> str:
    """Returns the rows as CSV: section, title, names separated by spaces, meaning, remedy."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for section, cells in _rows(troubleshooting):
        title, meaning, remedy = (_plain(cell) for cell in cells)
        writer.writerow((section, title, " ".join(_NAME.findall(cells[0])), meaning, remedy))
    return output.getvalue()


def _rows(text: str) -> Iterator[tuple[str, list[str]]]:
    section = None
    for line in text.splitlines():
        if line.startswith("## "):
            section = _SECTIONS.get(line.removeprefix("## "))
        elif section and line.startswith("| ") and not line.startswith("| reason"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if not line.startswith("| condition, reason") and len(cells) == 3:
                yield section, cells


def _plain(cell: str) -> str:
    return _LINK.sub(r"\1", cell).replace("`", "").strip()
