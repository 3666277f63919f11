"""Scheduling constraints of TPU pods: GKE's node labels and taints for the slice's shape and capacity type."""

import re
from collections.abc import Mapping

from finetune_operator.api.placement import Capacity
from finetune_operator.api.profile_nodes import TaintEffect, Toleration, TolerationOperator
from finetune_operator.catalog import TpuShape, host_requests, shares_labels
from finetune_operator.planning.defaulted import DefaultedFlavor

_GKE = "cloud.google.com"
_MACHINE = "node.kubernetes.io/instance-type"
_POLICY = f"{_GKE}/placement-policy-name"
_RESERVATION = re.compile(
    r"(?:projects/(?P<project>[^/]+)/reservations/)?(?P<name>[^/]+)"
    r"(?:/reservationBlocks/(?P<blocks>[^/]+)(?:/reservationSubBlocks/(?P<subblocks>[^/]+))?)?"
)
_TPU_TAINT = Toleration(
    key="google.com/tpu", operator=TolerationOperator.EXISTS, effect=TaintEffect.NO_SCHEDULE
)
#: Labels of nodes that may be reclaimed, or that have a limited lifetime.
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


def node_selector(shape: TpuShape, flavor: DefaultedFlavor, *, queued_provisioning: bool) -> dict[str, str]:
    """Returns the labels of the slice's nodes. The flavor's own selector wins; with the value "" it removes a label."""
    selector = {f"{_GKE}/gke-tpu-accelerator": shape.accelerator, f"{_GKE}/gke-tpu-topology": shape.topology}
    if shares_labels(shape):
        # Without the machine type, half of an eight-chip host would satisfy a four-chip pod.
        selector[_MACHINE] = shape.machine_type
    if shape.requires_placement_policy:
        # xpk's naming scheme; a flavor overrides it if the policy of its node pool has another name.
        selector[_POLICY] = f"{shape.name}-{shape.topology}-placement-policy"
    match flavor.capacity:
        case Capacity.SPOT:
            selector[f"{_GKE}/gke-spot"] = "true"
        case Capacity.RESERVATION if flavor.reservation is not None:
            selector |= _reservation(flavor.reservation)
        case Capacity.FLEX_START if not queued_provisioning:
            # Queued nodes are selected by the provisioning request, which Kueue adds once they exist.
            selector[f"{_GKE}/gke-flex-start"] = "true"
    own = flavor.node_selector
    removed = {label for label in selector if own.get(label) == ""}
    return {label: value for label, value in {**selector, **own}.items() if label not in removed}


def host_resources(shape: TpuShape, flavor: DefaultedFlavor, *, default: bool) -> Mapping[str, str]:
    """Returns the CPU and memory that a pod on the slice requests: the flavor's, or else, with ``default``, what the
    machine type leaves to one pod."""
    own = flavor.host_resources
    if own is not None:
        return {
            name: value for name, value in (("cpu", own.cpu), ("memory", own.memory)) if value is not None
        }
    return host_requests(shape.machine_type) if default else {}


def avoided(flavor: DefaultedFlavor, *, queued_provisioning: bool) -> dict[str, tuple[str, ...]]:
    """Returns label values, by label, of nodes of other capacity types that nothing else keeps the pods off.

    Labels that the flavor itself selects by are left out.
    """
    match flavor.capacity:
        case Capacity.ON_DEMAND:
            others = _PASSING
        case Capacity.FLEX_START if queued_provisioning:
            others = _RECLAIMED
        case _:
            others = {}
    return {label: values for label, values in others.items() if label not in flavor.node_selector}


def tolerations(flavor: DefaultedFlavor, *, queued_provisioning: bool) -> tuple[Toleration, ...]:
    """Returns the tolerations of the TPU taint and of the capacity type, and those that the flavor adds.

    ``impending-node-termination`` is never tolerated: a node that is about to terminate must get no new pods.
    """
    added = [_TPU_TAINT]
    if flavor.capacity is Capacity.SPOT:
        added.append(_true(f"{_GKE}/gke-spot"))
    if queued_provisioning:
        added.append(_true(f"{_GKE}/gke-queued"))
    return (*added, *flavor.tolerations)


def _true(key: str) -> Toleration:
    return Toleration(
        key=key, operator=TolerationOperator.EQUAL, value="true", effect=TaintEffect.NO_SCHEDULE
    )


def _reservation(name: str) -> dict[str, str]:
    """Returns the labels of a reservation. Another project's includes the project, a part of one includes its block."""
    parts = _RESERVATION.fullmatch(name)
    if parts is None:
        # A profile of an earlier schema; no node has such a label, and the status reports what the job waits for.
        return {f"{_GKE}/reservation-name": name}
    named = ("name", "project", "blocks", "subblocks")
    return {f"{_GKE}/reservation-{part}": parts[part] for part in named if parts[part]}
