"""Chip hours and cost add up over all runs, each at its own price, and never decrease."""

from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.observation import AttemptFiles
from tests.unit.lifecycle.test_endings import DISRUPTED
from tests.unit.lifecycle.test_limits import flavors, until_placed, wait_step_by_step
from tests.unit.lifecycle.test_queueing import ADMITTED, BACK, EVICTED, RESERVED, evict, resume
from tests.unit.lifecycle.world import Crash, World, job, profile

pytestmark = pytest.mark.slow

HOUR = 3600
#: The job's slice has four chips.
CHIPS = 4


def hours(world: World) -> float:
    return float(world.status["cost"]["chipHours"])


def amount(world: World) -> float:
    return float(world.status["cost"]["amount"])


def in_queue(**spec: Any) -> tuple[World, str]:
    """Training runs, admitted by its queue."""
    constraints = spec.pop("constraints", {})
    world = World(
        job=job(**spec), profiles=[profile(queue={"localQueue": "team-tpu"}, constraints=constraints)]
    )
    name = world.until(Stage.TRAIN)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.run(name)
    world.reconcile()
    return world, name


def work(world: World, name: str, seconds: float, *, step: int = 10, looks: int = 6) -> None:
    for _ in range(looks):
        world.wait(seconds / looks)
        world.train(name, step)
        world.reconcile()


def unseen_eviction(world: World, name: str, *, saved: bool) -> None:
    """The quota is revoked and assigned again between two reconciles."""
    if saved:
        world.save(name)
    world.hold(name, held=True)
    world.wait(60)
    world.workload(name, RESERVED, ADMITTED, BACK)
    world.hold(name, held=False)
    world.wait(5)
    world.run(name)


@pytest.mark.parametrize("wiped", [False, True], ids=["", "the status is lost"])
def test_every_run_between_evictions_counts(wiped: bool) -> None:
    world, name = in_queue()
    for number in range(1, 9):
        work(world, name, 10 * HOUR, step=number)
        if wiped:
            world.job["status"] = {"observedGeneration": -1}
            world.reconcile()
        assert hours(world) == pytest.approx(number * 10 * CHIPS, rel=1e-3)
        evict(world, name, number)
        resume(world, name)
    world.succeed(name)
    world.to_the_end()
    assert hours(world) == pytest.approx(8 * 10 * CHIPS, rel=1e-3)


def test_the_chip_hour_limit_of_the_profile_covers_several_runs() -> None:
    world, name = in_queue(constraints={"maxChipHours": 100})
    for number in range(1, 9):
        work(world, name, 10 * HOUR, step=number)
        if "deletionTimestamp" in world.jobsets[name]["metadata"]:
            break
        evict(world, name, number)
        resume(world, name)
    assert number == 3
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "BudgetExhausted"


def test_the_running_time_limit_covers_several_runs() -> None:
    world, name = in_queue(activeDeadlineSeconds=25 * HOUR)
    for number in range(1, 9):
        work(world, name, 10 * HOUR, step=number)
        if "deletionTimestamp" in world.jobsets[name]["metadata"]:
            break
        assert world.status["activeTime"]["seconds"] == pytest.approx(number * 10 * HOUR, rel=1e-3)
        evict(world, name, number)
        resume(world, name)
    assert number == 3


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("seen", ["while it runs again", "not at all until it runs again"])
def test_runs_that_end_between_reconciles_count_as_far_as_known(saved: bool, seen: str) -> None:
    world, name = in_queue()
    for number in range(1, 6):
        work(world, name, HOUR, step=number)
        unseen_eviction(world, name, saved=saved)
        if seen == "while it runs again":
            world.reconcile()
    world.reconcile()
    assert hours(world) == pytest.approx(5 * CHIPS, abs=0.2)


def test_several_short_runs_with_overwritten_records_count() -> None:
    world, name = in_queue()
    for _ in range(20):
        world.wait(90)
        world.train(name, 10)
        world.save(name)
        world.reconcile()
        unseen_eviction(world, name, saved=True)
        world.reconcile()
    assert hours(world) == pytest.approx(20 * 90 * CHIPS / HOUR, rel=0.02)


def test_a_run_with_several_records_and_pods_counts_once() -> None:
    world, name = in_queue()
    work(world, name, HOUR)
    stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 1}]}
    world.workload(name, RESERVED, ADMITTED, EVICTED, schedulingStats=stats)
    world.jobsets[name]["spec"]["suspend"] = True
    for _ in range(10):
        world.wait(30)
        world.reconcile()
    world.save(name)
    world.hold(name, held=True)
    world.reconcile()
    for _ in range(3):
        world.wait(HOUR)
        world.reconcile()
    resume(world, name)
    assert hours(world) == pytest.approx((HOUR + 300) * CHIPS / HOUR, rel=1e-3)
    work(world, name, HOUR)
    assert hours(world) == pytest.approx((2 * HOUR + 300) * CHIPS / HOUR, rel=1e-2)


