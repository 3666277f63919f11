"""What two statuses differ in: each change is found once, and nothing that stays is one."""

from typing import Any

import pytest

from finetune_contract import FailureClass, Stage
from finetune_operator.api import FineTuneJobStatus, Phase
from finetune_operator.lifecycle.changes import changes
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.status.events import job_events

TIME = "2026-11-21T12:00:00Z"


def condition(status: str, reason: str = "R", kind: str = "Valid") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "M",
        "observedGeneration": 1,
        "lastTransitionTime": TIME,
    }


def attempt(number: int, failure_class: str | None = None, reason: str = "R") -> dict[str, Any]:
    record = {"stage": "Train", "attempt": number, "reason": reason}
    return record if failure_class is None else record | {"class": failure_class}


def status(
    *conditions: dict[str, Any], history: list[dict[str, Any]] | None = None, **fields: Any
) -> FineTuneJobStatus:
    attempts = {"attempts": {"total": len(history), "history": history}} if history else {}
    return read_status({"observedGeneration": 1, "conditions": list(conditions), **attempts, **fields})


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (None, condition("Unknown"), True),
        (condition("True"), condition("True"), False),
        (condition("True", "Checked"), condition("True", "Accepted"), False),
        (condition("False", "InvalidSpec"), condition("False", "PolicyViolation"), True),
        (condition("Unknown", "NotStarted"), condition("Unknown", "InProgress"), True),
        (condition("Unknown"), condition("True"), True),
        (condition("True"), condition("False"), True),
    ],
)
def test_a_condition_changes_with_its_status_or_with_why_it_is_not_true(
    before: dict[str, Any] | None, after: dict[str, Any], changed: bool
) -> None:
    found = changes(status(*([before] if before else [])), status(after)).conditions
    assert [change.after.reason for change in found] == ([after["reason"]] if changed else [])


def test_an_attempt_that_kueue_evicts_twice_ends_twice_and_then_once_more() -> None:
    before = status(history=[attempt(1), attempt(2, "Quota")])
    after = status(history=[attempt(1), attempt(2, "Quota"), attempt(2, "Quota"), attempt(2, "User")])
    found = changes(before, after)
    assert [(end.failure_class, end.number) for end in found.attempts] == [
        (FailureClass.QUOTA, 2),
        (FailureClass.USER, 1),
    ]
    # The text of the second eviction's Event is that of the first.
    assert [event.since for event in job_events(found)] == ["2", ""]
    assert changes(after, after).attempts == ()


def test_a_stage_ends_once_with_the_time_since_its_first_attempt() -> None:
    running = {"name": "Train", "phase": "Running", "startTime": TIME}
    ended = running | {"phase": "Succeeded", "completionTime": "2026-11-21T12:01:30Z"}
    (end,) = changes(status(stages=[running]), status(stages=[ended])).stages
    assert (end.stage.name, end.seconds) == (Stage.TRAIN, 90.0)
    assert changes(status(stages=[ended]), status(stages=[ended])).stages == ()


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        (None, "Running", None),
        ("Running", "Failed", Phase.FAILED),
        ("Failed", "Failed", None),
        ("Failed", "Recovering", None),
        (None, "Planned", Phase.PLANNED),
    ],
)
def test_a_job_ends_once(before: str | None, after: str, result: Phase | None) -> None:
    earlier = status(**({"phase": before} if before else {}))
    assert changes(earlier, status(phase=after)).result is result
