"""What waits for nodes, what only seems to, and how every wait ends."""

from typing import Any

import pytest

from finetune_contract import Failure, Stage
from finetune_operator.lifecycle import AttemptKey
from finetune_operator.lifecycle.times import stamp
from tests.unit.lifecycle.test_endings import DISRUPTED, add_worker, pathways
from tests.unit.lifecycle.test_limits import (
    NOT_CHARGED,
    charged,
    flavors,
    until_placed,
    waiting,
)
from tests.unit.lifecycle.test_queueing import ADMITTED, RESERVED, evict, queued, resume
from tests.unit.lifecycle.world import World, job, profile

pytestmark = pytest.mark.slow

#: Longer than spec.preRunningDeadlineSeconds is by default.
HOURS = 3 * 3600


def pass_time(world: World, seconds: float) -> None:
    """A hundred looks at most; what is deleted ends when it is told to."""
    end = world.now.timestamp() + seconds
    while world.now.timestamp() < end:
        asked = max(world.look_again_after or 30.0, seconds / 100)
        world.wait(max(1.0, min(asked, end - world.now.timestamp())))
        world.reconcile()
        for name, jobset in list(world.jobsets.items()):
            if "deletionTimestamp" in jobset["metadata"]:
                world.stop(name)


def in_training(world: World, *, stepped: bool = True) -> str:
    """Training has run for hours; ``stepped``: and has told of its steps."""
    name = world.until(Stage.TRAIN)
    end = world.now.timestamp() + HOURS
    step = 0
    while world.now.timestamp() < end:
        world.wait(600)
        step += 1
        if stepped:
            world.train(name, step)
        world.reconcile()
    assert world.status["phase"] == "Running"
    return name


def admitted(world: World) -> str:
    name = world.until(Stage.TRAIN)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    world.run(name)
    world.reconcile()
    return name


def remove(world: World, pod: str) -> None:
    del world.pods[pod]
    decision = world.reconcile()
    assert decision.deletions == ()
    assert decision.records == ()


def run_worker(world: World, name: str) -> None:
    add_worker(world, name)
    world.pods[f"{name}-worker-0"]["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "pathways-worker", "state": {"running": {"startedAt": stamp(world.now)}}}
        ],
    }


@pytest.mark.parametrize("tpu", ["v6e-4", "v6e-8"])
@pytest.mark.parametrize("evictions", [None, 0, 1])
def test_a_pod_that_vanishes_after_hours_leaves_the_job_to_jobset(tpu: str, evictions: int | None) -> None:
    """``evictions``: None: in no queue; else so many before."""
    if evictions is None:
        world = World(job=job(resources={"tpu": tpu}))
        name = in_training(world)
    else:
        world = queued()
        world.job["spec"]["resources"] = {"tpu": tpu}
        name = admitted(world)
        for times in range(evictions):
            world.train(name, 5)
            world.wait(60)
            evict(world, name, times + 1)
            resume(world, name)
        for step in range(10, 30):
            world.wait(600)
            world.train(name, step)
            world.reconcile()
    for pod in sorted(each["metadata"]["name"] for each in world.pods_of(name)):
        remove(world, pod)
        assert world.look_again_after is not None
        assert world.look_again_after <= 10
        assert world.status["phase"] == "Recovering"
        assert "makes no pods" not in world.status["summary"]
    world.restart(name)
    world.reconcile()
    assert world.live() == [name]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert charged(world)["infrastructure"] == 0


