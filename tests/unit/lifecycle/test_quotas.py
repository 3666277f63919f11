"""ResourceQuotas are compared with the slices that a job may take, before it is admitted."""

from typing import Any

import pytest

from tests.unit.lifecycle.test_limits import flavors
from tests.unit.lifecycle.world import World, job, profile

CHIPS = "requests.google.com/tpu"


def quota(name: str = "tpu", scopes: dict[str, Any] | None = None, **hard: str) -> dict[str, Any]:
    limits = {key.replace("chips", CHIPS): room for key, room in hard.items()}
    return {"metadata": {"name": name}, "spec": {"hard": limits, **(scopes or {})}}


def world_of(resources: dict[str, Any], *quotas: dict[str, Any]) -> World:
    """A job under a profile with slices of 4 and of 8 chips."""
    offered = [{**each, "topologies": ["2x2", "2x4"], "maxSlices": 2} for each in flavors("OnDemand")]
    return World(job=job(resources=resources), profiles=[profile(flavors=offered)], quotas=list(quotas))


TWO_HOSTS = {"tpu": "v6e-8"}


@pytest.mark.parametrize(
    ("resources", "limit", "message"),
    [
        (
            TWO_HOSTS,
            quota(chips="4"),
            f"ResourceQuota tpu of namespace team-a allows 4 of {CHIPS}, and v6e-8 needs 8",
        ),
        (TWO_HOSTS, quota(chips="0"), f"allows 0 of {CHIPS}, and v6e-8 needs 8"),
        ({**TWO_HOSTS, "slices": 2}, quota(chips="15"), "and 2 x v6e-8 needs 16"),
        (TWO_HOSTS, quota(pods="1"), "allows 1 of pods, and v6e-8 needs 2"),
        (TWO_HOSTS, quota(**{"count/pods": "1"}), "allows 1 of count/pods, and v6e-8 needs 2"),
        ({**TWO_HOSTS, "slices": 2}, quota(pods="3"), "allows 3 of pods, and 2 x v6e-8 needs 4"),
        (
            {**TWO_HOSTS, "slices": 2},
            quota(**{"count/jobs.batch": "1"}),
            "allows 1 of count/jobs.batch, and 2 x v6e-8 needs 2",
        ),
        (
            TWO_HOSTS,
            quota(**{"count/jobsets.jobset.x-k8s.io": "0"}),
            "allows 0 of count/jobsets.jobset.x-k8s.io, and v6e-8 needs 1",
        ),
        ({}, quota(chips="0"), "even v6e-4, the smallest slice that the job may take, needs 4"),
    ],
)
def test_a_quota_without_room_for_the_slice_is_named_before_anything_starts(
    resources: dict[str, Any], limit: dict[str, Any], message: str
) -> None:
    world = world_of(resources, quota("other", chips="64"), limit)
    world.reconcile()
    assert world.jobsets == {}
    valid = world.condition("Valid")
    assert (valid["status"], valid["reason"]) == ("False", "QuotaTooSmall")
    assert message in valid["message"]
    assert world.requeue_after is not None
    assert world.requeue_after <= 60
    limit["spec"]["hard"] = {CHIPS: "16"}
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("resources", "limit"),
    [
        (TWO_HOSTS, quota(chips="8", pods="2")),
        (TWO_HOSTS, quota(**{"count/jobs.batch": "1", "count/jobsets.jobset.x-k8s.io": "1"})),
        ({**TWO_HOSTS, "slices": 2}, quota(chips="16", pods="4", **{"count/jobs.batch": "2"})),
        # Of a job that names no slice, preflight may choose the smaller one.
        ({}, quota(chips="4")),
        (TWO_HOSTS, quota(cpu="1")),
        (TWO_HOSTS, quota(chips="0", scopes={"scopes": ["Terminating"]})),
        (TWO_HOSTS, quota(chips="0", scopes={"scopeSelector": {"matchExpressions": []}})),
        (TWO_HOSTS, quota(chips="many")),
        (TWO_HOSTS, {"metadata": {}, "spec": {}}),
    ],
)
def test_a_quota_with_room_or_for_other_pods_lets_the_job_start(
    resources: dict[str, Any], limit: dict[str, Any]
) -> None:
    world = world_of(resources, limit)
    world.admit()
    assert world.live() == ["support-bot-prep-1"]


def events(world: World) -> list[tuple[str, str]]:
    return [(each.type, each.message) for each in world.events if each.reason == "QuotaTooSmall"]


@pytest.mark.parametrize(("chips", "pods"), [("4", "64"), ("64", "1")])
def test_a_job_whose_largest_slice_has_no_room_says_so_and_starts(chips: str, pods: str) -> None:
    world = world_of({}, quota(chips=chips, pods=pods))
    world.admit()
    ((kind, message),) = events(world)
    assert kind == "Warning"
    assert "v6e-8 needs" in message
    assert message.endswith("Training can start only on a smaller slice.")
    assert world.live() == ["support-bot-prep-1"]
    world.reconcile()
    assert len(events(world)) == 1


def test_quotas_that_leave_room_for_every_slice_are_not_remarked() -> None:
    world = world_of({}, quota(chips="8", pods="2"))
    world.admit()
    assert events(world) == []


def test_a_job_that_only_plans_needs_no_chips_of_a_quota() -> None:
    world = world_of(TWO_HOSTS, quota(chips="0"))
    world.job["spec"]["planOnly"] = True
    world.admit()
    assert world.live() == ["support-bot-prep-1"]