@pytest.mark.parametrize("wiped", [False, True], ids=["", "the status is lost"])
@pytest.mark.parametrize("second", [0, 1, 12], ids=lambda second: f"{second} hours")
@pytest.mark.parametrize("end", ["suspended", "evicted", "evicted and resumed", "restarted"])
def test_a_result_counts_once_though_the_next_run_has_left_none(end: str, second: int, wiped: bool) -> None:
    """A run of eight hours saves. The next one waits for nodes or runs, and is killed without a result."""
    world, name = in_queue()
    work(world, name, 8 * HOUR)
    evict(world, name, 1)
    resume(world, name)
    if second:
        work(world, name, second * HOUR, step=20)
    else:
        for pod in world.pods_of(name):
            pod["status"] = {"phase": "Pending"}
    world.wait(10)
    match end:
        case "suspended":
            world.edit(suspend=True)
            world.reconcile()
            world.lose(name)
        case "evicted" | "evicted and resumed":
            stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 2}]}
            world.workload(name, RESERVED, ADMITTED, EVICTED, schedulingStats=stats)
            world.jobsets[name]["spec"]["suspend"] = True
            world.reconcile()
            world.hold(name, held=True)
        case "restarted":
            # The operator wrote a record, and ended before it could delete the JobSet.
            world.edit(suspend=True)
            with pytest.raises(Crash):
                world.reconcile(crash_after=1)
            world.edit(suspend=False)
            world.restart(name)
    world.wait(20 * HOUR)
    for _ in range(2):
        if wiped:
            world.job["status"] = {"observedGeneration": -1}
        world.reconcile()
        assert hours(world) == pytest.approx((8 + second) * CHIPS, abs=0.1)
    if end == "evicted and resumed":
        resume(world, name)
        assert hours(world) == pytest.approx((8 + second) * CHIPS, abs=0.1)
        work(world, name, HOUR, step=30)
        assert hours(world) == pytest.approx((9 + second) * CHIPS, abs=0.1)


@pytest.mark.parametrize("saved", [True, False])
def test_restarts_inside_the_jobset_add_up(saved: bool) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    for number in range(1, 6):
        work(world, name, HOUR, step=number * 10)
        if saved:
            world.stop(name)
        else:
            world.end_pods(name, 137, **DISRUPTED)
            world.restart(name)
        world.reconcile()
        world.wait(30)
        world.run(name)
        world.reconcile()
        assert hours(world) == pytest.approx(number * CHIPS, rel=0.01)


@pytest.mark.parametrize("chip_hour_price", [1, 0.03])
@pytest.mark.parametrize("pause", [10.0, 10.1, 10.999])
def test_usage_accumulates_though_an_earlier_run_left_no_record(pause: float, chip_hour_price: float) -> None:
    flavor = {**profile()["spec"]["flavors"][0], "chipHourPrice": chip_hour_price}
    world = World(profiles=[profile(flavors=[flavor], currency="USD")])
    world.now = world.now.replace(microsecond=150_000)
    name = world.until(Stage.TRAIN)
    work(world, name, HOUR)
    # Only the status records the first run.
    world.restart(name)
    world.reconcile()
    world.wait(60)
    world.run(name)
    world.reconcile()
    started, before = world.now, (world.status["activeTime"]["seconds"], hours(world), amount(world))
    for number in range(100):
        world.wait(pause)
        world.train(name, 10 + number % 80)
        world.reconcile()
    world.wait(60)
    world.reconcile()
    ran = (world.now - started).total_seconds()
    assert world.status["activeTime"]["seconds"] - before[0] == pytest.approx(ran, abs=1)
    assert hours(world) - before[1] == pytest.approx(ran * CHIPS / HOUR, rel=2e-3)
    assert amount(world) - before[2] == pytest.approx(ran * CHIPS / HOUR * chip_hour_price, rel=3e-3)


def test_an_evaluation_without_steps_counts_while_it_runs() -> None:
    world = World()
    name = world.until(Stage.EVALUATE)
    before = hours(world)
    for _ in range(60):
        world.wait(60)
        world.reconcile()
    world.end_pods(name, 137, **DISRUPTED)
    world.restart(name)
    world.reconcile()
    assert hours(world) - before == pytest.approx(CHIPS, rel=0.05)


