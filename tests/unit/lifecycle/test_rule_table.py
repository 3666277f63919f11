"""Every rule, with whatever is known of the job's plan and of its run folder: the action that follows."""

import copy
from collections.abc import Callable

import pytest

from finetune_contract import ExitCode, Stage
from finetune_operator.api import Reason
from finetune_operator.api.timestamps import stamp
from finetune_operator.ledger.month import Month, MonthlyBudget
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.decision import Decision
from finetune_operator.lifecycle.observation import ReadFailure, TakeoverRecord
from tests.unit.lifecycle import states
from tests.unit.lifecycle.test_limits import until_placed
from tests.unit.lifecycle.test_refused_pods import in_half, say, two_hosts
from tests.unit.lifecycle.test_stops import FOLDERS, HOUR, PLANS
from tests.unit.lifecycle.test_takeover import interrupted, resumed, second
from tests.unit.lifecycle.world import World, job, profile

pytestmark = pytest.mark.slow


def training(seconds: float = 60, **spec: object) -> World:
    world = World(job=job(**spec))
    world.train(world.until(Stage.TRAIN), 1)
    world.reconcile()
    world.wait(seconds)
    return world


def between_stages(seconds: float = 60, **spec: object) -> World:
    """Convert has succeeded, and training is to start."""
    world = World(job=job(**spec))
    name = world.until(Stage.CONVERT)
    world.wait(seconds)
    world.reconcile()
    world.succeed(name)
    return world


def edited(world: World, **spec: object) -> World:
    world.edit(**spec)
    return world


def deleted() -> World:
    world = training()
    world.job["metadata"]["deletionTimestamp"] = stamp(world.now)
    return world


def beside_others(world: World) -> World:
    """The trainer has ended, and a container that others have added keeps its pod."""
    (pod,) = world.pods_of(world.live()[0])
    end = {"exitCode": 1, "reason": "Error", "startedAt": stamp(world.now), "finishedAt": stamp(world.now)}
    (trainer,) = pod["status"]["containerStatuses"]
    proxy = {**trainer, "name": "istio-proxy", "state": {"running": {"startedAt": stamp(world.now)}}}
    pod["status"]["containerStatuses"] = [{**trainer, "state": {"terminated": end}}, proxy]
    world.wait(60)
    return world


def silent(stage: Stage, seconds: float) -> World:
    world = states.at(stage)
    world.wait(seconds)
    return world


def exported() -> World:
    world = states.at(Stage.EXPORT)
    world.succeed(world.live()[0])
    return world


def preflight_ended(code: int = 0, **spec: object) -> World:
    world = World(job=job(**spec))
    name = world.until(Stage.PREFLIGHT)
    world.fail(name, code) if code else world.succeed(name)
    return world


def stopped(**spec: object) -> World:
    """What ran has saved and ended."""
    world = edited(training(), **spec)
    world.reconcile()
    world.stop(world.live()[0])
    return world


def over_budget() -> World:
    """The budget is exhausted, and training has ended for it."""
    world = training(HOUR, budget={"maxChipHours": 1})
    world.reconcile()
    world.stop(world.live()[0])
    return world


def blind() -> World:
    """Training has ended because its progress could not be read, which still holds."""
    world = training(hangPolicy={"blindSeconds": 60})
    world.progress_unknown = ReadFailure(reason=Reason.RECORD_MALFORMED, message="progress.json is damaged.")
    world.reconcile()
    world.wait(61)
    world.reconcile()
    world.stop(world.live()[0])
    return world


def paused() -> World:
    world = between_stages()
    world.paused = True
    return world


def unstarted() -> World:
    """The plan of a cancelled job is stored, and nothing of it has been created."""
    world = states.admitted()
    world.jobsets.clear()
    world.job["status"] = {"observedGeneration": -1}
    return edited(world, cancel=True)


def used_in_month(world: World, used: float | None) -> World:
    """The namespace has used that many of 10 chip hours in the month; None: unknown."""
    world.budget = lambda _, now: MonthlyBudget(profile="local", month=Month.of(now), limit=10, recorded=used)
    return world


def resuming() -> World:
    """The plan is stored of a job that is to continue in the folder of one that is deleted."""
    world = resumed(interrupted(), second())
    world.reconcile()
    return world


def taken(world: World) -> World:
    """Another job has taken the run folder over."""
    other = TakeoverRecord(uid="another-uid", job="other", namespace="team-a", first=dict.fromkeys(Stage, 2))
    world.takeovers = [other]
    return world


def without_capacity() -> World:
    """Training has waited for the nodes of its only flavor, and has ended for it."""
    world = World(job=job(preRunningDeadlineSeconds=600))
    name = until_placed(world, Stage.TRAIN)
    world.wait(601)
    world.reconcile()
    world.lose(name)
    return world


def pods_refused(seconds: float) -> World:
    """The API server has refused one of two pods of training for that time."""
    world = two_hosts()
    name = in_half(world)
    world.reconcile()
    world.wait(seconds)
    say(world, name)
    return world


def pods_let_go() -> World:
    world = pods_refused(125)
    world.reconcile()
    world.lose(world.live()[0])
    return world


def beyond_limits() -> World:
    """Preflight has counted more steps than the profile allows."""
    limits = [{"path": "hyperparameters.steps", "max": 10}]
    world = World(job=job(hyperparameters={"epochs": 1}), profiles=[profile(constraints={"limits": limits})])
    world.succeed(world.until(Stage.PREFLIGHT))
    return world


