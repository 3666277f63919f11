"""Each condition that people want to know at once has one notice, the same from every version of the job."""

from datetime import UTC, datetime
from typing import Any

import pytest

from finetune_operator.lifecycle.job_notices import Notice, notices

AGES_AGO = datetime(2026, 1, 1, tzinfo=UTC)
TIME = "2026-11-21T12:00:00Z"


def job(*conditions: tuple[str, str], time: str = TIME, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "demo", "uid": "uid-demo", "generation": 2},
        "status": {
            "conditions": [
                {"type": kind, "status": value, "reason": "R", "message": "M", "lastTransitionTime": time}
                for kind, value in conditions
            ],
            **status,
        },
    }


def of(found: dict[str, Any], since: datetime = AGES_AGO) -> list[Notice]:
    return list(notices(found, since=since))


@pytest.mark.parametrize(
    ("conditions", "kinds"),
    [
        ([], []),
        ([("Valid", "Unknown"), ("Finished", "False"), ("WithinBudget", "Unknown")], []),
        ([("Valid", "True"), ("DataReady", "True"), ("Running", "True")], ["admitted"]),
        ([("Valid", "False"), ("Stalled", "True")], ["refused"]),
        ([("Valid", "True"), ("Stalled", "True")], ["admitted", "stalled"]),
        ([("Valid", "True"), ("Suspended", "True"), ("WithinBudget", "False")],
         ["admitted", "suspended", "over-budget"]),
        ([("Valid", "True"), ("GatePassed", "False"), ("Stalled", "True"), ("Finished", "True")],
         ["admitted", "gate-not-met", "ended"]),
    ],
)  # fmt: skip
def test_a_notice_belongs_to_a_condition_that_holds(
    conditions: list[tuple[str, str]], kinds: list[str]
) -> None:
    assert [notice.event["type"] for notice in of(job(*conditions))] == [
        f"dev.tpu-finetune.job.{kind}" for kind in kinds
    ]


def test_a_job_without_a_status_has_none() -> None:
    assert of({"metadata": {"namespace": "team", "name": "demo", "uid": "u"}}) == []


def test_a_notice_is_a_cloud_event_that_says_which_job_and_why() -> None:
    resolved = {"profile": {"name": "gke"}, "runFolder": "gs://runs/team/demo"}
    (notice,) = of(job(("Finished", "True"), phase="Failed", stage="Train", summary="S", resolved=resolved))
    assert notice.event == {
        "specversion": "1.0",
        "id": f"uid-demo/ended/{TIME}",
        "source": "/apis/tpu-finetune.dev/v1alpha1/namespaces/team/finetunejobs/demo",
        "type": "dev.tpu-finetune.job.ended",
        "subject": "team/demo",
        "time": TIME,
        "datacontenttype": "application/json",
        "data": {
            "namespace": "team", "name": "demo", "uid": "uid-demo", "generation": 2, "profile": "gke",
            "runFolder": "gs://runs/team/demo", "phase": "Failed", "stage": "Train", "reason": "R", "message": "M",
            "summary": "S",
        },
    }  # fmt: skip
    # The id is also a header, and part of what is signed, whose parts are separated by dots.
    assert notice.id.isascii()
    assert "." not in notice.id


def test_the_same_transition_has_the_same_id_and_the_next_one_another() -> None:
    first, again, retried = (
        of(job(("Finished", "True"), phase="Failed", time=time))[0].id
        for time in (TIME, TIME, "2026-11-21T13:00:00Z")
    )
    assert first == again != retried


def test_transitions_before_a_time_are_left_out() -> None:
    assert of(job(("Finished", "True")), since=datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)) == []
    assert len(of(job(("Finished", "True")), since=datetime(2026, 11, 21, 12, tzinfo=UTC))) == 1


def test_what_tenants_write_is_cut() -> None:
    (notice,) = of(job(("Finished", "True"), summary="s" * 32_768))
    assert len(notice.event["data"]["summary"]) == 1024
