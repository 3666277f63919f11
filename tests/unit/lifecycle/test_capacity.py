"""Waits for nodes, states that only resemble them, and how every wait ends."""

from typing import Any

import pytest

from finetune_contract import Failure, Stage
from finetune_operator.api.timestamps import parse, stamp
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from tests.unit.lifecycle.test_blind import MALFORMED
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
from tests.unit.lifecycle.writes import writes

pytestmark = pytest.mark.slow

#: Seconds for which Kueue admitted a Workload before.
PAST = "accumulatedPastExecutionTimeSeconds"
#: Longer than spec.preRunningDeadlineSeconds is by default.
HOURS = 3 * 3600


def pass_time(world: World, seconds: float) -> None:
    """Reconciles at most a hundred times; deleted JobSets end when their pods receive SIGTERM."""
    end = world.now.timestamp() + seconds
    while world.now.timestamp() < end:
        requested = max(world.requeue_after or 30.0, seconds / 100)
        world.wait(max(1.0, min(requested, end - world.now.timestamp())))
        world.reconcile()
        for name, jobset in list(world.jobsets.items()):
            if "deletionTimestamp" in jobset["metadata"]:
                world.stop(name)


def in_training(world: World, *, stepped: bool = True) -> str:
    """Training has run for hours; ``stepped``: whether it has reported steps."""
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
    assert writes(decision).deletions == ()
    assert writes(decision).records == ()


def run_worker(world: World, name: str) -> None:
    add_worker(world, name)
    world.pods[f"{name}-worker-0"]["status"] = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "pathways-worker", "state": {"running": {"startedAt": stamp(world.now)}}}
        ],
    }


def unplaced_worker(world: World, name: str) -> None:
    add_worker(world, name)
    pod = world.pods[f"{name}-worker-0"]
    pod["metadata"]["creationTimestamp"] = stamp(world.now)
    pod |= {"spec": {}, "status": {"phase": "Pending"}}


@pytest.mark.parametrize("tpu", ["v6e-4", "v6e-8"])
@pytest.mark.parametrize("evictions", [None, 0, 1])
def test_a_pod_that_vanishes_after_hours_is_replaced_by_jobset(tpu: str, evictions: int | None) -> None:
    """``evictions`` is the number of earlier evictions; None means that there is no queue."""
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
        assert world.requeue_after is not None
        assert world.requeue_after <= 10
        assert world.status["phase"] == "Recovering"
        assert "creates no pods" not in world.status["summary"]
    world.restart(name)
    world.reconcile()
    assert world.live() == [name]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert charged(world)["infrastructure"] == 0


