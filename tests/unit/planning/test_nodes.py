"""The nodes that the pods of a slice select, and those that they avoid."""

from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import InvalidObject, parse_profile
from finetune_operator.planning import Findings, Refused, admit
from finetune_operator.planning.slices.topology import Placement
from finetune_operator.rendering import render_jobset
from tests.unit.lifecycle.world import job, profile

GKE = "cloud.google.com/"
PASSING = {"gke-spot", "gke-preemptible", "gke-flex-start", "gke-queued", "gke-provisioning"}


def flavor(capacity: str = "OnDemand", **more: Any) -> dict[str, Any]:
    return {
        "name": "one",
        "capacity": capacity,
        "accelerator": "tpu-v6e-slice",
        "topologies": ["2x2", "4x4"],
        **more,
    }


def placement(offered: dict[str, Any], wanted: Any = None, **spec: Any) -> Placement:
    return admit(wanted or job(), [profile(flavors=[offered], **spec)]).plan.placement


RESERVATIONS: list[tuple[str, dict[str, str]]] = [
    ("spring", {"name": "spring"}),
    ("projects/other/reservations/spring", {"name": "spring", "project": "other"}),
    ("spring/reservationBlocks/b-1", {"name": "spring", "blocks": "b-1"}),
    (
        "projects/other/reservations/spring/reservationBlocks/b-1/reservationSubBlocks/s-2",
        {"name": "spring", "project": "other", "blocks": "b-1", "subblocks": "s-2"},
    ),
]


@pytest.mark.parametrize(("reservation", "labels"), RESERVATIONS)
def test_a_reservation_is_selected_by_its_parts(reservation: str, labels: dict[str, str]) -> None:
    selector = placement(flavor("Reservation", reservation=reservation)).node_selector
    found = {key: value for key, value in selector.items() if "/reservation-" in key}
    assert found == {f"{GKE}reservation-{part}": value for part, value in labels.items()}


@pytest.mark.parametrize(
    "reservation",
    [
        "projects/p/reservations/r/blocks/b",
        "projects/p/reservations/r/",
        "projects/p/r",
        "r/reservationSubBlocks/s",
        "r/reservationBlocks/",
        "Spring",
        "r" * 64,
        "r " * 2,
    ],
)
def test_a_reservation_that_is_no_valid_label_makes_a_profile_invalid(reservation: str) -> None:
    with pytest.raises(InvalidObject, match=r"flavors\[0\].reservation"):
        parse_profile(profile(flavors=[flavor("Reservation", reservation=reservation)]))


def test_an_empty_value_removes_a_label_of_the_operator() -> None:
    seven = {"name": "seven", "capacity": "OnDemand", "accelerator": "tpu7x", "topologies": ["2x2x2"]}
    wanted = job(resources={"tpu": "tpu7x-2x2x2"})
    policy = f"{GKE}placement-policy-name"
    assert placement(seven, wanted).node_selector[policy] == "tpu7x-16-2x2x2-placement-policy"
    own = {**seven, "nodeSelector": {policy: "ours"}}
    assert placement(own, wanted).node_selector[policy] == "ours"
    none = {**seven, "nodeSelector": {policy: "", "pool": ""}}
    selector = placement(none, wanted).node_selector
    assert policy not in selector
    assert selector["pool"] == ""