#: By rule: the world in which it decides if everything is known; then the first letter of the action for each of
#: ``FOLDERS``, if the plan is known, if the spec is refused in its present form, and if the plan cannot be used; and
#: that for a lost plan, without which no run folder is read.
RULES: dict[str, tuple[Callable[[], World], str, str, str, str]] = {
    "deleted": (deleted, "DDDDDD", "DDDDDD", "DDDDDD", "D"),
    "ended": (states.succeeded, "FFFFFF", "FFFFFF", "FFFFFF", "F"),
    "retried": (lambda: edited(states.failed(), retry={"generation": 1}), "AFFFFA", "AFFFFA", "FFFFFF", "F"),
    "cancelled unstarted": (unstarted, "FFFFFF", "FFFFFF", "WFFFWW", "F"),
    "takeover": (resuming, "AWWWAA", "AWWWAA", "WWWWWW", "A"),
    "suspended": (lambda: edited(training(), suspend=True), "DDDDDD", "DDDDDD", "DDDDDD", "D"),
    "cancelled": (lambda: edited(training(), cancel=True), "DDDDDD", "DDDDDD", "DDDDDD", "D"),
    "deadline": (lambda: training(HOUR, activeDeadlineSeconds=600), "DDDDDD", "DDDDDD", "DDDDDD", "D"),
    "budget": (lambda: training(HOUR, budget={"maxChipHours": 1}), "DDDDDD", "DDDDDD", "DDDDDD", "D"),
    "beside others": (lambda: beside_others(training()), "DDDDDD", "DDDDDD", "DDDDDD", "D"),
    "month used up": (lambda: used_in_month(training(), 11), "DDDDDD", "DDDDDD", "DDDDDD", "D"),
    "month unknown": (lambda: used_in_month(training(), None), "WWWDWW", "WWWDWW", "WWWWWW", "W"),
    "folder taken": (lambda: taken(training()), "DWWDDD", "DWWDDD", "WWWWWW", "W"),
    "pods refused": (lambda: pods_refused(125), "DWWDWD", "DWWDWD", "WWWWWW", "W"),
    "pods refused for a moment": (lambda: pods_refused(60), "WWWDWW", "WWWDWW", "WWWWWW", "W"),
    "runs": (training, "WWWDWW", "WWWDWW", "WWWWWW", "W"),
    "hung": (lambda: training(3 * HOUR), "DWWDWW", "DWWDWW", "WWWWWW", "W"),
    "stage timeout": (lambda: silent(Stage.CONVERT, 30 * HOUR), "DDDDDW", "DDDDDW", "WWWWWW", "W"),
    "succeeded": (exported, "FWWWWF", "FWWWWF", "WWWWWW", "W"),
    "failed": (lambda: preflight_ended(ExitCode.BAD_REQUEST), "FWWWWF", "FWWWWF", "WWWWWW", "W"),
    "planned": (lambda: preflight_ended(planOnly=True), "FWWWWF", "FWWWWF", "WWWWWW", "W"),
    "cancelled, nothing runs": (lambda: stopped(cancel=True), "FWWWWF", "FWWWWF", "WWWWWW", "W"),
    "suspended, nothing runs": (lambda: stopped(suspend=True), "WWWWWW", "WWWWWW", "WWWWWW", "W"),
    "deadline, nothing runs": (
        lambda: between_stages(HOUR, activeDeadlineSeconds=600),
        "FWWWWF",
        "WWWWWW",
        "WWWWWW",
        "W",
    ),
    "beyond limits": (beyond_limits, "FWWWWF", "FWWWWF", "WWWWWW", "W"),
    "no capacity": (without_capacity, "FWWWWF", "WWWWWW", "WWWWWW", "W"),
    "month used up, nothing runs": (
        lambda: used_in_month(between_stages(), 11),
        "WWWWWW",
        "WWWWWW",
        "WWWWWW",
        "W",
    ),
    "month unknown, nothing runs": (
        lambda: used_in_month(between_stages(), None),
        "WWWWWW",
        "WWWWWW",
        "WWWWWW",
        "W",
    ),
    "folder taken, nothing runs": (lambda: taken(between_stages()), "WWWWWW", "WWWWWW", "WWWWWW", "W"),
    "pods refused, nothing runs": (pods_let_go, "WWWWWW", "WWWWWW", "WWWWWW", "W"),
    "budget, nothing runs": (over_budget, "WWWWWW", "WWWWWW", "WWWWWW", "W"),
    "progress unknown, nothing runs": (blind, "WWWWWW", "WWWWWW", "WWWWWW", "W"),
    "paused": (paused, "WWWWWW", "WWWWWW", "WWWWWW", "W"),
    "retried later": (lambda: preflight_ended(ExitCode.UNAVAILABLE), "WWWWWW", "WWWWWW", "WWWWWW", "W"),
    "starts": (between_stages, "CWWWWC", "WWWWWW", "WWWWWW", "W"),
}


def decided(world: World) -> Decision:
    """Returns the decision with the details that a first one requests."""
    observation = world.observe()
    decision = decide(observation)
    if decision.details is None:
        return decision
    return decide(world.with_details(observation, decision.details))


def refuse(world: World) -> None:
    world.edit(engineOverrides={"nonsense": "1"})


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_decides_with_any_plan_and_run_folder(rule: str) -> None:
    begun, known, refused, unusable, lost = RULES[rule]
    expected = {"known": known, "refused": refused, "lost": lost * len(FOLDERS)}
    found: dict[str, str] = {}
    world = begun()
    for plan, change in {**PLANS, "refused": refuse}.items():
        found[plan] = ""
        for folder in FOLDERS:
            other = copy.deepcopy(world)
            change(other)
            FOLDERS[folder](other)
            found[plan] += type(decided(other).action).__name__[0]
    assert found == {plan: expected.get(plan, unusable) for plan in found}
