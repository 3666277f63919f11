"""What metrics count of a job: each end once, whatever is reported in between."""

from finetune_contract import FailureClass, Stage
from finetune_operator.api import Phase, StagePhase
from finetune_operator.lifecycle.accounting.transitions import TrainingWaits, Transitions, transitions
from finetune_operator.lifecycle.attempts.deadlines import HUNG
from finetune_operator.lifecycle.attempts.wait_times import WaitTimes
from finetune_operator.lifecycle.status.fitting import read_status
from finetune_operator.lifecycle.status.progress import goodput_status
from tests.unit.lifecycle.test_goodput import SECONDS, progress
from tests.unit.lifecycle.world import TOTAL_STEPS, World

GOODPUT = goodput_status(progress(**SECONDS), WaitTimes(queued=70.0, provisioning=30.0))


class Counted:
    """A world whose statuses are compared after each reconcile, as the operator compares them at each write."""

    def __init__(self) -> None:
        self.world = World()
        self.seen: list[Transitions] = []
        self._before = dict(self.world.job)

    def reconcile(self) -> None:
        self.world.reconcile()
        status = read_status(self.world.status).model_copy(update={"goodput": GOODPUT})
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
    (trained,) = [seen for seen in counted.seen if seen.waits]
    assert [each.stage for each in trained.stages] == [Stage.TRAIN]
    assert trained.waits == TrainingWaits(queued=70.0, provisioning=30.0)
    assert (trained.namespace, trained.profile) == ("team-a", "local")


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


def test_an_attempt_that_the_operator_ends_for_standing_still_has_hung() -> None:
    counted = Counted()
    name = counted.until(Stage.TRAIN)
    counted.world.train(name, TOTAL_STEPS // 2)
    counted.reconcile()
    counted.world.wait(7200)
    counted.reconcile()
    counted.world.stop(name)
    counted.reconcile()
    assert counted.world.status["attempts"]["history"][-1]["reason"] == HUNG
    assert [each.hung for seen in counted.seen for each in seen.attempts] == [True]
