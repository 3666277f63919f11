"""What a job uses counts although the API server does not take its status."""

from typing import Any

import pytest

from finetune_operator.reconcile.budgets import UnwrittenStatuses

type Object = dict[str, Any]


def job(uid: str = "1", as_of: str | None = None) -> Object:
    status = {"activeTime": {"asOf": as_of}} if as_of else {}
    return {"metadata": {"uid": uid, "name": "demo", "namespace": "team"}, "status": status}


@pytest.mark.parametrize("stored", [None, "2026-11-21T12:00:00Z", "2026-11-21T12:30:00Z"])
def test_the_newest_status_of_a_deleted_job_counts(stored: str | None) -> None:
    kept = UnwrittenStatuses()
    for minute in (5, 10):
        kept.keep(job(as_of=f"2026-11-21T12:{minute:02}:00Z"))
    newest = kept.newest(job(as_of=stored))["status"]["activeTime"]["asOf"]
    assert newest == max(stored or "", "2026-11-21T12:10:00Z")


def test_an_error_that_is_reported_later_replaces_no_usage() -> None:
    """The status of an error is the stored one, in which nothing runs."""
    kept = UnwrittenStatuses()
    running = job(as_of="2026-11-21T12:00:00Z")
    kept.keep(running)
    error = {**running, "status": {**running["status"], "summary": "Error"}}
    for later in (error, job()):
        kept.keep(later)
        assert kept.newest(later) == running


def test_a_bounded_number_of_jobs_is_remembered() -> None:
    kept = UnwrittenStatuses()
    for number in range(1000):
        kept.keep(job(str(number), "2026-11-21T12:00:00Z"))
    remembered = [number for number in range(1000) if kept.newest(job(str(number)))["status"]]
    assert remembered == list(range(1000 - 256, 1000))
