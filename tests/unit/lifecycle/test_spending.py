"""Budgets: estimated before a slice is claimed, counted while it is held."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import FineTuneJobStatus, InvalidObject, parse_profile
from tests.unit.lifecycle.test_memory import PROVED, Proving
from tests.unit.lifecycle.world import World, job, profile

#: Seconds on the four chips of the job's slice.
ONE_CHIP_HOUR = 900
FLAVOR = {**profile()["spec"]["flavors"][0], "chipHourPrice": 2.00}
PRICED = profile(flavors=[FLAVOR], currency="USD")


def training(budget: dict[str, str], *profiles: Any) -> tuple[World, str]:
    world = World(job=job(budget=budget), profiles=list(profiles) or [profile()])
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    return world, name


def held(world: World, name: str, seconds: float) -> None:
    """Training continues for ``seconds``."""
    world.wait(seconds)
    world.train(name, 20)
    world.reconcile()


@pytest.mark.parametrize(
    ("budget", "profiles"),
    [({"maxChipHours": 1}, ()), ({"maxCost": 2}, (PRICED,))],
    ids=["hours", "money"],
)
def test_an_exhausted_budget_suspends_the_job_until_it_is_raised(
    budget: dict[str, str], profiles: Any
) -> None:
    world, name = training(budget, *profiles)
    held(world, name, ONE_CHIP_HOUR - 5)
    assert world.live() == [name]
    assert world.requeue_after is not None
    assert world.requeue_after <= 5
    assert world.condition("WithinBudget")["reason"] == "WithinBudget"
    held(world, name, 5)
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert world.condition("Suspended")["reason"] == "BudgetExhausted"
    assert world.condition("WithinBudget")["status"] == "False"
    assert f"Raise spec.budget.{next(iter(budget))}:" in world.status["summary"]
    assert world.status["attempts"]["preemption"] == world.status["attempts"]["user"] == 0
    FineTuneJobStatus.model_validate(world.status)
    # Records in the run folder still count after the JobSet is deleted.
    world.reconcile()
    assert world.live() == []
    assert world.status["cost"]["chipHours"] == "1"
    assert world.status["cost"]["budgetRemaining"] == "0"
    assert world.status["cost"].get("amount") == ("2" if profiles else None)

    world.edit(budget=dict.fromkeys(budget, 8))
    world.to_the_end()
    assert "support-bot-train-2" in world.created
    assert world.status["phase"] == "Succeeded"


def test_counted_usage_stays_if_the_trainer_reports_less() -> None:
    """The trainer's record begins after its imports, and a job could repeat this without limit."""
    world, name = training({"maxChipHours": 1})
    held(world, name, ONE_CHIP_HOUR)
    world.stop(name)
    (key,) = (key for key in world.attempts if key.stage is Stage.TRAIN)
    files = world.attempts[key]
    assert files.result is not None
    shorter = files.result.model_copy(update={"started": files.result.finished - timedelta(seconds=880)})
    world.attempts[key] = replace(files, result=shorter)
    world.reconcile()
    assert name not in world.jobsets
    assert world.status["phase"] == "Suspended"
    assert world.live() == []
    assert world.status["cost"]["chipHours"] == "1"


def test_a_held_slice_uses_the_budget_without_records() -> None:
    """Without preflight's record, preflight is due again; the training still runs."""
    world = World(job=job(budget={"maxChipHours": 1}))
    name = world.until(Stage.TRAIN)
    world.attempts = {key: files for key, files in world.attempts.items() if key.stage is Stage.TRAIN}
    world.reconcile()
    assert world.live() == [name]
    world.wait(ONE_CHIP_HOUR + 5)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]


def test_a_budget_can_fail_the_job_instead() -> None:
    world, name = training({"maxChipHours": 1, "onExhausted": "Fail"})
    held(world, name, ONE_CHIP_HOUR)
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert (world.status["failure"]["class"], world.status["failure"]["reason"]) == (
        "User",
        "BudgetExhausted",
    )
    world.edit(budget={"maxChipHours": 3}, retry={"generation": 1})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_usage_of_other_slices_counts_by_their_own_chips() -> None:
    world, name = training({"maxChipHours": 3})
    held(world, name, ONE_CHIP_HOUR)
    world.edit(resources={"tpu": "v6e-8"})
    world.kill(name, 1)
    world.reconcile()
    world.wait(world.requeue_after or 0)
    world.reconcile()
    (second,) = world.live()
    world.run(second)
    held(world, second, ONE_CHIP_HOUR)
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(3.0)
    assert "deletionTimestamp" in world.jobsets[second]["metadata"]


#: Chip hours of PROVED: 100 steps of at least 0.5 s on four chips.
LEAST = 100 * 0.5 * 4 / 3600


def test_training_that_certainly_exceeds_the_budget_does_not_start() -> None:
    world = Proving(job=job(budget={"maxChipHours": round(LEAST * 0.9, 4)}), found=PROVED)
    for _ in range(5):
        world.reconcile()
        for name in world.live():
            world.succeed(name)
    assert world.created == ["support-bot-prep-1"]
    assert world.status["phase"] == "Suspended"
    assert world.condition("WithinBudget")["reason"] == "BudgetTooSmall"
    assert "Training takes at least 0.06" in world.status["summary"]
    world.edit(budget={"maxChipHours": round(LEAST * 1.1, 4)})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_plan_reports_that_the_budget_is_too_small() -> None:
    world = Proving(job=job(budget={"maxChipHours": 0.01}, planOnly=True), found=PROVED)
    world.to_the_end()
    assert world.status["phase"] == "Planned"
    assert world.condition("WithinBudget")["reason"] == "BudgetTooSmall"


def test_exceeding_the_profiles_limit_fails_the_job() -> None:
    limited = profile(constraints={"maxChipHours": 0.01})
    world = Proving(job=job(budget={"maxChipHours": 8}), profiles=[limited], found=PROVED)
    world.to_the_end()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "BudgetTooSmall"
    assert 'constraints.maxChipHours of profile "local" is 0.01' in world.status["failure"]["message"]
    assert "ask its owner to raise it" in world.status["failure"]["suggestion"]


def test_cpu_stages_continue_with_an_exhausted_budget() -> None:
    world = World(job=job(budget={"maxChipHours": 1}, evaluation={}))
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    world.wait(ONE_CHIP_HOUR + 1)
    world.write_success(name)
    world.end_pods(name, 0)
    world.end_jobset(name, "Completed")
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.condition("WithinBudget")["status"] == "False"


def test_a_job_without_a_budget_reports_its_cost() -> None:
    world = World(profiles=[PRICED])
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    held(world, name, ONE_CHIP_HOUR)
    assert world.status["cost"] == {"chipHours": "1", "amount": "2", "currency": "USD"}
    assert world.condition("WithinBudget")["reason"] == "NotRequested"


def test_the_highest_price_gives_a_cost_that_the_status_accepts() -> None:
    most = 10**12
    world, name = training(
        {"maxChipHours": 8}, profile(flavors=[{**FLAVOR, "chipHourPrice": most}], currency="USD")
    )
    held(world, name, ONE_CHIP_HOUR)
    assert world.status["cost"]["amount"] == str(most)
    with pytest.raises(InvalidObject, match=r"chipHourPrice: is .*, may be at most 1000000000000"):
        parse_profile(profile(flavors=[{**FLAVOR, "chipHourPrice": 1e305}], currency="USD"))
