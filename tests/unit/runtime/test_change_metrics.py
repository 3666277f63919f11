"""What metrics count of a job: each end once, whatever is reported in between."""

import asyncio
from decimal import Decimal
from itertools import count, pairwise
from typing import Any

import pytest

from finetune_contract import FailureClass, Stage
from finetune_operator.api import Phase, StagePhase
from finetune_operator.api.status_stages import GoodputStatus
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.deadlines import HUNG
from finetune_operator.lifecycle.attempts.disruption import PREEMPTED
from finetune_operator.lifecycle.attempts.wait_times import WaitTimes
from finetune_operator.lifecycle.changes import Changes, changes
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.status.progress import goodput_status
from finetune_operator.runtime.change_metrics import HELD_SECONDS
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.metrics import OperatorMetrics
from tests.unit.lifecycle.test_accounting import made, work
from tests.unit.lifecycle.test_goodput import SECONDS, progress
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job
from tests.unit.runtime.objects import ended, status_of
from tests.unit.runtime.test_job_metrics import samples, version

GOODPUT = goodput_status(progress(**SECONDS), WaitTimes(queued=70.0, provisioning=30.0))
PLACE = ("team-a", "local")


class Counted:
    """A world whose statuses are compared after each reconcile, as the operator compares them at each write."""

    def __init__(self, goodput: GoodputStatus | None = GOODPUT, **spec: Any) -> None:
        self.world = World(job=job(**spec))
        self._goodput = goodput
        self.seen: list[Changes] = []
        # No series is young.
        self.metrics = OperatorMetrics(clock=map(float, count(0, HELD_SECONDS)).__next__)
        self.world.job["metadata"] |= {"creationTimestamp": stamp(self.world.now)}
        self.world.wait(3)
        self._before = dict(self.world.job)

    def reconcile(self) -> None:
        self.world.reconcile()
        status = read_status(self.world.status).model_copy(update={"goodput": self._goodput})
        change = changes(read_status(self._before.get("status")), status)
        self.seen.append(change)
        self.metrics.changed(self._before, change)
        self._before = {**self.world.job, "status": self.world.status}

    @property
    def stages(self) -> list[tuple[Stage, StagePhase]]:
        return [(end.stage.name, end.stage.phase) for change in self.seen for end in change.stages]

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """Values by the values of the labels other than namespace and profile."""
        return {
            tuple(value for value in labels if value not in PLACE): value
            for labels, value in samples(self.metrics, f"finetune_{name}").items()
        }

    def until(self, stage: Stage) -> str:
        for _ in range(20):
            self.reconcile()
            for name in self.world.live():
                if self.world.key_of(name).stage is stage:
                    self.world.run(name)
                    self.reconcile()
                    return name
                self.world.run(name)
                self.world.wait(60)
                self.world.succeed(name)
            self.world.wait(self.world.requeue_after or 0)
        raise AssertionError(self.world.status["summary"])


def test_each_stage_and_the_job_end_once() -> None:
    counted = Counted()
    counted.world.succeed(counted.until(Stage.EXPORT))
    for _ in range(3):
        counted.reconcile()
    stages = counted.stages
    assert sorted(stages) == sorted(set(stages))
    assert {stage for stage, _ in stages} >= {Stage.PREFLIGHT, Stage.CONVERT, Stage.TRAIN, Stage.EXPORT}
    assert {result for _, result in stages} == {StagePhase.SUCCEEDED}
    assert [change.result for change in counted.seen if change.result] == [Phase.SUCCEEDED]
    assert counted.counted("stage_seconds_count") == {("Succeeded", stage): 1 for stage, _ in stages}
    assert samples(counted.metrics, "finetune_jobs_ended_total") == {("", "", *PLACE, "Succeeded"): 1}
    assert counted.counted("training_compilation_seconds_sum") == {("OnDemand",): 4}
    assert counted.counted("training_queue_seconds_sum") == {("OnDemand",): 70}
    assert counted.counted("training_provisioning_seconds_sum") == {("OnDemand",): 30}
    uses = counted.counted("training_seconds_total")
    assert uses == {("queued",): 70, ("provisioning",): 30, ("startup",): 20, ("productive",): 60,
                    ("evaluation",): 10, ("recomputed",): 10}  # fmt: skip
    assert counted.counted("admission_seconds_sum") == {(): 3}
    assert counted.counted("admission_seconds_count") == {(): 1}


def test_a_tenants_record_adds_no_more_seconds_than_its_stage_took() -> None:
    hostile = goodput_status(progress(**SECONDS | {"productive": 1e12, "compile": 1e12}), WaitTimes())
    counted = Counted(hostile)
    counted.world.succeed(counted.until(Stage.EXPORT))
    (train,) = [end for change in counted.seen for end in change.stages if end.stage.name is Stage.TRAIN]
    assert counted.counted("training_seconds_total")["productive",] == train.seconds < 1e6
    assert counted.counted("training_compilation_seconds_sum") == {("OnDemand",): train.seconds}


