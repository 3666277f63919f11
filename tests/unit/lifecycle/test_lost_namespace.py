"""A namespace that could not be observed for a while: its chips count, whatever tenants have deleted meanwhile."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api.timestamps import parse
from finetune_operator.ledger.job_usage import counted_on, job_usage
from finetune_operator.ledger.month import Month
from finetune_operator.ledger.month_usage import MonthUsage
from finetune_operator.lifecycle.accounting.records import closing_records
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.status.profile import profile_status
from tests.unit.lifecycle.world import World, job, profile

HOUR = 3600
CHIPS = 4
NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def training(**spec: Any) -> tuple[World, str]:
    world = World(job=job(**spec))
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    world.reconcile()
    return world, name


def hours(world: World) -> float:
    return float(world.status["cost"]["chipHours"])


def stored(world: World) -> dict[str, Any]:
    return {**world.job, "status": world.status}


@pytest.mark.parametrize("traces", ["all", "no JobSet", "nothing"])
def test_what_was_at_work_counts_until_the_namespace_is_back(traces: str) -> None:
    world, name = training()
    before, at = hours(world), parse(world.status["activeTime"]["asOf"])
    if traces != "all":
        world.wait(60)
        world.lose(name)
    if traces == "nothing":
        world.attempts.clear()
        world.progress = None
    world.wait(10 * HOUR)
    world.unobserved_until = world.now
    world.reconcile()
    lost = (world.now - at).total_seconds() / HOUR
    assert hours(world) == pytest.approx(before + CHIPS * lost, abs=0.01)
    # It counts once: later reports are newer than the loss.
    world.reconcile()
    assert hours(world) == pytest.approx(before + CHIPS * lost, abs=0.01)


def test_a_budget_that_is_used_up_meanwhile_stops_the_job_at_once() -> None:
    world, name = training(budget={"maxChipHours": 20})
    world.wait(60)
    world.lose(name)
    world.wait(10 * HOUR)
    world.unobserved_until = world.now
    for _ in range(3):
        world.reconcile()
    assert world.condition("WithinBudget")["status"] == "False"
    assert world.live() == []


def test_a_job_that_held_no_chips_uses_none() -> None:
    world = World()
    world.until(Stage.CONVERT)
    world.reconcile()
    world.wait(10 * HOUR)
    world.unobserved_until = world.now
    world.reconcile()
    assert float(world.status.get("cost", {}).get("chipHours", 0)) == 0


def test_an_edit_to_a_smaller_slice_leaves_the_chips_of_the_running_attempt_at_work() -> None:
    world, name = training(resources={"tpu": "v6e-8", "chipsPerHost": 4})
    world.edit(resources={"tpu": "v6e-4"})
    world.train(name, 20)
    world.reconcile()
    assert world.status["resolved"]["resources"]["chips"] == 4
    used = job_usage(stored(world))
    assert used is not None
    assert used.chips == 8


def test_without_a_loss_nothing_is_added() -> None:
    world, _ = training()
    document = stored(world)
    assert counted_on(document, None) is document
    assert counted_on(document, parse(world.status["activeTime"]["asOf"])) is document


def test_a_job_that_is_found_deleted_is_recorded_until_then() -> None:
    world, _ = training()
    before, at = hours(world), parse(world.status["activeTime"]["asOf"])
    found = at + timedelta(hours=100)
    document = counted_on(stored(world), found)
    (record,) = [each for each in closing_records(Job.parse(document), found) if each.chip_hours]
    assert float(record.chip_hours) == pytest.approx(before + CHIPS * 100, abs=0.001)
    assert record.day == found.date()
    assert closing_records(Job.parse(stored(world)), found) != closing_records(Job.parse(document), found)


def test_the_usage_of_the_month_grows_in_a_lost_namespace() -> None:
    world, _ = training()
    usage, at = MonthUsage(), parse(world.status["activeTime"]["asOf"])
    usage.complete("team-a", Month.of(at))
    usage.job(stored(world))
    (still,) = usage.totals(Month.of(at))
    (lost,) = usage.totals(Month.of(at), lambda _: at + timedelta(hours=5))
    assert float(lost.chip_hours - still.chip_hours) == pytest.approx(CHIPS * 5)


def condition(status: Any) -> str:
    found = (each for each in status.conditions if each.type == "NamespaceLost")
    return next((each.message for each in found), "")


def test_profiles_of_the_namespace_report_its_loss() -> None:
    def told(made: dict[str, Any], lost: dict[str, int], release: str = "ft/one") -> Any:
        return profile_status(made, used_by=None, now=NOW, lost=lost, release=release)

    mine, other = profile(namespaces=["team-b"]), profile(namespaces=["team-a"])
    message = condition(told(mine, {"team-b": 16, "team-c": 0}))
    assert "ft/one cannot watch team-b (16 chips were at work)." in message
    assert "team-c" not in message
    assert told(mine, {"team-b": 16, "team-c": 0}).lost_namespaces == ("team-b",)
    assert condition(told(other, {"team-b": 16})) == ""
    assert "team-b" in condition(told(profile(), {"team-b": 16}))
    # A release that has lost nothing removes its own report, and leaves that of another one.
    mine["status"] = told(mine, {"team-b": 16}).to_document()
    assert condition(told(mine, {}, "ft/two")) == message
    assert told(mine, {}, "ft/two").lost_namespaces == ("team-b",)
    assert (condition(told(mine, {})), told(mine, {}).lost_namespaces) == ("", None)
    # The message is cut, the list is not.
    names = {f"team-{number}-{'x' * 40}": 1 for number in range(100)}
    assert told(profile(), names).lost_namespaces == tuple(names)
