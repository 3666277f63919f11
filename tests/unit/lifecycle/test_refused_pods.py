"""Pods that the API server refuses: half a slice is named and let go, and the job tries again instead of failing."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api.timestamps import parse, stamp
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from tests.unit.lifecycle.test_limits import NOT_CHARGED, charged, flavors
from tests.unit.lifecycle.test_queueing import ADMITTED, RESERVED, queued
from tests.unit.lifecycle.test_waits import event
from tests.unit.lifecycle.world import World, job, profile

QUOTA = (
    'Error creating: pods "x" is forbidden: exceeded quota: tpu, requested: requests.google.com/tpu=4, used: '
    "requests.google.com/tpu=4, limited: requests.google.com/tpu=4"
)
#: As JobSet's webhook refuses the other pods of a slice whose first one has no node yet.
EXPECTED = (
    'Error creating: admission webhook "vpod.kb.io" denied the request: leader pod not yet scheduled, not creating '
    "follower pod. this is an expected, transient error"
)
LIMIT = 120


def two_hosts(*names: str, **spec: Any) -> World:
    """A job of two hosts under a profile with these flavors of one kind."""
    offered = [
        {**flavor, "name": name, "topologies": ["2x4"]}
        for name in names or ("spot",)
        for flavor in flavors("Spot")
    ]
    return World(job=job(resources={"tpu": "v6e-8"}, **spec), profiles=[profile(flavors=offered)])


def refuse(world: World, name: str, *, pods: int = 1, message: str = QUOTA) -> None:
    """The Job has got ``pods`` of its two pods, and keeps trying to create the others."""
    world.run(name)
    for pod in sorted(each["metadata"]["name"] for each in world.pods_of(name))[pods:]:
        del world.pods[pod]
    say(world, name, message)


def say(world: World, name: str, message: str = QUOTA) -> None:
    world.object_events = [event("Job", f"{name}-slice-0", "FailedCreate", message, stamp(world.now))]


def refused_until(world: World, name: str, seconds: float) -> None:
    """The refusals go on for that long."""
    end = world.now + timedelta(seconds=seconds)
    while world.now < end:
        world.wait(min(world.requeue_after or 30.0, (end - world.now).total_seconds()))
        say(world, name)
        world.reconcile()


def let_go(world: World, name: str) -> None:
    """The JobSet is being deleted, and its pods end without a record, as before they have found each other."""
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    world.lose(name)


def in_half(world: World, *, pods: int = 1) -> str:
    name = world.until(Stage.TRAIN)
    refuse(world, name, pods=pods)
    return name


def test_half_a_slice_is_named_and_held_for_the_named_time() -> None:
    world = two_hosts()
    name = in_half(world)
    refused_until(world, name, LIMIT - 5)
    waiting = world.status["waiting"]
    assert waiting["reason"] == "PodsRefused"
    assert "has 1 of 2 pods" in waiting["message"]
    assert "exceeded quota: tpu" in waiting["message"]
    assert "the 120 s of spec.hangPolicy.refusedPodsSeconds" in waiting["message"]
    assert world.status["phase"] == "Provisioning"
    assert world.live() == [name]
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]
    refused_until(world, name, 10)
    let_go(world, name)


def test_half_a_slice_that_was_let_go_is_queued_and_tried_again_with_growing_pauses() -> None:
    world = two_hosts()
    name = in_half(world)
    pauses, stalled = [], []
    for number in range(2, 8):
        refused_until(world, name, LIMIT + 5)
        let_go(world, name)
        begun = world.now
        world.reconcile()
        assert world.status["phase"] == "Queued"
        assert world.status["waiting"]["reason"] == "PodsRefused"
        assert "exceeded quota: tpu" in world.status["summary"]
        stalled += [each["status"] for each in world.status["conditions"] if each["type"] == "Stalled"]
        assert world.live() == []
        while not world.live():
            assert world.requeue_after is not None
            world.wait(world.requeue_after)
            world.reconcile()
        (name,) = world.live()
        assert name == f"support-bot-train-{number}"
        pauses.append((world.now - begun).total_seconds())
        refuse(world, name)
        world.reconcile()
    base = [min(1800, LIMIT * 2**number) for number in range(6)]
    assert all(least - 10 <= pause <= 2 * least for pause, least in zip(pauses, base, strict=True))
    assert (stalled[0], stalled[-1]) == ("False", "True")
    assert charged(world) == NOT_CHARGED
    history = world.status["attempts"]["history"]
    assert {each["reason"] for each in history if each["stage"] == "Train"} == {"PodsRefused"}
    world.object_events = []
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_two_jobs_do_not_pause_for_the_same_time() -> None:
    dues = set()
    for number in range(8):
        world = two_hosts()
        world.job["metadata"]["uid"] = f"0b5e3a52-8d0e-4c39-a7d6-00000000000{number}"
        name = in_half(world)
        refused_until(world, name, LIMIT + 5)
        let_go(world, name)
        world.reconcile()
        dues.add(round(world.requeue_after or 0))
    assert len(dues) == 8
    assert all(LIMIT - 10 <= due <= 2 * LIMIT for due in dues)


def test_the_next_flavor_is_tried_at_once_and_the_first_again_after_a_pause() -> None:
    world = two_hosts("spot-a", "spot-b")
    name = in_half(world)
    for attempt, flavor in ((2, "spot-b"), (3, "spot-a"), (4, "spot-b")):
        refused_until(world, name, LIMIT + 5)
        let_go(world, name)
        world.reconcile()
        if flavor == "spot-a":
            assert world.status["phase"] == "Queued"
        while not world.live():
            world.wait(world.requeue_after or 1)
            world.reconcile()
        (name,) = world.live()
        assert name == f"support-bot-train-{attempt}"
        annotations = world.jobsets[name]["metadata"]["annotations"]
        assert flavor in annotations.values()
        refuse(world, name)
        world.reconcile()
    assert charged(world) == NOT_CHARGED


@pytest.mark.parametrize(
    ("pods", "limit", "field"),
    [(1, 30, "hangPolicy.refusedPodsSeconds"), (0, 600, "preRunningDeadlineSeconds")],
)
def test_both_times_can_be_set(pods: int, limit: int, field: str) -> None:
    """Without any pod nothing is held."""
    world = two_hosts(hangPolicy={"refusedPodsSeconds": 30}, preRunningDeadlineSeconds=600)
    name = in_half(world, pods=pods)
    refused_until(world, name, limit - 5)
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]
    refused_until(world, name, 10)
    if name in world.jobsets:
        let_go(world, name)
    recorded = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert recorded is not None
    assert recorded.reason == "PodsRefused"
    assert f"{pods} of 2 pods for the {limit} s of spec.{field}" in recorded.message
    world.reconcile()
    assert world.status["phase"] == "Queued"


def test_a_quota_held_in_a_queue_is_let_go_without_any_pod() -> None:
    world = queued()
    world.job["spec"]["resources"] = {"tpu": "v6e-8"}
    name = world.until(Stage.TRAIN)
    world.workload(name, RESERVED, ADMITTED)
    world.hold(name, held=False)
    refuse(world, name, pods=0)
    refused_until(world, name, LIMIT - 5)
    assert name in world.jobsets
    refused_until(world, name, 10)
    assert name not in world.jobsets


def test_pods_of_a_slice_whose_first_has_no_node_are_not_refused() -> None:
    """JobSet's webhook refuses them until it has one; the wait for nodes has its own limit."""
    world = two_hosts()
    name = world.until(Stage.TRAIN)
    refuse(world, name, message=EXPECTED)
    for _ in range(20):
        world.wait(30)
        say(world, name, EXPECTED)
        world.reconcile()
    assert world.live() == [name]
    assert "expected" not in world.status["summary"]


