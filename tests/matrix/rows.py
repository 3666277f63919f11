"""The rows of the compatibility matrix, what a run of one says, and the table that docs/compatibility.md shows."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.build import VARIABLE
from tests.matrix import releases
from tests.matrix.releases import Release

PINNED = "pinned"
#: Column -> the file whose tests with the marker `matrix` it counts.
CASES: Mapping[str, str] = {
    "placement": "tests/integration/test_placement.py",
    "disruptions": "tests/integration/test_disruptions.py",
    "queues": "tests/integration/test_queues.py",
    "quickstart": "tests/e2e/test_quickstart.py",
}
_TITLES = {"kubernetes": "Kubernetes", "jobset": "JobSet", "kueue": "Kueue"}
_BLOCK = re.compile(r"(<!-- measured: matrix -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    """The pinned programs, with one project in another release; ``release`` is None in the row of the pinned ones."""

    release: Release | None = None

    @property
    def name(self) -> str:
        return str(self.release) if self.release else PINNED

    @property
    def versions(self) -> dict[str, str]:
        pinned = {project: releases.pinned(project) for project in releases.PROGRAMS}
        return pinned | ({self.release.project: self.release.version} if self.release else {})

    @property
    def environment(self) -> dict[str, str]:
        """What makes a cluster run this row's programs."""
        return {VARIABLE: str(self.release.folder) if self.release else ""}


def rows(names: Sequence[str] = ()) -> list[Row]:
    """The rows with these names, or else all. Raises ValueError for an unknown name."""
    every = {row.name: row for row in (Row(), *map(Row, releases.table()))}
    if strange := [name for name in names if name not in every]:
        raise ValueError(f"unknown row {strange[0]!r}; expected some of {', '.join(every)}")
    return [every[name] for name in names or every]


def result(row: Row, report: str, *, date: str, seconds: float) -> dict[str, Any]:
    """What a run of the tests says, from pytest's report in JUnit's format."""
    counts: dict[str, Counter[str]] = {case: Counter() for case in CASES}
    exceptions = []
    for test in ET.fromstring(report).iter("testcase"):
        outcome, message = _outcome(test)
        counts[_case(test)][outcome] += 1
        if outcome != "passed":
            exceptions.append({"test": test.get("name"), "outcome": outcome, "reason": message})
    return {
        "row": row.name,
        "versions": row.versions,
        "date": date,
        "seconds": round(seconds),
        "cases": {case: dict(count) for case, count in counts.items()},
        "exceptions": exceptions,
    }


def passed(found: Mapping[str, Any]) -> bool:
    """Whether every case was run and nothing failed."""
    return all(case.get("passed") and not case.get("failed") for case in found["cases"].values())


def with_result(results: Iterable[Mapping[str, Any]], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results with the new one in its row's place, in the order of the rows; those of no row are dropped."""
    by_row = {each["row"]: each for each in (*results, new)}
    return [by_row[row.name] for row in rows() if row.name in by_row]


def with_table(page: str, results: Iterable[Mapping[str, Any]]) -> str:
    """The page with the table of these results in its marked block."""
    return _BLOCK.sub(lambda match: f"{match[1]}{_table(list(results))}{match[2]}", page)


def _table(results: Iterable[Mapping[str, Any]]) -> str:
    measured = {each["row"]: each for each in results}
    columns = [*_TITLES.values(), *CASES, "date", "seconds"]
    lines = [_line(columns), _line("---" for _ in columns)]
    notes = []
    for row in rows():
        found = measured.get(row.name, {"versions": row.versions, "cases": {}, "exceptions": ()})
        varied = row.release.project if row.release else ""
        versions = [
            version if project != varied else f"**{version}**"
            for project, version in found["versions"].items()
        ]
        counts = (found["cases"].get(case, {}) for case in CASES)
        cells = [
            ", ".join(f"{number} {outcome}" for outcome, number in each.items()) or "not run"
            for each in counts
        ]
        lines.append(_line([*versions, *cells, found.get("date", ""), str(found.get("seconds", ""))]))
        notes += [
            f"- {row.name}, {each['test']}: {each['outcome']}, {each['reason']}"
            for each in found["exceptions"]
        ]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _outcome(test: ET.Element) -> tuple[str, str]:
    for kind, outcome in (("error", "failed"), ("failure", "failed"), ("skipped", "skipped")):
        if (found := test.find(kind)) is not None:
            return outcome, (found.get("message") or "").strip().partition("\n")[0][:200]
    return "passed", ""


def _case(test: ET.Element) -> str:
    module = test.get("classname", "").rpartition(".")[2]
    return next(case for case, path in CASES.items() if Path(path).stem == module)
