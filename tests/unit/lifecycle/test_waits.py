"""The status reports what a job waits for, why, since when and the fix."""

from typing import Any

import pytest

from finetune_contract import Stage
from tests.unit.lifecycle.world import World, job, stamped

SCHEDULER = "0/4 nodes are available: 2 Insufficient google.com/tpu."
ZONE = "Node scale up in zones us-east5-b associated with this pod failed: {}. Pod is at risk of not being scheduled."


def pending(world: World, name: str, **status: Any) -> str:
    """Puts all pods of the JobSet into that state and returns the first one's name."""
    world.schedule(name)
    pods = world.pods_of(name)
    for pod in pods:
        pod["status"] = {"phase": "Pending", **status}
    first: str = pods[0]["metadata"]["name"]
    return first


def without_a_node(seconds: float) -> tuple[World, str]:
    """The pods of training have found no node for ``seconds``."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.pods.clear()
    reported = {
        "type": "PodScheduled",
        "status": "False",
        "message": SCHEDULER,
        "lastTransitionTime": stamped(world),
    }
    pod = pending(world, name, conditions=[reported])
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
    reported = world.status["waiting"]
    return reported["reason"], reported["message"]


def test_a_node_without_chips_for_a_moment_is_not_a_shortage() -> None:
    world, pod = without_a_node(20)
    world.object_events = [event("Pod", pod, "NotTriggerScaleUp", "not yet asked for")]
    reason, message = waiting(world)
    assert reason == "WaitingForCapacity"
    assert message.endswith("A new TPU node advertises its chips a moment later.")
    assert "uota" not in message
    assert world.condition("QuotaReserved")["status"] == "True"


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        (
            "TriggeredScaleUp",
            "pod triggered scale-up: [{…/instanceGroups/gke-v6e 0->4 (max: 4)}]",
            "gke-v6e 0->4 (max: 4)}]. Nodes are being created: no action is needed.",
        ),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 max node group size reached",
            "reached. Ask the platform team for a node pool with cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice, ",
        ),
        ("FailedScaleUp", ZONE.format("GCE out of resources"), "The zone has no such machines"),
        ("FailedScaleUp", ZONE.format("GCE quota exceeded"), "raise the project's quota"),
        ("FailedScaleUp", ZONE.format("IP space exhausted"), "a larger range of pod addresses"),
        (
            "FailedScaleUp",
            ZONE.format("Reservation not found or incorrectly shared"),
            "reservation is correct",
        ),
        ("FailedScaleUp", ZONE.format("Invalid TPU topology"), "its machines do not form this slice"),
        ("FailedScaleUp", ZONE.format("Internal error"), "The autoscaler retries automatically."),
        (
            "Scheduled",
            "of another program",
            "No autoscaler has reported on the pod. Ask the platform team",
        ),
    ],
)
def test_the_autoscalers_message_is_reported_with_a_fix(reason: str, message: str, expected: str) -> None:
    world, pod = without_a_node(90)
    world.object_events = [
        event("Pod", pod, reason, message),
        event("Pod", "another", "FailedScaleUp", "of another pod"),
    ]
    reported = waiting(world)
    assert reported[0] == "WaitingForCapacity"
    assert SCHEDULER in reported[1]
    assert expected in reported[1]
    assert "of another pod" not in reported[1]
    assert world.status["waiting"]["since"] == stamped(world, ago=90)


def test_the_autoscalers_latest_event_counts() -> None:
    world, pod = without_a_node(90)
    world.object_events = [
        event("Pod", pod, "FailedScaleUp", ZONE.format("GCE out of resources"), "2026-11-21T12:09:00Z"),
        event("Pod", pod, "TriggeredScaleUp", "pod triggered scale-up: [0->1]", "2026-11-21T12:08:00Z"),
    ]
    assert "GCE out of resources" in waiting(world)[1]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("failed to authorize: failed to fetch oauth token: 403 Forbidden", "roles/artifactregistry.reader"),
        ("pull access denied, repository does not exist or may require authorization", "imagePullSecrets"),
        ('rpc error: code = NotFound desc = "trainer:v9": not found', "correct spec.images of the profile"),
        ("dial tcp: i/o timeout", "Kubernetes retries automatically."),
    ],
)
def test_an_image_that_cannot_be_pulled_is_reported_with_a_fix(message: str, expected: str) -> None:
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
    reason, reported = waiting(world)
    assert reason == "WaitingForImage"
    assert "image trainer:v9: ImagePullBackOff: " in reported
    assert expected in reported
    assert world.status["waiting"]["since"] == since


@pytest.mark.parametrize(
    "refusal",
    [
        'Error creating: pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=5, limited: pods=5',
        'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged',
    ],
)
def test_a_job_that_may_not_create_pods_reports_the_controllers_message(refusal: str) -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.pods.clear()
    since = stamped(world)
    world.object_events = [event("Job", f"{name}-cpu-0", "FailedCreate", refusal)]
    world.wait(30)
    reason, reported = waiting(world)
    assert reason == "WaitingForInput"
    assert refusal in reported
    assert 'ServiceAccount "ft-cpu" exists in namespace "team-a"' in reported
    assert world.status["waiting"]["since"] == since


def test_a_webhook_that_is_down_for_pods_is_named_in_place_of_accounts_and_quotas() -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.pods.clear()
    refusal = (
        'Error creating: Internal error occurred: failed calling webhook "mpod.kb.io": failed to call webhook: Post '
        '"https://jobset-webhook-service.jobset-system.svc:443/mutate--v1-pod?timeout=10s": context deadline exceeded'
    )
    world.object_events = [event("Job", f"{name}-cpu-0", "FailedCreate", refusal)]
    world.wait(30)
    reported = waiting(world)[1]
    assert (
        f"JobSet {name} creates no pods: the API server works, but cannot call JobSet's webhook" in reported
    )
    assert (
        'Service "jobset-webhook-service" in namespace "jobset-system"): context deadline exceeded.'
        in reported
    )
    assert "ServiceAccount" not in reported


def test_events_are_read_only_while_a_job_is_blocked() -> None:
    world = World(job=job())
    while not world.finished:
        assert world.reconcile().details is None
        for name in world.live():
            world.succeed(name)