def test_an_evaluation_pod_that_vanishes_after_hours_is_replaced_by_jobset() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = world.until(Stage.EVALUATE)
    for _ in range(HOURS // 600):
        world.wait(600)
        world.reconcile()
    remove(world, f"{name}-0")
    assert world.status["phase"] == "Recovering"
    assert world.requeue_after is not None
    assert world.requeue_after <= 10
    assert "creates no pods" not in world.status["summary"]


@pytest.mark.parametrize("trace", [True, False], ids=["its old pod stays", "its old pod is gone"])
@pytest.mark.parametrize("stepped", [True, False])
def test_replacing_a_pathways_worker_after_hours_is_not_a_capacity_wait(trace: bool, stepped: bool) -> None:
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
    unplaced_worker(world, name)
    decision = world.reconcile()
    assert writes(decision).deletions == ()
    assert writes(decision).records == ()


def lose_worker(world: World, name: str, *, trace: bool = True) -> None:
    """The worker's Spot node is preempted; the replacement pod finds no node. ``trace``: the old pod remains."""
    old = world.pods.pop(f"{name}-worker-0")
    if trace:
        reported = {**DISRUPTED["conditions"][0], "lastTransitionTime": stamp(world.now)}
        world.pods[f"{name}-{world.now.timestamp()}"] = {
            **old,
            "metadata": {**old["metadata"], "name": f"{name}-{world.now.timestamp()}"},
            "status": {**old["status"], "phase": "Failed", "conditions": [reported]},
        }
    unplaced_worker(world, name)


def place_worker(world: World, name: str) -> None:
    made = world.pods[f"{name}-worker-0"]["metadata"]["creationTimestamp"]
    run_worker(world, name)
    world.pods[f"{name}-worker-0"]["metadata"]["creationTimestamp"] = made


def on_pathways(stage: Stage = Stage.TRAIN) -> tuple[World, str]:
    """The stage has run for hours."""
    world = pathways()
    name = world.until(stage)
    run_worker(world, name)
    for step in range(1, 15):
        world.wait(600)
        if stage is Stage.TRAIN:
            world.train(name, step)
        world.reconcile()
    assert world.status["phase"] == "Running"
    return world, name


def deleting(world: World, name: str) -> bool:
    return name not in world.jobsets or "deletionTimestamp" in world.jobsets[name]["metadata"]


def until_deleted(world: World, name: str, seconds: float) -> float:
    """Returns the seconds until the JobSet is deleted, at most ``seconds``."""
    for passed in range(60, int(seconds) + 60, 60):
        world.wait(60)
        world.reconcile()
        if deleting(world, name):
            return passed
    return seconds


@pytest.mark.parametrize("trace", [True, False], ids=["its old pod stays", "its old pod is gone"])
def test_waiting_for_a_replacement_worker_is_not_counted_as_a_hang(
    trace: bool,
) -> None:
    world, name = on_pathways()
    lose_worker(world, name, trace=trace)
    assert until_deleted(world, name, 7000) == 7000
    assert world.status["phase"] == "Recovering"
    place_worker(world, name)
    # Pathways reconnects the worker and loads again, which has the time limit of a start.
    assert until_deleted(world, name, 1700) == 1700
    world.train(name, 16)
    world.reconcile()
    assert world.status["phase"] == "Running"
    assert charged(world) == NOT_CHARGED
    assert 900 <= until_deleted(world, name, 1200) <= 1000


@pytest.mark.parametrize("stage", [Stage.TRAIN, Stage.EVALUATE])
@pytest.mark.parametrize("trace", [True, False], ids=["its old pod stays", "its old pod is gone"])
def test_a_replacement_worker_without_a_node_ends_as_no_capacity(stage: Stage, trace: bool) -> None:
    world, name = on_pathways(stage)
    lose_worker(world, name, trace=trace)
    assert 7200 <= until_deleted(world, name, 9000) <= 7300
    recorded = world.attempts[AttemptKey(stage, 1)].failure
    assert recorded is not None
    assert recorded.reason == "NoCapacity"


@pytest.mark.parametrize("placed", [True, False], ids=["placed in between", "one after the other"])
def test_repeated_worker_losses_do_not_wait_forever(placed: bool) -> None:
    """If training makes no step in between, waits and hang timeouts end."""
    world, name = on_pathways()
    total = 0.0
    while not deleting(world, name) and total < 48 * 3600:
        lose_worker(world, name, trace=False)
        total += until_deleted(world, name, 1200)
        if placed and not deleting(world, name):
            place_worker(world, name)
            total += until_deleted(world, name, 600)
    assert total <= 900 + 7200 + 1800 + 120


def test_a_damaged_progress_record_does_not_end_the_wait_for_a_worker() -> None:
    world, name = on_pathways()
    world.progress_unknown = MALFORMED
    lose_worker(world, name)
    assert until_deleted(world, name, 7000) == 7000


def test_training_stalled_by_a_preempted_worker_is_charged_as_a_preemption() -> None:
    """This also holds if no pod replaces the worker."""
    world, name = on_pathways()
    lose_worker(world, name)
    del world.pods[f"{name}-worker-0"]
    assert 900 <= until_deleted(world, name, 1200) <= 1000
    world.pods.clear()
    world.lose(name)
    world.reconcile()
    assert charged(world) == {**NOT_CHARGED, "preemption": 1}
    assert world.status["attempts"]["history"][-1]["reason"] == "Preempted"


def test_training_stalled_long_after_a_worker_preemption_is_hung() -> None:
    world, name = on_pathways()
    lose_worker(world, name)
    place_worker(world, name)
    for step in range(15, 20):
        world.wait(600)
        world.train(name, step)
        world.reconcile()
    until_deleted(world, name, 1200)
    recorded = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert recorded is not None
    assert recorded.reason == "Hung"


def test_a_replacement_pod_on_several_hosts_waits_for_a_node() -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = in_training(world)
    del world.pods[f"{name}-1"]
    waiting(world, name)
    assert 7200 <= until_deleted(world, name, 9000) <= 7300
    recorded = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert recorded is not None
    assert recorded.reason == "NoCapacity"


def test_training_with_reported_steps_that_has_no_pods_does_not_wait_for_capacity() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = in_training(world)
    del world.attempts[world.key_of(name)]
    remove(world, f"{name}-0")
    until_deleted(world, name, 1200)
    recorded = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert recorded is not None
    assert recorded.reason == "PodsMissing"


def test_the_capacity_wait_of_unplaced_pathways_workers_ends() -> None:
    """The head, which requests no chips, runs meanwhile."""
    world = pathways()
    name = world.until(Stage.TRAIN)
    unplaced_worker(world, name)
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
def test_the_next_flavor_follows_a_capacity_timeout_after_a_preemption(saved: bool, pods: bool) -> None:
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


def test_a_restart_without_nodes_on_the_second_flavor_names_that_flavor() -> None:
    world = two_kinds()
    until_placed(world, Stage.TRAIN)
    pass_time(world, 700)
    (second,) = world.live()
    world.run(second)
    world.train(second, 20)
    world.reconcile()
    annotations = world.jobsets[second]["metadata"]["annotations"]
    world.stop(second)
    world.profiles = []
    world.reconcile()
    names = world.live()
    assert annotations["tpu-finetune.dev/flavor"] == "ondemand"
    if names == [second]:
        waiting(world, second)
        pass_time(world, 700)
        recorded = world.attempts[AttemptKey(Stage.TRAIN, 2, 1)].failure
        assert recorded is not None
        assert recorded.actual == "ondemand"


@pytest.mark.parametrize("stage", [None, "Train"])
@pytest.mark.parametrize("later", [0, 7 * HOURS])
def test_a_manual_retry_tries_every_flavor_again(stage: str | None, later: float) -> None:
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


def test_retrying_an_earlier_stage_during_a_later_one_does_not_wait_forever() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = world.until(Stage.EVALUATE)
    world.edit(retry={"generation": 1, "fromStage": "Train"})
    world.reconcile()
    world.kill(name, 1)
    for _ in range(4):
        world.reconcile()
        world.wait(world.requeue_after or 0)
    assert world.live() == ["support-bot-train-2"]
    waiting(world, "support-bot-train-2")
    pass_time(world, 8000)
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "NoCapacity"


# --- Kueue's waitForPodsReady


def two_kinds_in_a_queue() -> World:
    queues = {"localQueue": "team-tpu", "cpuLocalQueue": "team-cpu"}
    world = World(
        job=job(resources={"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}),
        profiles=[profile(flavors=flavors("OnDemand", "Spot"), queue=queues)],
    )
    world.edit(preRunningDeadlineSeconds=3600)
    return world


def admit(world: World, name: str) -> None:
    reported = (world.workloads or {}).get(name, {}).get("status", {})
    kept = {key: reported[key] for key in ("schedulingStats", PAST) if key in reported}
    world.workload(name, RESERVED, ADMITTED, **kept)
    world.hold(name, held=False)


def give_up(world: World, name: str, reason: str = "PodsReadyTimeout") -> None:
    """Kueue revokes the quota and counts how long it was assigned."""
    status = world.workloads[name]["status"] if world.workloads else {}
    since = next(each for each in status["conditions"] if each["type"] == "Admitted")["lastTransitionTime"]
    past = status.get(PAST, 0) + int((world.now - parse(since)).total_seconds())
    times = sum(each["count"] for each in status.get("schedulingStats", {}).get("evictions", ())) + 1
    stats = {"evictions": [{"reason": reason, "underlyingCause": "", "count": times}]}
    pending = ("QuotaReserved", "False", "Pending", "1 more needed")
    world.workload(
        name, pending, ("Evicted", "True", reason, "exceeded"), **{PAST: past}, schedulingStats=stats
    )
    world.hold(name, held=True)
    world.reconcile()


def waiting_in_turns(world: World, name: str, *, seconds: float = 1800, most: int = 20) -> int:
    """Returns how often the Workload was admitted until the operator deleted the JobSet."""
    for times in range(1, most):
        admit(world, name)
        waiting(world, name)
        world.wait(seconds)
        world.reconcile()
        if not deleting(world, name):
            give_up(world, name)
        if deleting(world, name):
            # Its pods terminate slowly, and the Workload still exists.
            world.reconcile()
            world.lose(name)
            world.reconcile()
            world.reconcile()
            return times
        world.wait(300)
        world.reconcile()
    return most


def until_queued(world: World, stage: Stage) -> str:
    while True:
        world.reconcile()
        for name in world.live():
            if world.key_of(name).stage is stage:
                return name
            world.succeed(name)


def test_repeated_pods_ready_timeouts_do_not_restart_the_capacity_wait() -> None:
    world = two_kinds_in_a_queue()
    assert until_queued(world, Stage.TRAIN) == "support-bot-train-1"
    assert waiting_in_turns(world, "support-bot-train-1") == 2
    assert world.live() == ["support-bot-train-2"]
    assert world.status["resolved"]["resources"]["capacity"] == "OnDemand"
    # The wait of the next attempt is separate.
    assert waiting_in_turns(world, "support-bot-train-2", seconds=1000) == 4
    assert world.status["failure"]["reason"] == "NoCapacity"
    assert charged(world) == NOT_CHARGED


def test_pods_ready_timeouts_do_not_restart_the_capacity_wait_on_cpu() -> None:
    world = two_kinds_in_a_queue()
    assert waiting_in_turns(world, until_queued(world, Stage.CONVERT)) == 2
    assert world.status["failure"]["reason"] == "NoCapacity"


@pytest.mark.parametrize("restarted", [False, True])
def test_only_the_time_after_an_attempt_ran_counts_as_waiting(restarted: bool) -> None:
    world = two_kinds_in_a_queue()
    name = until_queued(world, Stage.TRAIN)
    for step in range(1, 8):
        admit(world, name)
        world.wait(900)
        world.run(name)
        for _ in range(12):
            world.wait(600)
            world.train(name, step)
            world.reconcile()
        world.save(name)
        give_up(world, name, "Preempted")
        assert world.live() == [name]
    if restarted:
        admit(world, name)
        world.run(name)
        world.wait(60)
        world.stop(name)
        world.reconcile()
        give_up(world, name, "Preempted")
    assert waiting_in_turns(world, name) == 1
    # The attempt has ended: the next one has never run.
    (second,) = world.live()
    assert second == "support-bot-train-2"
    assert world.status["resolved"]["resources"]["capacity"] == "Spot"
    assert waiting_in_turns(world, second) == 2
    assert world.status["resolved"]["resources"]["capacity"] == "OnDemand"
    assert charged(world) == NOT_CHARGED
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize("stage", [Stage.PREFLIGHT, Stage.CONVERT, Stage.EXPORT])
def test_a_cpu_stage_without_a_node_fails_the_job(stage: Stage) -> None:
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


def test_waiting_for_quota_on_cpu_is_not_waiting_for_nodes() -> None:
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


def test_a_missing_secret_or_image_on_cpu_is_not_a_capacity_wait() -> None:
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


CREATING = {"reason": "ContainerCreating"}
NO_IMAGE = {"reason": "ImagePullBackOff", "message": "no such image"}
NO_SECRET = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}


def placed(world: World, stage: Stage, held: dict[str, str]) -> str:
    """The pods of the stage have nodes but do not start."""
    name = until_placed(world, stage)
    since = stamp(world.now)
    for pod in world.pods_of(name):
        pod["spec"] = {**pod["spec"], "nodeName": "node-1"}
        pod["status"] = {
            "phase": "Pending",
            "startTime": since,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}],
            "containerStatuses": [{"name": "trainer", "state": {"waiting": held}}],
        }
    world.reconcile()
    return name


