"""Records are bounded and complete, and their names depend on the job as it is stored alone."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from finetune_contract import FailureClass, Stage
from finetune_operator.api.placement import Capacity
from finetune_operator.ledger.layout import day_folder, overlaps, record_uri
from finetune_operator.ledger.record import MOST_LABELS, RECORD_BYTES, LedgerOutcome, LedgerRecord

UID = "0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d2e3f"


def record(**values: Any) -> LedgerRecord:
    known: dict[str, Any] = {
        "day": date(2026, 11, 21),
        "namespace": "team-a",
        "job": "support-bot",
        "uid": UID,
        "stage": Stage.TRAIN,
        "number": 2,
        "sequence": 4,
        "outcome": LedgerOutcome.FAILED,
        "failure_class": FailureClass.PREEMPTION,
        "end": datetime(2026, 11, 21, 12, tzinfo=UTC),
        "capacity": Capacity.SPOT,
        "chip_hours": Decimal("12.345678"),
        "cost": Decimal("14.5"),
        "currency": "USD",
    }
    return LedgerRecord.model_validate(known | values)


def test_amounts_are_exact_text() -> None:
    stored = json.loads(record().to_json())
    assert (stored["chipHours"], stored["cost"], stored["class"]) == ("12.345678", "14.5", "Preemption")
    assert LedgerRecord.parse(record().to_json()) == record()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "train-2-4.json"),
        ({"restart": 1}, "train-2.1-4.json"),
        ({"outcome": LedgerOutcome.RUNNING, "sequence": 5}, "train-2-5.json"),
        ({"stage": Stage.PREFLIGHT, "number": 1, "sequence": 1}, "prep-1-1.json"),
    ],
)
def test_a_name_is_that_of_the_day_the_job_the_attempt_and_the_sequence(values: Any, name: str) -> None:
    uri = record_uri("gs://ledger/prod/", record(**values))
    assert uri == f"gs://ledger/prod/v1/2026-11-21/team-a/{UID}/{name}"
    assert uri.startswith(day_folder("gs://ledger/prod", date(2026, 11, 21), "team-a"))


def test_the_largest_record_of_the_operator_can_be_read() -> None:
    labels = {f"{n:02d}{'k' * 251}/{'n' * 63}": "v" * 63 for n in range(MOST_LABELS)}
    largest = record(
        labels=labels, namespace="n" * 63, job="j" * 63, model="m" * 1024, reason="R" * 128, tpu="t" * 63
    )
    assert len(largest.to_json()) <= RECORD_BYTES


@pytest.mark.parametrize(
    "values",
    [
        {"chip_hours": "NaN"},
        {"chip_hours": "-1"},
        {"chip_hours": "0.0000001"},
        {"uid": "../../other"},
        {"namespace": "a/b"},
        {"version": 2},
    ],
)
def test_a_record_that_would_spoil_sums_or_names_is_refused(values: Any) -> None:
    with pytest.raises(ValidationError):
        record(**values)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version": 2}', b"{" * 100_000])
def test_what_is_no_record_is_none(content: bytes) -> None:
    assert LedgerRecord.parse(content) is None


def test_keys_of_a_newer_release_are_ignored() -> None:
    assert LedgerRecord.parse(record().to_json()[:-1] + b', "carbon": 7}') == record()


@pytest.mark.parametrize(
    ("ledger", "folder", "expected"),
    [
        ("gs://artifacts/ledger", "gs://artifacts", True),
        ("gs://artifacts", "gs://artifacts/", True),
        ("gs://ledger", "gs://ledger/artifacts", True),
        ("gs://ledger", "gs://ledger-artifacts", False),
        ("gs://ledger/a", "gs://ledger/b", False),
        ("file:///data/ledger", "file:///data/artifacts", False),
    ],
)
def test_folders_overlap_if_one_is_inside_the_other(ledger: str, folder: str, expected: bool) -> None:
    assert overlaps(ledger, folder) is expected
