"""The state table of the API, row by row; kstatus and Argo CD are tested with the same jobs elsewhere."""

import pytest

from finetune_contract import Stage
from finetune_operator.api import ConditionType
from tests.unit.lifecycle.states import STATES, UNSEEN, reach, waits_end
from tests.unit.lifecycle.world import World

SEEN = [name for name, (_, row) in STATES.items() if row is not UNSEEN]


@pytest.mark.parametrize("state", SEEN)
def test_the_conditions_match_the_table(state: str) -> None:
    row, found = STATES[state][1], reach(state)
    conditions = {each["type"]: each for each in found["status"]["conditions"]}
    assert list(conditions) == list(ConditionType)
    assert {each["observedGeneration"] for each in conditions.values()} <= {
        *range(1, found["metadata"]["generation"] + 1)
    }
    statuses = [conditions[kind]["status"] for kind in ("Reconciling", "Stalled", "Succeeded", "Finished")]
    assert statuses == [row.reconciling, row.stalled, row.succeeded, row.finished]
    suspended = conditions["Suspended"]["status"] == "True"
    invalid = suspended and conditions["Valid"]["status"] == "False"
    assert (suspended and not invalid) == (row.argo == "Suspended")
    assert not invalid or row.argo == "Degraded"
    assert conditions["Reconciling"]["observedGeneration"] == found["metadata"]["generation"]


@pytest.mark.parametrize("state", STATES)
def test_kubectl_wait_returns_only_for_the_current_generation(state: str) -> None:
    row, found = STATES[state][1], reach(state)
    assert waits_end(found, "Succeeded") == (row.succeeded == "True")
    assert waits_end(found, "Finished") == (row.finished == "True")


def test_each_suspension_has_an_event_despite_equal_messages() -> None:
    world = World()
    for _ in range(2):
        name = world.until(Stage.TRAIN)
        world.edit(suspend=True)
        world.reconcile()
        world.stop(name)
        world.wait(60)
        world.reconcile()
        assert world.status["phase"] == "Suspended"
        world.edit(suspend=False)
        world.wait(60)
    reported = [notice for notice in world.events if notice.reason == "SuspendedByUser"]
    assert len(reported) == 2


def test_the_suspended_condition_of_a_finished_job_omits_spec_suspend() -> None:
    world = World()
    world.to_the_end()
    world.edit(suspend=True)
    world.reconcile()
    assert "spec.suspend" not in world.condition("Suspended")["message"]


def test_a_refusal_keeps_the_earlier_content_of_the_status() -> None:
    before, after = reach("training")["status"], reach("plan lost together with its profile")["status"]
    for known in ("resolved", "stages", "attempts", "startTime"):
        assert after[known] == before[known]
