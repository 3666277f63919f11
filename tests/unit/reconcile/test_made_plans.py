"""A plan is made once for what it follows from, and again when any of it has changed."""

from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from finetune_contract import Stage
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.planning import Refused, StoredPlan, admit
from finetune_operator.planning.admission import CheckedProfile, Planner
from finetune_operator.reconcile.made_plans import MadePlans
from tests.unit.lifecycle.world import UID, World, job, profile
from tests.unit.planning.test_choice import ON_DEMAND, found

PLANNED = "finetune_operator.planning.admission.replan"
OFFER = profile(flavors=[ON_DEMAND], currency="USD", queue={"allowJobLabels": True})


class RememberingWorld(World):
    """A world whose operator remembers plans."""

    def observe(self) -> Observation:
        return replace(super().observe(), planner=self.made)

    made: Any = None


def remembering(**spec: Any) -> RememberingWorld:
    world = RememberingWorld(job=job(**spec))
    world.made = MadePlans()
    return world


@pytest.fixture
def stored() -> StoredPlan:
    return admit(job(resources={}), [OFFER]).stored


def test_the_admitted_plan_is_that_of_the_first_jobset() -> None:
    world = remembering()
    with patch(PLANNED) as planned:
        world.admit()
    planned.assert_not_called()
    assert world.live() == ["support-bot-prep-1"]


def test_a_job_that_no_one_edits_is_planned_once() -> None:
    world = remembering()
    with patch(PLANNED) as planned:
        world.to_the_end()
    planned.assert_not_called()
    assert world.status["phase"] == "Succeeded"


CHANGES: dict[str, Any] = {
    "the spec": lambda wanted: wanted["spec"].update(activeDeadlineSeconds=3600),
    "a label": lambda wanted: wanted["metadata"].update(labels={"kueue.x-k8s.io/queue-name": "research"}),
    "another job": lambda wanted: wanted["metadata"].update(uid=UID[::-1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_job_says_is_planned_again(change: str, stored: StoredPlan) -> None:
    made, wanted = MadePlans(), job(resources={})
    plan, _ = made.plan(wanted, stored, {}, None)
    wanted["metadata"].update(resourceVersion="2", annotations={"note": "x"}, managedFields=[])
    assert made.plan(deepcopy(wanted), stored, {}, None)[0] is plan
    CHANGES[change](wanted)
    again, refused = made.plan(wanted, stored, {}, None)
    assert again is not plan
    assert refused is None


def test_what_was_found_and_tried_is_planned_again(stored: StoredPlan) -> None:
    made, wanted = MadePlans(), job(resources={})
    plan, _ = made.plan(wanted, stored, {}, None)
    record = found("v6e-8", "v6e-4", plan=plan)
    chosen, _ = made.plan(wanted, stored, {}, record)
    assert chosen.placement.shape.name == "v6e-8"
    assert made.plan(wanted, stored, {}, record.model_copy())[0] is chosen
    assert made.plan(wanted, stored, {}, None)[0] is plan, "each decision needs both"
    tried, _ = made.plan(wanted, stored, {"ondemand": 1}, record)
    assert tried is not chosen
    other = found("v6e-16", "v6e-4", "v6e-8", plan=plan)
    assert made.plan(wanted, stored, {"ondemand": 1}, other)[0].placement.shape.name == "v6e-16"
    assert len(made._plans) == 2


def test_another_stored_plan_is_planned_again(stored: StoredPlan) -> None:
    made, wanted = MadePlans(), job(resources={})
    plan, _ = made.plan(wanted, stored, {}, None)
    other = replace(stored, spec={**stored.spec, "cache": "Refresh"})
    assert made.plan(wanted, other, {}, None)[0].digest == other.digest != plan.digest


def test_a_refused_edit_is_judged_once() -> None:
    world = remembering()
    world.until(Stage.TRAIN)
    world.edit(engineOverrides={"nonsense": "1"})
    world.reconcile()
    assert world.condition("Valid")["status"] == "False"
    ((_, (_, refused)), *_) = world.made._plans.values()
    assert refused.__traceback__ is None, "it holds what was planned"
    with patch(PLANNED) as planned:
        world.reconcile()
    planned.assert_not_called()
    assert world.condition("Valid")["status"] == "False"
    world.edit(engineOverrides={})
    world.reconcile()
    assert world.condition("Valid")["status"] == "True"


def test_what_a_profile_implies_is_derived_once_per_version() -> None:
    made, offer = MadePlans(), deepcopy(OFFER)
    first = made.checked(offer)
    assert first == CheckedProfile.of(offer)
    assert made.checked(deepcopy(offer)) is first
    offer["metadata"]["resourceVersion"] = "2"
    offer["spec"]["storage"] = {"artifacts": "gs://other"}
    admission = admit(job(), [offer], checked=made.checked)
    assert admission.stored.run_folder.uri.startswith("gs://other")
    del offer["spec"]["storage"]
    offer["metadata"]["resourceVersion"] = "3"
    with pytest.raises(Refused):
        made.checked(offer)


def test_large_jobs_are_not_remembered() -> None:
    """Tenants decide how large their jobs are, and thousands of plans are remembered."""
    world = remembering(evaluation={"prompts": [f"{number:04}" + "\u4e2d" * 2_000 for number in range(16)]})
    world.until(Stage.TRAIN)
    assert len(world.made._plans) == 0


def test_only_the_newest_plans_of_a_job_are_remembered() -> None:
    world = remembering()
    world.until(Stage.TRAIN)
    before = len(world.made._plans)
    for steps in (40, 50, 60):
        world.edit(checkpointing={"everySteps": steps})
        world.reconcile()
    assert len(world.made._plans) == before <= 2


def test_the_plans_of_an_ended_job_are_dropped() -> None:
    world = remembering()
    world.to_the_end()
    world.made.forget(UID)
    world.reconcile()
    assert len(world.made._plans) == 0


def test_the_least_recently_used_plan_is_dropped(stored: StoredPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finetune_operator.reconcile.made_plans._MOST_PLANS", 2)
    made, jobs = MadePlans(), [job(resources={}) for _ in range(3)]
    for number, wanted in enumerate(jobs):
        wanted["metadata"]["uid"] = str(number)
    first, _ = made.plan(jobs[0], stored, {}, None)
    second, _ = made.plan(jobs[1], stored, {}, None)
    assert made.plan(jobs[0], stored, {}, None)[0] is first
    made.plan(jobs[2], stored, {}, None)
    assert made.plan(jobs[0], stored, {}, None)[0] is first
    assert made.plan(jobs[1], stored, {}, None)[0] is not second


def test_a_planner_without_memory_plans_each_time(stored: StoredPlan) -> None:
    planner, wanted = Planner(), job(resources={})
    one, other = (planner.plan(wanted, stored, {}, None)[0] for _ in range(2))
    assert one == other
    assert one is not other