def avoided(offered: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Returns the node labels that a pod of Train avoids, by label."""
    plan = admit(job(), [profile(flavors=[offered], **spec)]).plan
    jobset = render_jobset(plan, Stage.TRAIN, 1, Findings())
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    if "affinity" not in pod:
        return {}
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert {each["operator"] for each in term["matchExpressions"]} == {"NotIn"}
    return {each["key"].removeprefix(GKE): each["values"] for each in term["matchExpressions"]}


def test_on_demand_pods_avoid_preemptible_nodes() -> None:
    found = avoided(flavor())
    assert set(found) == PASSING
    assert "flex-start" in found["gke-provisioning"]
    chosen = {"nodeSelector": {f"{GKE}gke-provisioning": "standard"}}
    assert set(avoided(flavor(**chosen))) == PASSING - {"gke-provisioning"}


@pytest.mark.parametrize(
    "offered",
    [flavor("Spot"), flavor("FlexStart"), flavor("Reservation", reservation="r")],
    ids=lambda f: f["capacity"],
)
def test_pods_selected_by_a_capacity_label_avoid_no_nodes(offered: dict[str, Any]) -> None:
    assert avoided(offered) == {}


QUEUED = {"queue": {"localQueue": "team-tpu"}}
FLEX_START = f"{GKE}gke-flex-start"


def test_queued_flex_start_is_provisioned_by_the_queue_by_default() -> None:
    by_queue = placement(flavor("FlexStart"), **QUEUED)
    assert by_queue.queued_provisioning
    assert FLEX_START not in by_queue.node_selector
    assert set(avoided(flavor("FlexStart"), **QUEUED)) == {"gke-spot", "gke-preemptible", "gke-provisioning"}
    by_label = placement(flavor("FlexStart", queuedProvisioning=False), **QUEUED)
    assert not by_label.queued_provisioning
    assert by_label.node_selector[FLEX_START] == "true"


def test_the_queue_label_of_a_job_applies_if_the_profile_allows_it() -> None:
    wanted = job()
    assert not placement(flavor("FlexStart"), wanted, queue={"allowJobLabels": True}).queued_provisioning
    wanted["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "mine"}
    assert placement(flavor("FlexStart"), wanted, queue={"allowJobLabels": True}).queued_provisioning


def test_queued_provisioning_needs_a_queue_and_flex_start() -> None:
    with pytest.raises(Refused, match="flavor one has queuedProvisioning: true, and no queue admits the job"):
        placement(flavor("FlexStart", queuedProvisioning=True))
    assert placement(flavor("FlexStart", queuedProvisioning=True), **QUEUED).queued_provisioning
    with pytest.raises(InvalidObject, match="queuedProvisioning is for capacity: FlexStart"):
        parse_profile(profile(flavors=[flavor("Spot", queuedProvisioning=True)]))


# --- what pods request of a host -----------------------------------------------------------------------------

HALF = {"cpu": "90", "memory": "300Gi"}


@pytest.mark.parametrize(
    ("more", "spec", "requested"),
    [
        ({}, {}, {"cpu": "177", "memory": "649Gi"}),
        ({"hostResources": HALF}, {}, HALF),
        ({"hostResources": {"cpu": "2"}}, {}, {"cpu": "2"}),
        ({"hostResources": {}}, {}, {}),
        # a ClusterQueue may cover chips alone
        ({}, QUEUED, {}),
        ({"hostResources": HALF}, QUEUED, HALF),
    ],
)
def test_what_a_pod_requests_of_its_host(
    more: dict[str, Any], spec: dict[str, Any], requested: dict[str, str]
) -> None:
    assert placement(flavor(**more), **spec).host_resources == requested


def test_a_host_without_published_figures_gives_no_default() -> None:
    offered = flavor(accelerator="tpu7x", topologies=["1x1x1"])
    assert placement(offered, job(resources={"tpu": "tpu7x-1x1x1"})).host_resources == {}


@pytest.mark.parametrize("controller", ["McJAX", "Pathways"])
def test_memory_is_the_limit_too_and_cpu_may_burst(controller: str) -> None:
    wanted = job(resources={"tpu": "v6e-16", "controller": controller})
    admitted = admit(wanted, [profile(flavors=[flavor(hostResources=HALF)])])
    jobset = render_jobset(admitted.plan, Stage.TRAIN, 1, Findings())
    pods = [each["template"]["spec"]["template"]["spec"] for each in jobset["spec"]["replicatedJobs"]]
    (resources,) = [
        container["resources"]
        for pod in pods
        for container in pod["containers"]
        if "google.com/tpu" in container["resources"]["limits"]
    ]
    assert resources == {
        "requests": {"google.com/tpu": "4", **HALF},
        "limits": {"google.com/tpu": "4", "memory": "300Gi"},
    }
