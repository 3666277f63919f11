"""What a TPU pod must carry to land on its slice: GKE's labels and taints for the shape and for how it is bought."""

import re
from collections.abc import Mapping
from typing import Any

from finetune_operator.catalog import TpuShape, shares_labels

type Object = Mapping[str, Any]

_GKE = "cloud.google.com"
_MACHINE = "node.kubernetes.io/instance-type"
_POLICY = f"{_GKE}/placement-policy-name"
_SHARED_RESERVATION = re.compile(r"projects/([^/]+)/reservations/([^/]+)")


def node_selector(shape: TpuShape, flavor: Object, *, queued_provisioning: bool) -> dict[str, str]:
    """Labels of the slice's nodes; what the flavor itself selects wins."""
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
    return {**selector, **flavor.get("nodeSelector", {})}


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
    """Another project's reservation is named with its project."""
    shared = _SHARED_RESERVATION.fullmatch(name)
    if shared is None:
        return {f"{_GKE}/reservation-name": name}
    return {f"{_GKE}/reservation-name": shared[2], f"{_GKE}/reservation-project": shared[1]}
