"""The compatibility matrix: its rows, what is read from a run, and the page that shows it."""

import json

import pytest

from devcluster.build import VARIABLE
from devcluster.layout import ROOT
from tests.matrix import releases
from tests.matrix.__main__ import PAGE, RESULTS
from tests.matrix.rows import CASES, PINNED, Row, passed, result, rows, with_result, with_table

REPORT = """\
<testsuites><testsuite name="pytest">
<testcase classname="tests.integration.test_placement" name="test_a[64 hosts]" />
<testcase classname="tests.integration.test_placement" name="test_b">
<failure message="assert 1 == 2&#10; + more" /></testcase>
<testcase classname="tests.integration.test_disruptions" name="test_c"><error message="no cluster" /></testcase>
<testcase classname="tests.integration.test_queues" name="test_d"><skipped message="no field" /></testcase>
<testcase classname="tests.e2e.test_quickstart" name="test_e" />
</testsuite></testsuites>
"""


def measured(row: Row, report: str = REPORT) -> dict[str, object]:
    return result(row, report, date="2026-11-26", seconds=61.4)


def test_each_row_varies_one_project() -> None:
    pinned, *others = rows()
    assert pinned.name == PINNED
    assert [row.release for row in others] == list(releases.table())
    for row in others:
        assert row.release is not None
        differing = {name for name, version in row.versions.items() if version != pinned.versions[name]}
        assert differing == {row.release.project}
        assert row.environment == {VARIABLE: str(row.release.folder)}
    assert pinned.environment == {VARIABLE: ""}


def test_rows_are_selected_by_name() -> None:
    last = rows()[-1].name
    assert [row.name for row in rows([last, PINNED])] == [last, PINNED]
    with pytest.raises(ValueError, match="unknown row 'jobset'; expected some of pinned, kubernetes="):
        rows(["jobset"])


def test_a_run_is_counted_by_case_and_says_why_a_test_did_not_pass() -> None:
    found = measured(Row())
    assert found["cases"] == {
        "placement": {"passed": 1, "failed": 1},
        "disruptions": {"failed": 1},
        "queues": {"skipped": 1},
        "quickstart": {"passed": 1},
    }
    assert found["exceptions"] == [
        {"test": "test_b", "outcome": "failed", "reason": "assert 1 == 2"},
        {"test": "test_c", "outcome": "failed", "reason": "no cluster"},
        {"test": "test_d", "outcome": "skipped", "reason": "no field"},
    ]


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ({"a": {"passed": 2}, "b": {"passed": 1, "skipped": 1}}, True),
        ({"a": {"passed": 2}, "b": {"passed": 1, "failed": 1}}, False),
        ({"a": {"passed": 2}, "b": {}}, False),
        ({"a": {"passed": 2}, "b": {"skipped": 1}}, False),
    ],
)
def test_a_row_passes_when_every_case_was_run_and_nothing_failed(
    cases: dict[str, dict[str, int]], expected: bool
) -> None:
    assert passed({"cases": cases}) is expected


def test_a_result_replaces_its_rows_and_follows_their_order() -> None:
    first, second = rows()[:2]
    gone = {"row": "jobset=0.0.1"}
    results = with_result([measured(second), gone], measured(first))
    assert [each["row"] for each in results] == [first.name, second.name]
    newer = {**measured(first), "seconds": 5}
    assert with_result(results, newer)[0]["seconds"] == 5


def test_the_page_shows_versions_counts_and_reasons() -> None:
    row = next(row for row in rows() if row.name.startswith("jobset="))
    page = with_table("a\n<!-- measured: matrix -->\nold\n<!-- end -->\nz\n", [measured(row)])
    assert "old" not in page
    assert (
        f"| **{row.versions['jobset']}** | {row.versions['kueue']} | 1 passed, 1 failed | 1 failed |" in page
    )
    assert "| 2026-11-26 | 61 |" in page
    assert f"- {row.name}, test_b: failed, assert 1 == 2\n" in page
    assert page.count("| not run | not run | not run | not run |") == len(rows()) - 1
    assert with_table(page, [measured(row)]) == page


def test_the_committed_page_shows_the_committed_results() -> None:
    results = json.loads(RESULTS.read_text())
    assert with_table(PAGE.read_text(), results) == PAGE.read_text(), "run `make test-matrix`"
    assert {each["row"] for each in results} <= {row.name for row in rows()}, "run `make test-matrix`"


@pytest.mark.parametrize("path", CASES.values())
def test_each_case_has_tests_with_the_marker(path: str) -> None:
    assert "pytest.mark.matrix" in (ROOT / path).read_text()