def test_an_evaluation_whose_pod_vanishes_after_hours_is_left_to_jobset() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = world.until(Stage.EVALUATE)
    for _ in range(HOURS // 600):
        world.wait(600)
        world.reconcile()
    remove(world, f"{name}-0")
    assert world.status["phase"] == "Recovering"
    assert world.look_again_after is not None
    assert world.look_again_after <= 10
    assert "makes no pods" not in world.status["summary"]


@pytest.mark.parametrize("trace", [True, False], ids=["its old pod stays", "its old pod is gone"])
@pytest.mark.parametrize("stepped", [True, False])
def test_a_pathways_worker_that_is_replaced_after_hours_is_no_lack_of_capacity(
    trace: bool, stepped: bool
) -> None:
    world = pathways()
    world.edit(hangPolicy={"startupSeconds": 10 * HOURS})
    name = world.until(Stage.TRAIN)
    run_worker(world, name)
    for step in range(1, HOURS // 600):
        world.wait(600)
        if stepped:
            world.train(name, step)
        world.reconcile()
    assert world.status["phase"] == "Running"
    old = world.pods.pop(f"{name}-worker-0")
    if trace:
        old["status"] = {"phase": "Failed", **DISRUPTED}
        world.pods[f"{name}-worker-0-old"] = old
    add_worker(world, name)
    world.pods[f"{name}-worker-0"]["status"] = {"phase": "Pending"}
    world.pods[f"{name}-worker-0"]["metadata"]["creationTimestamp"] = stamp(world.now)
    decision = world.reconcile()
    assert decision.deletions == ()
    assert decision.records == ()


def test_pathways_workers_that_never_find_nodes_end_the_wait() -> None:
    """The head, which asks for no chips, runs meanwhile."""
    world = pathways()
    name = world.until(Stage.TRAIN)
    add_worker(world, name)
    world.pods[f"{name}-worker-0"]["status"] = {"phase": "Pending"}
    world.pods[f"{name}-worker-0"]["metadata"]["creationTimestamp"] = stamp(world.now)
    pass_time(world, 7100)
    assert world.live() == [name]
    pass_time(world, 300)
    assert name not in world.live()
    world.pods.clear()
    world.reconcile()
    assert world.status["failure"]["reason"] == "NoCapacity"


def two_kinds(**spec: Any) -> World:
    world = World(
        job=job(resources={"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}),
        profiles=[profile(flavors=flavors("OnDemand", "Spot"))],
    )
    world.edit(preRunningDeadlineSeconds=600, **spec)
    return world


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("pods", [True, False], ids=["pods wait", "no pods are made"])
def test_after_a_preemption_the_wait_for_nodes_has_its_deadline_and_the_next_kind_follows(
    saved: bool, pods: bool
) -> None:
    world = two_kinds()
    name = world.until(Stage.TRAIN)
    for step in range(1, 20):
        world.wait(600)
        world.train(name, step)
        world.reconcile()
    if saved:
        world.stop(name)
    else:
        world.end_pods(name, 137, **DISRUPTED)
        world.restart(name)
    world.reconcile()
    if pods:
        waiting(world, name)
    pass_time(world, 500)
    assert world.live() == [name]
    assert world.status["phase"] == "Recovering"
    pass_time(world, 200)
    assert world.live() == ["support-bot-train-2"]
    assert world.status["resolved"]["resources"]["capacity"] == "OnDemand"
    waiting(world, "support-bot-train-2")
    pass_time(world, 700)
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "NoCapacity"
    assert "OnDemand" in world.status["failure"]["message"]
    assert charged(world) == {**NOT_CHARGED, "preemption": 1}


def test_a_restart_on_the_second_kind_that_finds_no_nodes_names_that_kind() -> None:
    world = two_kinds()
    until_placed(world, Stage.TRAIN)
    pass_time(world, 700)
    (second,) = world.live()
    world.run(second)
    world.train(second, 20)
    world.reconcile()
    # As rendered then, so that the spec does not ask for another one.
    content = world.jobsets[second]["metadata"]["annotations"]
    world.stop(second)
    world.profiles = []
    world.reconcile()
    names = world.live()
    assert content["tpu-finetune.dev/flavor"] == "ondemand"
    if names == [second]:
        waiting(world, second)
        pass_time(world, 700)
        noted = world.attempts[AttemptKey(Stage.TRAIN, 2, 1)].failure
        assert noted is not None
        assert noted.saw == "OnDemand"


@pytest.mark.parametrize("stage", [None, "Train"])
@pytest.mark.parametrize("later", [0, 7 * HOURS])
def test_a_retry_by_hand_tries_every_kind_again(stage: str | None, later: float) -> None:
    world = two_kinds()
    waiting(world, until_placed(world, Stage.TRAIN))
    pass_time(world, 700)
    waiting(world, "support-bot-train-2")
    pass_time(world, 700)
    assert world.status["failure"]["reason"] == "NoCapacity"
    world.wait(later)
    for generation, first in ((1, 3), (2, 5)):
        world.edit(retry={"generation": generation, **({"fromStage": stage} if stage else {})})
        world.reconcile()
        world.reconcile()
        for number, kind in ((first, "Spot"), (first + 1, "OnDemand")):
            assert world.live() == [f"support-bot-train-{number}"]
            assert world.status["resolved"]["resources"]["capacity"] == kind
            waiting(world, f"support-bot-train-{number}")
            pass_time(world, 700)
        assert world.status["phase"] == "Failed"
    world.edit(retry={"generation": 3})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_stage_that_is_asked_for_again_while_a_later_one_runs_does_not_wait_for_ever() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = world.until(Stage.EVALUATE)
    world.edit(retry={"generation": 1, "fromStage": "Train"})
    world.reconcile()
    world.kill(name, 1)
    for _ in range(4):
        world.reconcile()
        world.wait(world.look_again_after or 0)
    assert world.live() == ["support-bot-train-2"]
    waiting(world, "support-bot-train-2")
    pass_time(world, 8000)
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "NoCapacity"


@pytest.mark.parametrize("stage", [Stage.PREFLIGHT, Stage.CONVERT, Stage.EXPORT])
def test_a_stage_on_cpu_that_finds_no_node_ends_the_job(stage: Stage) -> None:
    world = World()
    world.edit(preRunningDeadlineSeconds=600)
    name = until_placed(world, stage)
    pass_time(world, 570)
    assert world.live() == [name]
    pass_time(world, 100)
    assert world.status["phase"] == "Failed"
    assert (world.status["failure"]["stage"], world.status["failure"]["reason"]) == (stage, "NoCapacity")
    for part in ("CPU node", "600 s of spec.preRunningDeadlineSeconds"):
        assert part in world.status["failure"]["message"]
    assert "spec.retry.generation" in world.status["failure"]["suggestion"]
    assert charged(world) == NOT_CHARGED
    world.edit(retry={"generation": 1})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_on_cpu_too_waiting_for_quota_is_not_waiting_for_nodes() -> None:
    world = queued(cpuLocalQueue="team-cpu")
    world.edit(preRunningDeadlineSeconds=600)
    world.reconcile()
    world.reconcile()
    (name,) = world.live()
    world.workload(name, ("QuotaReserved", "False", "Pending", "1 more needed"))
    pass_time(world, 100 * HOURS)
    assert world.live() == [name]
    assert world.status["phase"] == "Queued"
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    waiting(world, name)
    pass_time(world, 500)
    assert world.live() == [name]
    pass_time(world, 200)
    assert world.status["failure"]["reason"] == "NoCapacity"


def test_a_missing_secret_or_image_on_cpu_is_no_lack_of_nodes() -> None:
    world = World()
    world.edit(preRunningDeadlineSeconds=600)
    name = until_placed(world, Stage.CONVERT)
    held = {
        "name": "trainer",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }
    for pod in world.pods_of(name):
        pod["status"] = {"phase": "Pending", "containerStatuses": [held]}
    pass_time(world, HOURS)
    assert world.live() == [name]
    assert world.status["waiting"]["reason"] == "WaitingForImage"


@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN])
def test_a_jobset_that_somebody_has_suspended_waits_for_that_person(stage: Stage) -> None:
    world = World()
    name = world.until(stage)
    world.wait(60)
    world.save(name)
    world.hold(name, held=True)
    pass_time(world, HOURS)
    assert world.live() == [name]
    assert world.condition("Running")["status"] == "False"
    assert f"JobSet {name} is suspended" in world.status["waiting"]["message"]
    assert "kubectl" in world.status["waiting"]["message"]
    world.hold(name, held=False)
    waiting(world, name)
    pass_time(world, 7000)
    assert world.live() == [name]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


# --- stages that report no steps


@pytest.mark.parametrize("stage", [Stage.PREFLIGHT, Stage.CONVERT, Stage.EVALUATE, Stage.EXPORT])
@pytest.mark.parametrize("limit", [None, 1200])
def test_a_stage_that_does_not_end_is_started_again_and_charged(stage: Stage, limit: int | None) -> None:
    world = World()
    if limit:
        world.edit(hangPolicy={"stageSeconds": limit})
    name = world.until(stage)
    seconds = limit or (6 * 3600 if stage is Stage.EVALUATE else 24 * 3600)
    pass_time(world, seconds - 60)
    assert world.live() == [name]
    pass_time(world, 200)
    assert name not in world.live()
    told = world.status["attempts"]["history"][-1]
    assert (told["reason"], told["class"]) == ("StageTimeout", "Infrastructure")
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert charged(world)["infrastructure"] == 1


def test_a_stage_that_never_ends_fails_the_job_in_the_end_and_says_what_to_raise() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 1}))
    for _ in range(2):
        world.until(Stage.EVALUATE)
        pass_time(world, 6 * 3600 + 700)
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "RetriesExhausted"
    assert "spec.hangPolicy.stageSeconds" in world.status["failure"]["message"]
    assert "spec.hangPolicy.stageSeconds" in world.status["failure"]["suggestion"]


