"""What a job waits for is told with why, since when and what to do."""

from typing import Any

import pytest

from finetune_contract import Stage
from tests.unit.lifecycle.world import World, job, stamped

SCHEDULER = "0/4 nodes are available: 2 Insufficient google.com/tpu."
ZONE = "Node scale up in zones us-east5-b associated with this pod failed: {}. Pod is at risk of not being scheduled."


def pending(world: World, name: str, **status: Any) -> str:
    """All pods of the JobSet are in that state; the first one's name."""
    world.schedule(name)
    pods = world.pods_of(name)
    for pod in pods:
        pod["status"] = {"phase": "Pending", **status}
    first: str = pods[0]["metadata"]["name"]
    return first


def without_a_node(seconds: float) -> tuple[World, str]:
    """Training's pods have found no node for so long."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.pods.clear()
    told = {
        "type": "PodScheduled",
        "status": "False",
        "message": SCHEDULER,
        "lastTransitionTime": stamped(world),
    }
    pod = pending(world, name, conditions=[told])
    world.wait(seconds)
    return world, pod


def event(
    kind: str, name: str, reason: str, message: str, at: str = "2026-11-21T12:00:00Z"
) -> dict[str, Any]:
    return {
        "metadata": {"name": reason, "creationTimestamp": at},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


def waiting(world: World) -> tuple[str, str]:
    world.reconcile()
    told = world.status["waiting"]
    return told["reason"], told["message"]


def test_a_node_that_shows_no_chips_for_a_moment_is_no_shortage() -> None:
    world, pod = without_a_node(20)
    world.object_events = [event("Pod", pod, "NotTriggerScaleUp", "not yet asked for")]
    reason, message = waiting(world)
    assert reason == "WaitingForCapacity"
    assert message.endswith("A TPU node that has just come shows its chips a moment later.")
    assert "uota" not in message
    assert world.condition("QuotaReserved")["status"] == "True"


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        (
            "TriggeredScaleUp",
            "pod triggered scale-up: [{…/instanceGroups/gke-v6e 0->4 (max: 4)}]",
            "gke-v6e 0->4 (max: 4)}]. Nodes are being made: nothing to do.",
        ),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 max node group size reached",
            "reached. Ask the platform team for a node pool with cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice, ",
        ),
        ("FailedScaleUp", ZONE.format("GCE out of resources"), "The zone has no such machines left"),
        ("FailedScaleUp", ZONE.format("GCE quota exceeded"), "raise the project's quota"),
        ("FailedScaleUp", ZONE.format("IP space exhausted"), "a larger range of pod addresses"),
        ("FailedScaleUp", ZONE.format("Reservation not found or incorrectly shared"), "reservation is right"),
        ("FailedScaleUp", ZONE.format("Invalid TPU topology"), "its machines do not make this slice"),
        ("FailedScaleUp", ZONE.format("Internal error"), "It is tried again by itself."),
        (
            "Scheduled",
            "of another program",
            "No autoscaler has said anything about it. Ask the platform team",
        ),
    ],
)
def test_what_the_autoscaler_says_is_told_with_what_to_do(reason: str, message: str, says: str) -> None:
    world, pod = without_a_node(90)
    world.object_events = [
        event("Pod", pod, reason, message),
        event("Pod", "another", "FailedScaleUp", "of another pod"),
    ]
    told = waiting(world)
    assert told[0] == "WaitingForCapacity"
    assert SCHEDULER in told[1]
    assert says in told[1]
    assert "of another pod" not in told[1]
    assert world.status["waiting"]["since"] == stamped(world, ago=90)


def test_the_autoscalers_last_word_counts() -> None:
    world, pod = without_a_node(90)
    world.object_events = [
        event("Pod", pod, "FailedScaleUp", ZONE.format("GCE out of resources"), "2026-11-21T12:09:00Z"),
        event("Pod", pod, "TriggeredScaleUp", "pod triggered scale-up: [0->1]", "2026-11-21T12:08:00Z"),
    ]
    assert "GCE out of resources" in waiting(world)[1]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("failed to authorize: failed to fetch oauth token: 403 Forbidden", "roles/artifactregistry.reader"),
        ("pull access denied, repository does not exist or may require authorization", "imagePullSecrets"),
        ('rpc error: code = NotFound desc = "trainer:v9": not found', "correct spec.images of the profile"),
        ("dial tcp: i/o timeout", "It is tried again by itself."),
    ],
)
def test_an_image_that_cannot_be_pulled_is_told_with_what_to_do(message: str, says: str) -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    since = stamped(world)
    state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
    pending(
        world,
        name,
        startTime=since,
        containerStatuses=[{"name": "trainer", "image": "trainer:v9", "state": state}],
    )
    world.wait(40)
    reason, told = waiting(world)
    assert reason == "WaitingForImage"
    assert "image trainer:v9: ImagePullBackOff: " in told
    assert says in told
    assert world.status["waiting"]["since"] == since


@pytest.mark.parametrize(
    "refusal",
    [
        'Error creating: pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=5, limited: pods=5',
        'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged',
    ],
)
def test_a_job_that_may_make_no_pods_is_told_in_the_controllers_words(refusal: str) -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.pods.clear()
    since = stamped(world)
    world.object_events = [event("Job", f"{name}-cpu-0", "FailedCreate", refusal)]
    world.wait(30)
    reason, told = waiting(world)
    assert reason == "WaitingForInput"
    assert refusal in told
    assert 'ServiceAccount "ft-cpu" in namespace "team-a"' in told
    assert world.status["waiting"]["since"] == since


def test_events_are_asked_for_only_while_something_is_in_the_way() -> None:
    world = World(job=job())
    while not world.finished:
        assert world.reconcile().closer is None
        for name in world.live():
            world.succeed(name)