@pytest.mark.parametrize("limits", [{"activeDeadlineSeconds": 2 * HOUR}, {"budget": {"maxChipHours": 8}}])
def test_a_pod_on_a_node_that_has_died_is_counted_until_its_grace_period_ends(limits: Any) -> None:
    """The node is not deleted for a day. JobSet has restarted meanwhile, and waits for the pod to go."""
    world = World(job=job(**limits), profiles=[profile()])
    name = world.until(Stage.TRAIN)
    world.train(name, 1)
    world.wait(600)
    (pod,) = world.pods_of(name)
    pod["metadata"]["deletionTimestamp"] = stamp(world.now + timedelta(seconds=300))
    world.jobsets[name]["status"] = {"restarts": 1, "restartsCountTowardsMax": 0}
    for _ in range(48):
        world.wait(HOUR / 2)
        world.reconcile()
    assert hours(world) == pytest.approx(CHIPS * 900 / HOUR, rel=0.1)
    assert world.status["phase"] not in ("Failed", "Suspended")


@pytest.mark.parametrize("ahead", [timedelta(), timedelta(hours=24)])
def test_an_ended_pod_that_a_finalizer_keeps_uses_nothing_whatever_its_nodes_clock_says(
    ahead: timedelta,
) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    (pod,) = world.pods_of(name)
    begun = world.now
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(begun)}
    pod["status"] |= {"startTime": stamp(begun + ahead), "conditions": [scheduled]}
    (trainer,) = pod["status"]["containerStatuses"]
    trainer["state"] = {"running": {"startedAt": stamp(begun + ahead)}}
    world.train(name, 1)
    world.wait(HOUR)
    world.edit(suspend=True)
    world.reconcile()
    pod["metadata"] |= {
        "deletionTimestamp": stamp(world.now + timedelta(seconds=60)),
        "finalizers": ["a.b/c"],
    }
    ended = {"exitCode": 75, "startedAt": stamp(begun + ahead), "finishedAt": stamp(world.now + ahead)}
    trainer["state"] = {"terminated": ended}
    pod["status"]["phase"] = "Failed"
    for _ in range(30):
        world.wait(HOUR)
        world.reconcile()
    assert hours(world) == pytest.approx(CHIPS, rel=0.05)


def test_usage_never_decreases_when_pods_records_or_jobsets_are_deleted() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    work(world, name, HOUR)
    world.succeed(name)
    world.reconcile()
    assert hours(world) == pytest.approx(CHIPS, rel=1e-3)
    reported = hours(world)
    (key,) = (key for key in world.attempts if key.stage is Stage.TRAIN)
    result = world.attempts[key].result
    assert result is not None
    shorter = result.model_copy(update={"started": result.finished})
    world.attempts[key] = AttemptFiles(result=shorter)
    world.lose(name)
    world.reconcile()
    assert hours(world) >= reported
    (evaluation,) = world.live()
    world.run(evaluation)
    world.reconcile()
    for _ in range(60):
        world.wait(60)
        world.reconcile()
    assert hours(world) == pytest.approx(2 * CHIPS, rel=0.02)


def two_prices() -> list[dict[str, Any]]:
    on_demand, spot = flavors("OnDemand", "Spot")
    return [{**on_demand, "chipHourPrice": 2.7}, {**spot, "chipHourPrice": 0.8}]