def test_training_is_watched_by_its_steps_alone() -> None:
    world = World()
    world.edit(hangPolicy={"stageSeconds": 600})
    name = in_training(world)
    assert world.live() == [name]


def test_an_interrupted_training_that_jobset_never_restarts_is_ended() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = in_training(world)
    remove(world, f"{name}-0")
    pass_time(world, 2000)
    assert name not in world.live()
    assert any(each["reason"] == "Hung" for each in world.status["attempts"]["history"])


@pytest.mark.parametrize(("others", "seconds"), [(1, 5), (1_000_000, 15)])
def test_other_tenants_jobs_keep_nobody_long_from_looking_at_an_interrupted_training(
    others: int, seconds: float
) -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}), live_jobs=others)
    remove(world, f"{in_training(world)}-0")
    world.reconcile()
    assert world.look_again_after == seconds


# --- disruptions of long ago


@pytest.mark.parametrize(
    ("ago", "message", "reason"),
    [
        (5 * 3600, "", "StorageUnavailable"),
        (240, "", "StorageUnavailable"),
        (60, "", "Preempted"),
        (5 * 3600, "The node was low on resource: memory.", "StorageUnavailable"),
        (60, "The node was low on resource: memory.", "StorageUnavailable"),
    ],
)
def test_a_disruption_explains_only_an_end_that_follows_it(ago: float, message: str, reason: str) -> None:
    world = pathways()
    name = world.until(Stage.TRAIN)
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": message,
        "lastTransitionTime": stamp(world.now),
    }
    add_worker(world, name, conditions=[target])
    world.train(name, 10)
    world.wait(ago)
    world.train(name, 20)
    world.fail(name, 69, "StorageUnavailable", "the bucket was away")
    world.reconcile()
    if message and ago == 60:
        reason = world.status["attempts"]["history"][-1]["reason"]
        assert reason in ("Preempted", "StorageUnavailable")
        return
    assert world.status["attempts"]["history"][-1]["reason"] == reason


def test_a_pod_that_saved_for_its_whole_grace_period_was_taken_away_all_the_same() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = world.until(Stage.TRAIN)
    taken = stamp(world.now)
    world.wait(290)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    world.kill(name, 137, of_another=True, conditions=[{**target, "lastTransitionTime": taken}])
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == "Preempted"


def test_a_record_without_the_newer_fields_is_understood() -> None:
    old = Failure(code=75, reason="Evicted", message="m", seconds=3.0)
    assert Failure.model_validate_json(old.to_json()) == old
