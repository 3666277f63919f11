"""The state table of the API, row by row; what kstatus and Argo CD say of the same jobs is tested beside them."""

import pytest

from finetune_contract import Stage
from finetune_operator.api import ConditionType
from tests.unit.lifecycle.states import STATES, UNSEEN, reach, waits_end
from tests.unit.lifecycle.world import World

SEEN = [name for name, (_, row) in STATES.items() if row is not UNSEEN]


@pytest.mark.parametrize("state", SEEN)
def test_the_conditions_are_all_there_and_say_what_the_table_says(state: str) -> None:
    row, found = STATES[state][1], reach(state)
    conditions = {each["type"]: each for each in found["status"]["conditions"]}
    assert list(conditions) == list(ConditionType)
    assert {each["observedGeneration"] for each in conditions.values()} <= {
        *range(1, found["metadata"]["generation"] + 1)
    }
    said = [conditions[kind]["status"] for kind in ("Reconciling", "Stalled", "Succeeded", "Finished")]
    assert said == [row.reconciling, row.stalled, row.succeeded, row.finished]
    assert (conditions["Suspended"]["status"] == "True") == (row.argo == "Suspended")
    assert conditions["Reconciling"]["observedGeneration"] == found["metadata"]["generation"]


@pytest.mark.parametrize("state", STATES)
def test_kubectl_wait_ends_when_the_job_has_and_never_on_what_an_older_generation_said(state: str) -> None:
    row, found = STATES[state][1], reach(state)
    assert waits_end(found, "Succeeded") == (row.succeeded == "True")
    assert waits_end(found, "Finished") == (row.finished == "True")


def test_every_suspension_is_told_though_all_say_the_same() -> None:
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
    told = [notice for notice in world.events if notice.reason == "SuspendedByUser"]
    assert len(told) == 2


def test_a_job_that_ended_does_not_say_that_its_spec_is_other_than_it_is() -> None:
    world = World()
    world.to_the_end()
    world.edit(suspend=True)
    world.reconcile()
    assert "spec.suspend" not in world.condition("Suspended")["message"]


def test_a_refusal_leaves_standing_what_the_status_knew() -> None:
    before, after = reach("training")["status"], reach("plan lost together with its profile")["status"]
    for known in ("resolved", "stages", "attempts", "startTime"):
        assert after[known] == before[known]