def on_the_second_kind(**spec: Any) -> tuple[World, str]:
    world = World(
        job=job(resources={"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}, **spec),
        profiles=[profile(flavors=two_prices(), currency="USD")],
    )
    world.edit(preRunningDeadlineSeconds=600)
    until_placed(world, Stage.TRAIN)
    wait_step_by_step(world, 700)
    (second,) = world.live()
    world.run(second)
    world.reconcile()
    return world, second


@pytest.mark.parametrize("gone", [False, True], ids=["", "its JobSet is gone"])
@pytest.mark.parametrize("wiped", [False, True], ids=["", "the status is lost"])
def test_each_hour_has_the_price_of_its_capacity(gone: bool, wiped: bool) -> None:
    world, second = on_the_second_kind()
    work(world, second, 10 * HOUR)
    assert amount(world) == pytest.approx(10 * CHIPS * 2.7, rel=1e-3)
    world.fail(second, 69)
    world.reconcile()
    if gone:
        world.lose(second)
    if wiped:
        world.job["status"] = {"observedGeneration": -1}
    wait_step_by_step(world, 30)
    (third,) = world.live()
    assert world.status["resolved"]["resources"]["capacity"] == "Spot"
    world.run(third)
    work(world, third, 10 * HOUR, step=20)
    assert amount(world) == pytest.approx(10 * CHIPS * (2.7 + 0.8), rel=1e-2)
    assert hours(world) == pytest.approx(20 * CHIPS, rel=1e-2)


def test_a_monetary_budget_is_used_at_the_price_of_each_capacity() -> None:
    world, second = on_the_second_kind(budget={"maxCost": 140})
    work(world, second, 10 * HOUR)
    world.fail(second, 69)
    wait_step_by_step(world, 30)
    (third,) = world.live()
    world.run(third)
    world.reconcile()
    # 32 of the budget are left, at 3.2 per hour.
    work(world, third, 9.5 * HOUR, step=20)
    assert world.live() == [third]
    assert "deletionTimestamp" not in world.jobsets[third]["metadata"]
    world.wait(0.5 * HOUR)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[third]["metadata"]
    assert float(world.status["cost"]["budgetRemaining"]) == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize("end", ["fails", "dies", "is stopped"])
def test_an_attempt_on_a_larger_slice_keeps_its_chips_without_a_jobset(end: str) -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    work(world, name, HOUR)
    world.edit(resources={"tpu": "v6e-4"})
    if end == "fails":
        world.fail(name, 69)
    elif end == "dies":
        world.kill(name, 1)
    else:
        world.edit(suspend=True)
        world.reconcile()
        world.stop(name)
        world.reconcile()
        world.edit(suspend=False)
    world.reconcile()
    world.lose(name)
    world.job["status"] = {"observedGeneration": -1}
    for _ in range(3):
        world.reconcile()
        world.wait(world.requeue_after or 0)
    assert hours(world) == pytest.approx(8, rel=1e-2)


def test_a_record_with_an_impossible_start_counts_from_the_jobsets_start() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    work(world, name, HOUR)
    world.fail(name, 69)
    (key,) = (key for key in world.attempts if key.stage is Stage.TRAIN)
    files = world.attempts[key]
    assert files.result is not None
    wrong = files.result.model_copy(update={"started": world.now.replace(year=1970)})
    world.attempts[key] = AttemptFiles(result=wrong, failure=files.failure)
    world.reconcile()
    assert hours(world) == pytest.approx(CHIPS, rel=1e-2)


def test_jobsets_of_an_older_release_have_the_price_of_the_current_flavor() -> None:
    world, second = on_the_second_kind()
    for jobset in world.jobsets.values():
        jobset["metadata"]["annotations"].pop("tpu-finetune.dev/flavor", None)
    work(world, second, HOUR)
    assert amount(world) == pytest.approx(CHIPS * 2.7, rel=1e-2)


@pytest.mark.parametrize("gone", [False, True], ids=["", "the JobSet is gone"])
def test_usage_in_records_is_bounded_by_the_elapsed_time(gone: bool) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    work(world, name, HOUR)
    world.fail(name, 69)
    files = world.attempts[world.key_of(name)]
    assert files.failure is not None
    forged = files.failure.model_copy(update={"seconds": 1e8, "seconds_before": 9e7, "chips": CHIPS})
    world.attempts[world.key_of(name)] = AttemptFiles(result=files.result, failure=forged)
    if gone:
        world.lose(name)
    world.reconcile()
    passed = HOUR + 60
    assert HOUR <= world.status["activeTime"]["seconds"] <= passed
    assert CHIPS <= hours(world) <= CHIPS * passed / HOUR


@pytest.mark.parametrize("amount", ["1e400", "1e308", "9e99"])
def test_a_job_with_an_impossible_amount_in_its_status_can_be_stopped(amount: str) -> None:
    world, name = in_queue(constraints={"maxChipHours": 100})
    work(world, name, HOUR)
    world.status["cost"] |= {"chipHours": amount, "amount": amount}
    world.edit(suspend=True)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    assert hours(world) == pytest.approx(CHIPS, rel=1e-3)


@pytest.mark.parametrize("wiped", [False, True], ids=["", "the status is lost"])
def test_a_wrong_end_of_a_stage_on_cpu_takes_no_time_from_the_slice(wiped: bool) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    work(world, name, HOUR)
    (key,) = (key for key in world.attempts if key.stage is Stage.PREFLIGHT)
    files = world.attempts[key]
    assert files.result is not None
    forged = files.result.model_copy(update={"finished": world.now.replace(year=2099)})
    world.attempts[key] = AttemptFiles(result=forged, failure=files.failure)
    if wiped:
        world.job["status"] = {"observedGeneration": -1}
    work(world, name, HOUR)
    assert hours(world) == pytest.approx(2 * CHIPS, rel=1e-2)


def test_a_wrong_end_on_cheap_capacity_takes_no_time_from_dear_capacity() -> None:
    world, second = on_the_second_kind()
    key = next(key for key in world.attempts if key.stage is Stage.TRAIN and key.jobset != second)
    files = world.attempts[key]
    assert files.failure is not None
    forged = files.failure.model_copy(update={"seconds": 1e8})
    world.attempts[key] = AttemptFiles(result=files.result, failure=forged)
    world.job["metadata"]["creationTimestamp"] = stamp(world.now - timedelta(hours=10))
    world.job["status"] = {"observedGeneration": -1}
    work(world, second, HOUR)
    assert amount(world) == pytest.approx(CHIPS * (2.7 + 0.8 * 10), rel=1e-2)
