"""How the status accounts for the time of training, and reports damaged checkpoints."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finetune_contract import DiscardedCheckpoint, Progress, Stage
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.wait_times import WaitTimes
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.status.progress import goodput_status, progress_status
from tests.unit.lifecycle.world import World, job, profile

SECONDS = {
    "startup": 10.0,
    "data": 2.0,
    "restore": 3.0,
    "compile": 4.0,
    "first_step": 1.0,
    "productive": 60.0,
    "evaluate": 10.0,
    "recomputed": 10.0,
}


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def progress(**seconds: float) -> Progress:
    return Progress(attempt=1, step=5, total_steps=10, compilations=3, updated=NOW, seconds=seconds)


def test_goodput_is_the_share_of_steps_that_count() -> None:
    status = goodput_status(progress(**SECONDS), WaitTimes(queued=70.0, provisioning=30.0))
    assert status is not None
    assert status.to_document() == {
        "percent": "30.0",
        "seconds": {
            "queued": 70,
            "provisioning": 30,
            "startup": 20,
            "productive": 60,
            "evaluation": 10,
            "recomputed": 10,
        },
        "startup": {"pods": 0, "imports": 10, "data": 2, "weights": 3, "compilation": 4, "firstStep": 1},
        "compilations": 3,
    }


def test_the_time_to_the_first_step_is_reported_by_cause() -> None:
    reported = goodput_status(progress(**SECONDS), WaitTimes(provisioning=30.0, pods=12.0))
    assert reported is not None
    assert reported.startup is not None
    assert (reported.startup.pods, reported.compilations) == (12, 3)


@pytest.mark.parametrize("nothing", [progress(), progress(productive=0.0)])
def test_nothing_is_reported_without_measurements(nothing: Progress) -> None:
    assert goodput_status(nothing, WaitTimes(queued=5.0)) is None


@given(st.dictionaries(st.sampled_from(sorted(SECONDS)), st.floats(0, 1e12)))
@example({"productive": 1e12})
def test_goodput_is_between_zero_and_one_for_any_record(seconds: dict[str, float]) -> None:
    reported = goodput_status(progress(**seconds), WaitTimes())
    assert reported is None or 0 <= float(reported.percent) <= 100


def test_a_damaged_checkpoint_is_reported_with_the_stage() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.train(name, 5)
    assert world.progress is not None
    why = "d/0 is missing"
    found = [DiscardedCheckpoint(step=8, why=why)]
    world.progress = world.progress.model_copy(update={"discarded": found, "seconds": SECONDS})
    world.wait(60)
    world.reconcile()
    train = next(each for each in world.status["stages"] if each["name"] == "Train")
    assert train["message"].startswith(f"the checkpoint of step 8 was damaged ({why})")
    assert world.status["goodput"]["percent"] == "60.0"


def test_unchanged_tensors_are_reported_with_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    names = [f"model.layers.{i}.input_layernorm.weight" for i in range(16)]
    outcome = World.train_outcome
    found = {"unchanged_tensors": 56, "unchanged": names}
    monkeypatch.setattr(World, "train_outcome", lambda self: outcome(self).model_copy(update=found))
    world.succeed(world.until(Stage.TRAIN))
    world.reconcile()
    train = next(each for each in world.status["stages"] if each["name"] == "Train")
    assert train["phase"] == "Succeeded"
    shown = ", ".join(names[:4])
    assert train["message"] == f"training left 56 of its tensors unchanged, bit for bit: {shown}, …"


QUEUE = {"localQueue": "team-tpu"}


def trained(world: World, name: str, step: int = 5) -> dict[str, int]:
    """Returns the seconds by use, as the status reports them after a record of training."""
    world.train(name, step)
    assert world.progress is not None
    world.progress = world.progress.model_copy(update={"seconds": SECONDS})
    world.wait(60)
    world.reconcile()
    reported: dict[str, int] = world.status["goodput"]["seconds"]
    return reported


def queued_training() -> tuple[World, str]:
    """Training has just entered the queue."""
    world = World(profiles=[profile(queue=QUEUE)])
    for _ in range(20):
        world.reconcile()
        live = world.live()
        if live and world.key_of(live[0]).stage is Stage.TRAIN:
            world.hold(live[0], held=True)
            return world, live[0]
        for name in live:
            world.succeed(name)
    raise AssertionError(world.status["summary"])


def let_run(world: World, name: str, *, queued: float, provisioning: float) -> None:
    world.wait(queued)
    world.hold(name, held=False)
    world.schedule(name)
    world.reconcile()
    world.wait(provisioning)
    world.run(name)


def test_waits_for_quota_and_for_nodes_are_distinguished() -> None:
    world, name = queued_training()
    let_run(world, name, queued=300, provisioning=40)
    reported = trained(world, name)
    assert (reported["queued"], reported["provisioning"]) == (300, 40)


def test_the_start_of_pods_is_reported_within_the_wait_for_nodes() -> None:
    world, name = queued_training()
    world.wait(300)
    world.hold(name, held=False)
    world.schedule(name)
    world.reconcile()
    world.wait(30)
    for pod in world.pods.values():
        pod["status"]["startTime"] = stamp(world.now)
    world.wait(10)
    world.run(name)
    reported = trained(world, name)
    assert (reported["provisioning"], world.status["goodput"]["startup"]["pods"]) == (40, 10)


def test_without_a_queue_all_waiting_is_for_nodes() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    for pod in world.pods_of(name):
        pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = "2026-11-21T12:01:00Z"
    world.now = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)
    reported = trained(world, name)
    assert (reported["queued"], reported["provisioning"]) == (0, 60)


@pytest.mark.parametrize("gone", [1, 2], ids=["one pod is gone", "all pods are gone"])
def test_missing_pods_at_the_end_of_training_are_not_provisioning(gone: int) -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    before = trained(world, name)
    world.wait(3 * 3600)
    for pod in world.pods_of(name)[:gone]:
        del world.pods[pod["metadata"]["name"]]
    assert trained(world, name, 7)["provisioning"] == before["provisioning"]
    world.edit(suspend=True)
    world.reconcile()
    recorded = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert recorded is not None
    assert recorded.provisioning == before["provisioning"] == 0


def test_the_wait_of_a_suspended_attempt_counts_without_its_jobset() -> None:
    world, first = queued_training()
    let_run(world, first, queued=100, provisioning=20)
    trained(world, first)
    world.edit(suspend=True)
    world.reconcile()
    world.stop(first)
    world.reconcile()
    assert first not in world.jobsets
    world.edit(suspend=False)
    world.reconcile()
    (second,) = world.live()
    world.hold(second, held=True)
    let_run(world, second, queued=50, provisioning=5)
    reported = trained(world, second, 7)
    assert (reported["queued"], reported["provisioning"]) == (150, 25)


def test_the_time_of_an_evicted_run_is_not_a_wait() -> None:
    world, name = queued_training()
    let_run(world, name, queued=100, provisioning=20)
    world.wait(1000)
    world.hold(name, held=True)
    world.workload(
        name,
        ("QuotaReserved", "True", "QuotaReserved", "back"),
        ("Admitted", "True", "Admitted", "back"),
        schedulingStats={"evictions": [{"reason": "Preempted", "count": 1}]},
    )
    let_run(world, name, queued=70, provisioning=30)
    reported = trained(world, name)
    assert (reported["queued"], reported["provisioning"]) == (0, 30)


@pytest.mark.parametrize(("mfu", "percent"), [(0.4137, "41.37"), (None, None)])
def test_mfu_is_reported_if_the_trainer_knows_its_chips(mfu: float | None, percent: str | None) -> None:
    reported = Progress(attempt=1, step=5, total_steps=10, compilations=0, updated=NOW, mfu=mfu)
    status = progress_status(reported, None)
    assert status.mfu_percent == percent


def test_the_tensorboard_folder_is_reported_with_the_first_steps() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.reconcile()
    assert "TensorBoard" not in {artifact["type"] for artifact in world.status["artifacts"]}
    world.train(name, 3)
    world.wait(60)
    world.reconcile()
    (found,) = (each for each in world.status["artifacts"] if each["type"] == "TensorBoard")
    assert found["uri"].endswith("/train/tensorboard")