def test_a_failed_attempt_and_the_failed_job_have_a_class() -> None:
    counted = Counted()
    counted.world.fail(counted.until(Stage.TRAIN), 69)
    for _ in range(2):
        counted.reconcile()
    counted.world.wait(3600)
    counted.world.fail(counted.until(Stage.TRAIN), 65)
    for _ in range(2):
        counted.reconcile()
    assert [end.failure_class for change in counted.seen for end in change.attempts] == [
        FailureClass.INFRASTRUCTURE,
        FailureClass.USER,
    ]
    assert counted.counted("attempts_ended_total") == {("Infrastructure",): 1, ("User",): 1}
    assert counted.counted("jobs_ended_total") == {("", "User", "Failed"): 1}


def test_a_preempted_attempt_has_not_hung() -> None:
    counted = Counted()
    counted.world.stop(counted.until(Stage.TRAIN))
    for _ in range(2):
        counted.reconcile()
    assert counted.world.status["attempts"]["history"][-1]["reason"] == PREEMPTED
    assert counted.counted("attempts_ended_total") == {("Preemption",): 1}
    assert counted.counted("attempts_hung_total") == {}


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({}, ""),
        ({"hangPolicy": {"noStepSeconds": 900}}, ""),
        ({"hangPolicy": {"noStepSeconds": 3600}}, ""),
        ({"hangPolicy": {"noStepSeconds": 60}}, "OwnLimit"),
    ],
)
def test_an_attempt_that_stands_still_has_hung_perhaps_by_a_limit_of_its_own(
    spec: dict[str, Any], cause: str
) -> None:
    counted = Counted(**spec)
    name = counted.until(Stage.TRAIN)
    counted.world.train(name, TOTAL_STEPS // 2)
    counted.reconcile()
    counted.world.wait(7200)
    counted.reconcile()
    counted.world.stop(name)
    counted.reconcile()
    assert counted.world.status["attempts"]["history"][-1]["reason"] == HUNG
    assert counted.counted("attempts_hung_total") == {(cause,): 1}


@pytest.mark.parametrize(
    ("spec", "code", "failure_class", "cause"),
    [
        ({"recovery": {"maxInfrastructureRetries": 0}}, 69, "Infrastructure", ""),
        ({"recovery": {"maxPreemptions": 0}}, None, "Preemption", "OwnLimit"),
        ({"recovery": {"maxInfrastructureRetries": 0}}, 65, "User", ""),
        ({"recovery": {"maxInfrastructureRetries": 0}}, 70, "User", ""),
    ],
)
def test_a_job_that_a_retry_limit_of_its_own_ends_has_that_cause(
    spec: dict[str, Any], code: int | None, failure_class: str, cause: str
) -> None:
    counted = Counted(**spec)
    name = counted.until(Stage.TRAIN)
    if code is None:
        counted.world.stop(name)
    else:
        counted.world.fail(name, code)
    for _ in range(3):
        counted.reconcile()
    assert counted.counted("jobs_ended_total") == {(cause, failure_class, "Failed"): 1}


@pytest.mark.parametrize(
    ("spec", "cause"), [({}, "NoCapacity"), ({"preRunningDeadlineSeconds": 60}, "OwnLimit")]
)
def test_a_job_without_nodes_has_a_cause_of_its_own(spec: dict[str, Any], cause: str) -> None:
    counted = Counted(**spec)
    for _ in range(10):
        counted.reconcile()
        counted.world.wait(7300)
    assert counted.counted("jobs_ended_total") == {(cause, "Infrastructure", "Failed"): 1}


def test_a_job_that_made_no_progress_was_not_ended_by_its_number_of_preemptions() -> None:
    counted = Counted(recovery={"maxPreemptions": 99})
    for _ in range(12):
        if counted.world.status.get("phase") == "Failed":
            break
        counted.world.stop(counted.until(Stage.TRAIN))
        for _ in range(2):
            counted.reconcile()
        counted.world.wait(3600)
    assert counted.world.status["failure"]["reason"] == "NoProgress"
    assert counted.counted("jobs_ended_total") == {("", "Preemption", "Failed"): 1}


def test_ends_are_counted_once_their_series_have_been_at_zero_for_two_minutes() -> None:
    now = 0.0
    metrics = OperatorMetrics(clock=lambda: now)
    ended(metrics)
    now = 119
    ended(metrics, namespace="other")
    asyncio.run(metrics.render())
    assert samples(metrics, "finetune_jobs_ended_total") == {}
    now = 120
    begun = 'finetune_jobs_ended_total{cause="",class="User",namespace="other",profile="small",result="Failed"} 0.0'
    assert begun in asyncio.run(metrics.render()).decode()
    assert samples(metrics, "finetune_jobs_ended_total") == {("", "User", "team", "small", "Failed"): 1}


def test_what_is_held_is_counted_without_a_scrape() -> None:
    now = 0.0
    metrics = OperatorMetrics(clock=lambda: now)
    ended(metrics)
    now = 130
    ended(metrics)
    assert samples(metrics, "finetune_jobs_ended_total") == {("", "User", "team", "small", "Failed"): 2}


async def test_what_is_held_of_a_namespace_without_jobs_is_counted_before_its_series_end() -> None:
    now = 0.0
    metrics = OperatorMetrics(clock=lambda: now)
    ended(metrics)
    await metrics.render()
    now = 24 * 3600 + 60
    ended(metrics, capacity="Reserved")  # begins another place, before the watch has delivered the job
    await metrics.render()
    now += HELD_SECONDS
    shown = (await metrics.render()).decode()
    assert 'class="User",namespace="team",profile="small",result="Failed"} 2.0' in shown


async def test_series_of_a_namespace_whose_jobs_were_never_admitted_end_after_a_day() -> None:
    now = 0.0
    metrics = OperatorMetrics(clock=lambda: now)
    ended(metrics, profile="")
    for now in (0, 24 * 3600 + 60):
        assert 'namespace="team"' in (await metrics.render()).decode(), now
    assert 'namespace="team"' not in (await metrics.render()).decode()


async def test_series_of_a_namespace_without_jobs_end_after_a_day() -> None:
    now = 0.0
    metrics = OperatorMetrics(clock=lambda: now)
    intake = EventHandlers(lambda _key, _after: None, metrics)
    for name, namespace in (("a", "team"), ("b", "other")):
        found = version(1, name)
        found["metadata"]["namespace"] = namespace
        intake.job("ADDED", found)
    used(metrics, {"chipHours": "0"}, {"chipHours": "1", "amount": "2", "currency": "USD"}, namespace="team")
    intake.job("DELETED", version(2, "a"))
    ended(metrics)
    hour = 3600
    for now, remains in ((0, True), (1 * hour, True), (24 * hour, True), (24 * hour + 60, False)):
        await metrics.render()
        assert ('namespace="team"' in (await metrics.render()).decode()) is remains, now
    assert 'cause="",namespace="other"' in (await metrics.render()).decode()
    intake.job("ADDED", version(3, "a"))
    begun = 'finetune_attempts_hung_total{cause="",namespace="team",profile="small"} 0.0'
    assert begun in (await metrics.render()).decode()


def used(metrics: OperatorMetrics, *reports: dict[str, str], namespace: str = "team-a") -> None:
    """Counts what the usage of a job grows by from the first report to the last."""
    for earlier, later in pairwise(status_of(cost=report) for report in reports):
        metrics.changed({"metadata": {"namespace": namespace}, "spec": {}}, changes(earlier, later))


def test_chip_seconds_and_cost_of_two_processes_add_up_to_the_reported_usage() -> None:
    """Prometheus adds what each process has counted, as ``increase()`` does."""
    nothing, some, more = (
        {"chipHours": hours, "amount": amount, "currency": "USD"}
        for hours, amount in (("0", "0"), ("1.5", "3"), ("1.75", "3.5"))
    )
    labels = {"namespace": "team-a", "profile": "small", "capacity": "Spot"}
    seconds = cost = 0.0
    for part in ((nothing, nothing, some), (some, more, {"chipHours": "2.75"})):
        process = OperatorMetrics()
        used(process, *part)
        seconds += process.registry.get_sample_value("finetune_chip_seconds_total", labels) or 0.0
        cost += process.registry.get_sample_value("finetune_cost_total", labels | {"currency": "USD"}) or 0.0
    assert (seconds, cost) == (2.75 * 3600, 3.5)


async def test_a_series_begins_at_zero_before_anything_is_used() -> None:
    metrics = OperatorMetrics()
    used(metrics, {"chipHours": "0"}, {"chipHours": "0"})
    assert 'finetune_chip_seconds_total{capacity="Spot",namespace="team-a",profile="small"} 0.0' in (
        (await metrics.render()).decode()
    )


def test_what_is_counted_adds_up_to_the_usage_for_the_capacity_that_was_used() -> None:
    world, metrics = made(), OperatorMetrics()
    before = dict(world.job)
    name = world.until(Stage.TRAIN)
    for _ in range(3):
        work(world, name, 1)
        change = changes(read_status(before.get("status")), read_status(world.status))
        metrics.changed(before, change)
        before = {**world.job, "status": world.status}
    assert samples(metrics, "finetune_chip_seconds_total") == {
        ("Spot", "team-a", "local"): float(Decimal(world.status["cost"]["chipHours"]) * 3600)
    }
    assert set(samples(metrics, "finetune_cost_total")) == {("Spot", "USD", "team-a", "local")}