def test_a_refusal_of_a_pod_that_waits_for_a_node_leaves_the_wait_for_nodes_its_limit() -> None:
    world = two_hosts()
    name = world.until(Stage.TRAIN)
    refuse(world, name)
    world.pods[f"{name}-0"] |= {"spec": {}, "status": {"phase": "Pending"}}
    refused_until(world, name, 600)
    assert world.live() == [name]


@pytest.mark.parametrize("old", [True, False], ids=["an old refusal", "no refusal"])
def test_pods_that_are_only_missing_are_left_to_jobset(old: bool) -> None:
    """One pod of a run was deleted, and JobSet is about to restart the slice."""
    world = two_hosts()
    name = world.until(Stage.TRAIN)
    if old:
        say(world, name)
    world.wait(1000)
    world.reconcile()
    del world.pods[f"{name}-1"]
    for _ in range(3):
        world.wait(5)
        world.reconcile()
    assert world.live() == [name]
    assert world.status["phase"] == "Recovering"


def test_the_users_stop_and_the_budget_come_before_the_refusal() -> None:
    world = two_hosts()
    name = in_half(world)
    refused_until(world, name, LIMIT - 5)
    world.edit(suspend=True)
    world.wait(60)
    world.reconcile()
    recorded = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert recorded is not None
    assert recorded.reason == "Suspended"


