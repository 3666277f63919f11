"""What must stop, stops, and for the same reason, whatever is known of the job's plan and of its run folder."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import CONTRACT_VERSION, ContractVersion, Failure, Stage
from finetune_operator.api import Reason
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.pending_records import pending_records
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.observation import AttemptFiles, ReadFailure
from finetune_operator.planning import StoredPlan, read_stored_plan, render_stored_plan
from tests.unit.lifecycle.world import World, job, profile
from tests.unit.lifecycle.writes import writes

pytestmark = pytest.mark.slow

HOUR = 3600
TRAIN = AttemptKey(Stage.TRAIN, 1)
TOO_MANY = ReadFailure(reason=Reason.TOO_MANY_OBJECTS, message="the job has more than 10,000 pods.")


def with_plan(world: World, change: Callable[[StoredPlan], StoredPlan]) -> None:
    assert world.config_map is not None
    plan = change(read_stored_plan(world.config_map))
    world.config_map = render_stored_plan(plan)
    for jobset in world.jobsets.values():
        jobset["metadata"]["annotations"]["tpu-finetune.dev/plan"] = plan.digest


def lose_plan(world: World) -> None:
    """It cannot be made again: the profile has changed."""
    world.config_map = None
    world.profiles = [profile(defaults={"hyperparameters": {"steps": 7}})]


def take_plan(world: World) -> None:
    with_plan(world, lambda plan: replace(plan, job=plan.job.model_copy(update={"uid": "another-uid"})))


def date_plan(world: World) -> None:
    other = ContractVersion.parse(f"{CONTRACT_VERSION.major + 1}.0")
    with_plan(world, lambda plan: replace(plan, contract=other))


def unreadable(why: str | ReadFailure) -> Callable[[World], None]:
    return lambda world: setattr(world, "unreadable", why)


def lose_progress(world: World) -> None:
    why = "gs://artifacts/x/train/progress.json is no Progress."
    world.progress_unknown = ReadFailure(reason=Reason.RECORD_MALFORMED, message=why)
    world.progress = None


def damage(world: World) -> None:
    """A record of an earlier stage that no decision can evaluate."""
    failure = Failure(code=69, reason="Lost", message="x").model_copy(update={"seconds": "an hour"})
    world.attempts[AttemptKey(Stage.PREFLIGHT, 1)] = AttemptFiles(failure=failure)


PLANS: dict[str, Callable[[World], None]] = {
    "known": lambda _: None,
    "lost": lose_plan,
    "of another job": take_plan,
    "of another major version": date_plan,
}
FOLDERS: dict[str, Callable[[World], None]] = {
    "known": lambda _: None,
    "no store": unreadable("gs://artifacts: no answer in 20 s"),
    "this one unreadable": unreadable(ReadFailure(reason=Reason.STORAGE_PERMISSION_DENIED, message="403.")),
    "too many objects": unreadable(TOO_MANY),
    "damaged record": damage,
    "progress unknown": lose_progress,
}
#: Spec, edit, and the reason in the attempt's record.
STOPS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "suspended": ({}, {"suspend": True}, "Suspended"),
    "cancelled": ({}, {"cancel": True}, "Cancelled"),
    "deadline": ({"activeDeadlineSeconds": 600}, {}, "DeadlineExceeded"),
    "budget": ({"budget": {"maxChipHours": 1}}, {}, "BudgetExhausted"),
    "suspended beyond the deadline": ({"activeDeadlineSeconds": 600}, {"suspend": True}, "Suspended"),
    "deadline before budget": (
        {"activeDeadlineSeconds": 600, "budget": {"maxChipHours": 1}},
        {},
        "DeadlineExceeded",
    ),
}


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("stop", STOPS)
def test_what_must_stop_stops(stop: str, plan: str, folder: str) -> None:
    spec, edit, reason = STOPS[stop]
    world = World(job=job(**spec))
    name = world.until(Stage.TRAIN)
    world.train(name, 1)
    world.reconcile()
    PLANS[plan](world)
    FOLDERS[folder](world)
    world.wait(HOUR)
    if edit:
        world.edit(**edit)
    decision = decide(world.observe())
    made = writes(decision)
    assert [deletion.name for deletion in made.deletions] == [name]
    # in the run folder, or in the status until that can take it
    records = dict(made.records) | dict(pending_records(decision.status))
    assert records[TRAIN].reason == reason


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != "too many objects"])
@pytest.mark.parametrize("plan", PLANS)
def test_a_stage_whose_trainer_has_ended_holds_no_slice_for_other_containers(
    plan: str, folder: str, code: int
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 1)
    world.reconcile()
    PLANS[plan](world)
    FOLDERS[folder](world)
    (pod,) = world.pods_of(name)
    end = {"exitCode": code, "reason": "Error", "startedAt": stamp(world.now), "finishedAt": stamp(world.now)}
    (trainer,) = pod["status"]["containerStatuses"]
    proxy = {**trainer, "name": "istio-proxy", "state": {"running": {"startedAt": stamp(world.now)}}}
    pod["status"]["containerStatuses"] = [{**trainer, "state": {"terminated": end}}, proxy]
    world.wait(60)
    made = writes(decide(world.observe()))
    assert [deletion.name for deletion in made.deletions] == [name]


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan != "known"])
def test_what_runs_without_a_usable_plan_is_reported_and_counted(plan: str) -> None:
    world = World(job=job(budget={"maxChipHours": 400}))
    name = world.until(Stage.TRAIN)
    world.train(name, 1)
    world.reconcile()
    PLANS[plan](world)
    before = float(world.status["cost"]["chipHours"])
    for _ in range(10):
        world.wait(HOUR)
        world.reconcile()
    assert world.condition("Running")["status"] == "True"
    assert world.status["activeTime"]["chips"] == 4
    hours = float(world.status["cost"]["chipHours"])
    assert hours == pytest.approx(before + 40, abs=0.1)
    assert float(world.status["cost"]["budgetRemaining"]) == pytest.approx(400 - hours, abs=0.01)


@pytest.mark.parametrize("plan", PLANS)
def test_what_runs_while_its_namespace_cannot_be_observed_counts_whatever_is_known_of_its_plan(
    plan: str,
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 1)
    world.reconcile()
    PLANS[plan](world)
    before = float(world.status["cost"]["chipHours"])
    world.wait(60)
    for pod in world.pods_of(name):
        del world.pods[pod["metadata"]["name"]]
    world.wait(10 * HOUR)
    world.unobserved_until = world.now
    world.reconcile()
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(before + 40, abs=0.1)


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != "too many objects"])
@pytest.mark.parametrize("plan", PLANS)
def test_what_may_run_runs_and_nothing_is_started_beside_it(plan: str, folder: str) -> None:
    world = World(job=job(activeDeadlineSeconds=6 * HOUR, budget={"maxChipHours": 40}))
    world.train(world.until(Stage.TRAIN), 1)
    world.reconcile()
    PLANS[plan](world)
    FOLDERS[folder](world)
    world.wait(60)
    made = writes(decide(world.observe()))
    assert (made.deletions, made.jobset) == ((), None)
