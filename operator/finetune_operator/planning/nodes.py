"""What a TPU pod must carry to land on its slice: GKE's labels and taints for the shape and for how it is bought."""

import re
from collections.abc import Mapping
from typing import Any

from finetune_operator.catalog import TpuShape, shares_labels

type Object = Mapping[str, Any]

_GKE = "cloud.google.com"
_MACHINE = "node.kubernetes.io/instance-type"
_POLICY = f"{_GKE}/placement-policy-name"
_RESERVATION = re.compile(
    r"(?:projects/(?P<project>[^/]+)/reservations/)?(?P<name>[^/]+)"
    r"(?:/reservationBlocks/(?P<blocks>[^/]+)(?:/reservationSubBlocks/(?P<subblocks>[^/]+))?)?"
)
#: What nodes are that may be taken away, or that end by themselves.
_PASSING: Mapping[str, tuple[str, ...]] = {
    f"{_GKE}/gke-spot": ("true",),
    f"{_GKE}/gke-preemptible": ("true",),
    f"{_GKE}/gke-flex-start": ("true",),
    f"{_GKE}/gke-queued": ("true",),
    f"{_GKE}/gke-provisioning": ("spot", "preemptible", "flex-start"),
}
_RECLAIMED: Mapping[str, tuple[str, ...]] = {
    f"{_GKE}/gke-spot": ("true",),
    f"{_GKE}/gke-preemptible": ("true",),
    f"{_GKE}/gke-provisioning": ("spot", "preemptible"),
}


def node_selector(shape: TpuShape, flavor: Object, *, queued_provisioning: bool) -> dict[str, str]:
    """Labels of the slice's nodes. What the flavor itself selects wins; with the value "" it takes a label away."""
    selector = {f"{_GKE}/gke-tpu-accelerator": shape.accelerator, f"{_GKE}/gke-tpu-topology": shape.topology}
    if shares_labels(shape):
        # Half of an eight-chip host would satisfy a four-chip pod.
        selector[_MACHINE] = shape.machine_type
    if shape.requires_placement_policy:
        # As xpk names them; a flavor says otherwise where a pool's is called something else.
        selector[_POLICY] = f"{shape.name}-{shape.topology}-placement-policy"
    match flavor["capacity"]:
        case "Spot":
            selector[f"{_GKE}/gke-spot"] = "true"
        case "Reservation":
            selector |= _reservation(flavor["reservation"])
        case "FlexStart" if not queued_provisioning:
            # Queued nodes are selected by the provisioning request, which Kueue adds when they are there.
            selector[f"{_GKE}/gke-flex-start"] = "true"
    own = flavor.get("nodeSelector", {})
    removed = {label for label in selector if own.get(label) == ""}
    return {label: value for label, value in {**selector, **own}.items() if label not in removed}


def avoided(flavor: Object, *, queued_provisioning: bool) -> dict[str, tuple[str, ...]]:
    """Values of labels, by label, of nodes that other kinds of capacity are made of and that no label keeps the pods
    from; not of a label that the flavor itself selects by."""
    match flavor["capacity"]:
        case "OnDemand":
            others = _PASSING
        case "FlexStart" if queued_provisioning:
            others = _RECLAIMED
        case _:
            others = {}
    return {label: values for label, values in others.items() if label not in flavor.get("nodeSelector", {})}


def tolerations(flavor: Object, *, queued_provisioning: bool) -> tuple[Object, ...]:
    """Of the TPU taint, the capacity's and those that the flavor adds.

    Never of ``impending-node-termination``: a node that is about to go takes nothing new.
    """
    found: list[Object] = [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    if flavor["capacity"] == "Spot":
        found.append(_true(f"{_GKE}/gke-spot"))
    if queued_provisioning:
        found.append(_true(f"{_GKE}/gke-queued"))
    return (*found, *flavor.get("tolerations", ()))


def _true(key: str) -> Object:
    return {"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"}


def _reservation(name: str) -> dict[str, str]:
    """Another project's reservation is named with its project; a part of one with its block."""
    parts = _RESERVATION.fullmatch(name)
    if parts is None:
        # A profile of an earlier schema; no node has such a label, and the job says what it waits for.
        return {f"{_GKE}/reservation-name": name}
    named = ("name", "project", "blocks", "subblocks")
    return {f"{_GKE}/reservation-{part}": parts[part] for part in named if parts[part]}