def test_a_job_is_cancelled_during_the_pause() -> None:
    world = two_hosts()
    name = in_half(world)
    refused_until(world, name, LIMIT + 5)
    let_go(world, name)
    world.reconcile()
    world.edit(cancel=True)
    world.reconcile()
    assert (world.status["phase"], world.status["failure"]["reason"]) == ("Failed", "Cancelled")


def test_a_refusal_is_decided_once_whatever_crashes() -> None:
    for crash_after in range(4):
        world = two_hosts()
        name = in_half(world)
        refused_until(world, name, LIMIT - 5)
        world.wait(10)
        say(world, name)
        try:
            world.reconcile(crash_after=crash_after)
        except Exception:  # noqa: BLE001  the crash
            world.wait(5)
        world.reconcile()
        let_go(world, name)
        recorded = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
        assert recorded is not None
        assert recorded.written is not None
        assert world.now - recorded.written <= timedelta(seconds=10)
        world.reconcile()
        assert world.status["phase"] == "Queued"
        assert parse(world.status["waiting"]["since"])


@pytest.mark.parametrize("code", [64, 65, 137])
def test_a_pod_that_has_failed_decides_and_not_a_refusal_before_it(code: int) -> None:
    world = two_hosts()
    name = world.until(Stage.TRAIN)
    world.wait(200)
    say(world, name)
    world.wait(20)
    pod = world.pods_of(name)[1]
    begun = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    end = {"exitCode": code, "startedAt": begun, "finishedAt": stamp(world.now)}
    end |= {"reason": "OOMKilled"} if code == 137 else {}
    pod["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "trainer", "state": {"terminated": end}}],
    }
    world.reconcile()
    world.lose(name)
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["attempts"]["user"] == 1


def test_a_pod_that_could_not_be_replaced_is_missing_since_its_refusal() -> None:
    world = two_hosts(hangPolicy={"startupSeconds": 36000})
    name = world.until(Stage.TRAIN)
    for _ in range(6):
        world.wait(600)
        world.reconcile()
    del world.pods[world.pods_of(name)[1]["metadata"]["name"]]
    begun = world.now
    say(world, name)
    world.object_events = [{**event, "firstTimestamp": stamp(begun)} for event in world.object_events or ()]
    world.wait(5)
    world.reconcile()
    assert world.live() == [name]
    world.wait(LIMIT + 10)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]


def test_flavors_without_nodes_end_the_job_although_pods_were_refused_before() -> None:
    world = two_hosts("a", "b", preRunningDeadlineSeconds=600)
    name = in_half(world)
    refused_until(world, name, LIMIT + 5)
    let_go(world, name)
    world.reconcile()
    world.object_events = []
    for _ in range(2):
        while not world.live():
            world.wait(world.requeue_after or 1)
            world.reconcile()
        (name,) = world.live()
        world.schedule(name)
        while name in world.jobsets and "deletionTimestamp" not in world.jobsets[name]["metadata"]:
            world.wait(620)
            world.reconcile()
        world.lose(name)
        world.reconcile()
    assert (world.status["phase"], world.status["failure"]["reason"]) == ("Failed", "NoCapacity")


@pytest.mark.timeout(120)
def test_a_jobset_of_any_numbers_costs_little_time() -> None:
    """A tenant can make its own job's JobSet anew, with what JobSet's webhook does not refuse."""
    world = World()
    world.admit()
    (name,) = world.live()
    groups = world.jobsets[name]["spec"]["replicatedJobs"]
    evil, more = copy.deepcopy(groups[0]), copy.deepcopy(groups[0])
    evil |= {"name": "a", "replicas": 2**31 - 1}
    evil["template"]["spec"]["parallelism"] = -1
    more |= {"name": "b", "replicas": 1}
    more["template"]["spec"]["parallelism"] = 2**31 - 1
    world.jobsets[name]["spec"]["replicatedJobs"] = [evil, more]
    world.wait(30)
    world.reconcile()
    assert world.status["phase"] == "Validating"
