"""One way to ask for a condition, of an object as it is stored and of a job's status."""

from typing import Any

import pytest

from finetune_operator.api import ConditionType
from finetune_operator.api.conditions import is_true, stored_condition
from finetune_operator.lifecycle.fitting import read_status

VALID = {
    "type": "Valid",
    "status": "True",
    "reason": "Accepted",
    "message": "M",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-11-21T12:00:00Z",
}


@pytest.mark.parametrize(
    ("status", "is_valid"),
    [
        (None, False),
        ({}, False),
        ({"conditions": None}, False),
        ({"conditions": []}, False),
        ({"conditions": [VALID | {"type": "Running"}]}, False),
        ({"conditions": [VALID | {"status": "Unknown"}]}, False),
        ({"conditions": [VALID | {"status": "False"}]}, False),
        ({"conditions": [VALID | {"type": "Running", "status": "False"}, VALID]}, True),
    ],
)
def test_a_condition_is_true_only_if_it_says_so(status: dict[str, Any] | None, is_valid: bool) -> None:
    stored = {"status": status} if status is not None else {}
    assert is_true(stored, "Valid") is is_valid
    assert read_status(status).is_true(ConditionType.VALID) is is_valid


def test_a_condition_that_does_not_exist_is_empty() -> None:
    assert stored_condition({"status": {"conditions": [VALID]}}, "Valid") == VALID
    assert stored_condition({"status": {"conditions": [VALID]}}, "Running") == {}
    assert read_status({"conditions": [VALID]}).condition(ConditionType.RUNNING) is None