@pytest.mark.parametrize("stage", [Stage.PREFLIGHT, Stage.CONVERT, Stage.TRAIN])
def test_an_attempt_with_a_pod_that_never_starts_ends_with_the_reason(stage: Stage) -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 1}))
    world.edit(preRunningDeadlineSeconds=600)
    for number in (1, 2):
        name = placed(world, stage, CREATING)
        assert name.endswith(f"-{number}")
        assert "waiting" not in world.status, "pods need time to start"
        world.object_events = [
            {
                "metadata": {"name": "e"},
                "involvedObject": {"kind": "Pod", "name": f"{name}-0"},
                "type": "Warning",
                "reason": "FailedMount",
                "message": 'MountVolume.SetUp failed for volume "tmp"',
                "lastTimestamp": stamp(world.now),
            }
        ]
        pass_time(world, 500)
        assert world.live() == [name]
        assert world.status["waiting"]["reason"] == "WaitingForPod"
        for part in (f"{name}-0", "node-1", "ContainerCreating", "MountVolume.SetUp failed"):
            assert part in world.status["waiting"]["message"]
        pass_time(world, 120)
        assert name not in world.live()
        assert world.status["attempts"]["history"][-1]["reason"] == "PodNotStarted"
        world.reconcile()
    assert charged(world) == {**NOT_CHARGED, "infrastructure": 2}
    assert world.status["failure"]["reason"] == "RetriesExhausted"
    assert "ContainerCreating" in world.status["failure"]["message"]


