"""What metrics count of a job: each end once, whatever is reported in between."""

from typing import Any

import pytest

from finetune_contract import FailureClass, Stage
from finetune_operator.api import Phase, StagePhase
from finetune_operator.api.status_stages import GoodputStatus
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.accounting.transitions import FailureCause, Transitions, transitions
from finetune_operator.lifecycle.attempts.deadlines import HUNG
from finetune_operator.lifecycle.attempts.disruption import PREEMPTED
from finetune_operator.lifecycle.attempts.wait_times import WaitTimes
from finetune_operator.lifecycle.status.fitting import read_status
from finetune_operator.lifecycle.status.progress import goodput_status
from tests.unit.lifecycle.test_goodput import SECONDS, progress
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job

GOODPUT = goodput_status(progress(**SECONDS), WaitTimes(queued=70.0, provisioning=30.0))


class Counted:
    """A world whose statuses are compared after each reconcile, as the operator compares them at each write."""

    def __init__(self, goodput: GoodputStatus | None = GOODPUT, **spec: Any) -> None:
        self.world = World(job=job(**spec))
        self._goodput = goodput
        self.seen: list[Transitions] = []
        created = {"creationTimestamp": stamp(self.world.now)}
        self.world.job["metadata"] |= created
        self.world.wait(3)
        self._before = dict(self.world.job)

    def reconcile(self) -> None:
        self.world.reconcile()
        status = read_status(self.world.status).model_copy(update={"goodput": self._goodput})
        if found := transitions(self._before, status):
            self.seen.append(found)
        self._before = {**self.world.job, "status": self.world.status}

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
    stages = [(each.stage, each.result) for seen in counted.seen for each in seen.stages]
    assert sorted(stages) == sorted(set(stages))
    assert {stage for stage, _ in stages} >= {Stage.PREFLIGHT, Stage.CONVERT, Stage.TRAIN, Stage.EXPORT}
    assert {result for _, result in stages} == {StagePhase.SUCCEEDED}
    assert [seen.result for seen in counted.seen if seen.result] == [Phase.SUCCEEDED]
    (trained,) = [seen for seen in counted.seen if seen.training]
    assert [each.stage for each in trained.stages] == [Stage.TRAIN]
    assert trained.training is not None
    assert trained.training.compilation == 4
    uses = trained.training.uses
    assert (uses.queued, uses.provisioning, uses.productive, uses.recomputed) == (70, 30, 60, 10)
    assert [seen.admission for seen in counted.seen if seen.admission is not None] == [3]
    assert (trained.namespace, trained.profile) == ("team-a", "local")


def test_a_tenants_record_adds_no_more_seconds_than_its_stage_took() -> None:
    hostile = goodput_status(progress(**SECONDS | {"productive": 1e12, "compile": 1e12}), WaitTimes())
    counted = Counted(hostile)
    counted.world.succeed(counted.until(Stage.EXPORT))
    (trained,) = [seen for seen in counted.seen if seen.training]
    assert trained.training is not None
    (train,) = trained.stages
    assert trained.training.uses.productive == trained.training.compilation == train.seconds < 1e6


def test_a_failed_attempt_and_the_failed_job_have_a_class() -> None:
    counted = Counted()
    counted.world.fail(counted.until(Stage.TRAIN), 69)
    for _ in range(2):
        counted.reconcile()
    counted.world.wait(3600)
    counted.world.fail(counted.until(Stage.TRAIN), 65)
    for _ in range(2):
        counted.reconcile()
    attempts = [each.failure_class for seen in counted.seen for each in seen.attempts]
    assert attempts == [FailureClass.INFRASTRUCTURE, FailureClass.USER]
    ends = [(seen.result, seen.failure_class) for seen in counted.seen if seen.result]
    assert ends == [(Phase.FAILED, FailureClass.USER)]


def test_a_preempted_attempt_has_not_hung() -> None:
    counted = Counted()
    counted.world.stop(counted.until(Stage.TRAIN))
    for _ in range(2):
        counted.reconcile()
    assert counted.world.status["attempts"]["history"][-1]["reason"] == PREEMPTED
    assert [(each.failure_class, each.hung) for seen in counted.seen for each in seen.attempts] == [
        (FailureClass.PREEMPTION, False)
    ]


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({}, None),
        ({"hangPolicy": {"noStepSeconds": 900}}, None),
        ({"hangPolicy": {"noStepSeconds": 3600}}, None),
        ({"hangPolicy": {"noStepSeconds": 60}}, FailureCause.OWN_LIMIT),
    ],
)
def test_an_attempt_that_stands_still_has_hung_perhaps_by_a_limit_of_its_own(
    spec: dict[str, Any], cause: FailureCause | None
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
    ends = [(each.hung, each.cause) for seen in counted.seen for each in seen.attempts]
    assert ends == [(True, cause)]


@pytest.mark.parametrize(
    ("spec", "code", "cause"),
    [
        ({"recovery": {"maxInfrastructureRetries": 0}}, 69, None),
        ({"recovery": {"maxPreemptions": 0}}, None, FailureCause.OWN_LIMIT),
        ({"recovery": {"maxInfrastructureRetries": 0}}, 65, None),
        ({"recovery": {"maxInfrastructureRetries": 0}}, 70, None),
    ],
)
def test_a_job_that_a_retry_limit_of_its_own_ends_has_that_cause(
    spec: dict[str, Any], code: int | None, cause: FailureCause | None
) -> None:
    counted = Counted(**spec)
    name = counted.until(Stage.TRAIN)
    if code is None:
        counted.world.stop(name)
    else:
        counted.world.fail(name, code)
    for _ in range(3):
        counted.reconcile()
    assert [(seen.result, seen.cause) for seen in counted.seen if seen.result] == [(Phase.FAILED, cause)]


@pytest.mark.parametrize(
    ("spec", "cause"),
    [({}, FailureCause.NO_CAPACITY), ({"preRunningDeadlineSeconds": 60}, FailureCause.OWN_LIMIT)],
)
def test_a_job_without_nodes_has_a_cause_of_its_own(spec: dict[str, Any], cause: FailureCause) -> None:
    counted = Counted(**spec)
    for _ in range(10):
        counted.reconcile()
        counted.world.wait(7300)
    assert [(seen.result, seen.cause) for seen in counted.seen if seen.result] == [(Phase.FAILED, cause)]


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
    assert [(seen.result, seen.cause) for seen in counted.seen if seen.result] == [(Phase.FAILED, None)]
