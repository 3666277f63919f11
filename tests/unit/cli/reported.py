"""Run folders of whole runs, and pages of reports as a browser parses them."""

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from finetune_contract import RunFolder
from tests.unit.cli.exported import FILES, manifest_of, write_run
from tests.unit.comparison.runs import preflight, progress, request, results, rows, samples
from tests.unit.report.records import attempts, data_report, finished_status, metrics_content

#: Elements without an end tag.
_VOID = frozenset({"meta", "br"})


def write_records(folder: Path, **records: Any) -> str:
    """Writes the records of a job that has succeeded; returns the run folder's URI.

    ``records`` replaces records by the name of their place in :class:`RunFolder`; None leaves one out.
    """
    layout = RunFolder(f"file://{folder}")
    measured = rows(20, seed=1)
    given: dict[str, Any] = {
        "status": {"job": job(folder.name)},
        "preflight_report": preflight(),
        "data_report": data_report(),
        "metrics": metrics_content(600),
        "progress": progress(),
        "evaluation_results": results(measured),
        "evaluation_rows": lines(measured),
        "evaluation_samples": lines(samples("Open Settings and choose Security.", "I do not know.")),
    } | records
    write_run(folder, {"model": FILES})
    for name, record in given.items():
        place(getattr(layout, name), record)
    place(layout.request("eval", 1), request())
    for each in attempts():
        at = each.stage.short, each.number, each.restart
        place(layout.result(*at), each.result)
        place(layout.failure(*at), each.failure)
    return layout.uri


def job(name: str, **status: Any) -> dict[str, Any]:
    """A FineTuneJob as status.json has it."""
    return {
        "metadata": {"name": name, "namespace": "team-a", "uid": "0b5e3a52", "labels": {"team": "nlp"}},
        "spec": {"method": {"type": "SFT"}},
        "status": finished_status(**status),
    }


def lines(records: Any) -> bytes:
    return b"".join(each.to_json().encode() + b"\n" for each in records)


def place(uri: str, record: Any) -> None:
    """Writes one record, if there is one."""
    if record is None:
        return
    path = Path(uri.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    match record:
        case bytes():
            path.write_bytes(record)
        case BaseModel():
            path.write_text(record.to_json())  # type: ignore[attr-defined]
        case _:
            path.write_text(json.dumps(record))


def manifest_digest() -> str:
    return hashlib.sha256(manifest_of(FILES)).hexdigest()


class Page(HTMLParser):
    """A page: its elements with their attributes, and its text by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self._section = "head"
        self._texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = str(found.get("aria-labelledby"))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self._texts.setdefault(self._section, []).append(data)

    @property
    def sections(self) -> list[str]:
        return [name for name in self._texts if name != "head"]

    def text(self, section: str) -> str:
        """The text of a section, with single spaces."""
        return " ".join(" ".join(self._texts.get(section, ())).split())

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}