@pytest.mark.parametrize(("held", "reason"), [(NO_IMAGE, "WaitingForImage"), (NO_SECRET, "SecretNotFound")])
def test_a_missing_object_on_cpu_stalls_the_job_until_it_exists(held: dict[str, str], reason: str) -> None:
    world = World()
    world.edit(preRunningDeadlineSeconds=600)
    name = placed(world, Stage.CONVERT, held)
    pass_time(world, 500)
    assert world.condition("Stalled")["status"] == "False"
    pass_time(world, HOURS)
    assert world.live() == [name]
    stalled = world.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", reason)
    assert held["message"] in stalled["message"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN])
def test_an_externally_suspended_jobset_waits_for_its_resumption(stage: Stage) -> None:
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
def test_a_stage_that_exceeds_its_time_limit_is_restarted_and_charged(
    stage: Stage, limit: int | None
) -> None:
    world = World()
    if limit:
        world.edit(hangPolicy={"stageSeconds": limit})
    name = world.until(stage)
    seconds = limit or (6 * 3600 if stage is Stage.EVALUATE else 24 * 3600)
    pass_time(world, seconds - 60)
    assert world.live() == [name]
    pass_time(world, 200)
    assert name not in world.live()
    reported = world.status["attempts"]["history"][-1]
    assert (reported["reason"], reported["class"]) == ("StageTimeout", "Infrastructure")
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert charged(world)["infrastructure"] == 1


def test_a_stage_that_never_ends_fails_the_job_and_names_the_limit_to_raise() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 1}))
    for _ in range(2):
        world.until(Stage.EVALUATE)
        pass_time(world, 6 * 3600 + 700)
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "RetriesExhausted"
    assert "spec.hangPolicy.stageSeconds" in world.status["failure"]["message"]
    assert "spec.hangPolicy.stageSeconds" in world.status["failure"]["suggestion"]


def test_only_steps_determine_whether_training_hangs() -> None:
    world = World()
    world.edit(hangPolicy={"stageSeconds": 600})
    name = in_training(world)
    assert world.live() == [name]


def test_interrupted_training_that_jobset_never_restarts_is_ended() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = in_training(world)
    remove(world, f"{name}-0")
    pass_time(world, 2000)
    assert name not in world.live()
    assert any(each["reason"] == "PodsMissing" for each in world.status["attempts"]["history"])


@pytest.mark.parametrize(("others", "seconds"), [(1, 5), (1_000_000, 15)])
def test_interrupted_training_is_reconciled_soon_despite_many_other_jobs(others: int, seconds: float) -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}), live_jobs=others)
    remove(world, f"{in_training(world)}-0")
    world.reconcile()
    assert world.requeue_after == seconds


# --- old disruptions


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
def test_a_disruption_explains_only_a_later_failure(ago: float, message: str, reason: str) -> None:
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


def test_a_pod_that_saves_for_its_whole_grace_period_was_preempted() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    name = world.until(Stage.TRAIN)
    taken = stamp(world.now)
    world.wait(290)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    world.kill(name, 137, of_another=True, conditions=[{**target, "lastTransitionTime": taken}])
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == "Preempted"


def test_a_record_without_newer_fields_is_read() -> None:
    old = Failure(code=75, reason="Evicted", message="m", seconds=3.0)
    assert Failure.model_validate_json(old.to_json()) == old
