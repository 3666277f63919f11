"""The check of ``finetune doctor`` for nodes: as the planner selects them, and ready."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from finetune_operator.api.conditions import is_true
from finetune_operator.cli.doctor.setup import Check, Finding, Findings, Setup
from finetune_operator.objects import Object
from finetune_operator.planning import Refused, check_profile_object
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.slices.topology import SliceOffer, offered_shapes, placement
from finetune_operator.rendering import quantities
from finetune_operator.rendering.pathways import HEAD_CORES, HEAD_GB

_METADATA_SERVER = "iam.gke.io/gke-metadata-server-enabled"
_POOL = "cloud.google.com/gke-nodepool"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """Nodes that a profile selects for a kind of stage."""

    what: str
    labels: Mapping[str, str]
    avoided: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Label values, by label, of nodes that the stage's pods avoid."""
    hosts: int = 1
    """Nodes of one slice, all in one node pool."""
    least: Mapping[str, float] = field(default_factory=dict)
    """What a node must have to allocate, by resource."""

    def takes(self, node: Object) -> bool:
        labels = _labels(node)
        free = (node.get("status") or {}).get("allocatable") or {}
        if any(quantities.number(str(free.get(name, 0))) < amount for name, amount in self.least.items()):
            return False
        return self.labels.items() <= labels.items() and not any(
            labels.get(label) in values for label, values in self.avoided.items()
        )


def check_nodes(setup: Setup) -> Findings:
    """Yields a finding for each slice that a profile offers, and for its stages on CPU.

    Nodes come and go with a pool that scales, with maintenance and with preemption: without usable ones it is unknown
    whether there will be some.
    """
    if setup.nodes is None:
        yield Check.NODES.unknown("You may not read nodes.")
        return
    for use in sorted(_uses(setup), key=lambda each: each.what):
        yield _found(use, [each for each in setup.nodes if use.takes(each)])


def _uses(setup: Setup) -> Iterator[_Use]:
    for profile in setup.serving:
        own = profile["metadata"]["name"]
        try:
            spec = check_profile_object(profile)
        except Refused:  # another check reports it
            continue
        queued = spec.queue.local_queue is not None
        for flavor in spec.flavors:
            for shape in offered_shapes(flavor):
                offer = SliceOffer(shape=shape, flavor=flavor)
                try:
                    place = placement(offer, "", (), queued=queued)
                except Refused:  # only jobs that name a queue get it
                    continue
                yield _Use(
                    what=f"flavor {flavor.name} of {own} ({shape.machine_type}, {shape.topology})",
                    labels=place.node_selector,
                    avoided=place.avoided,
                    hosts=shape.hosts,
                )
        if cpu := spec.cpu_pool.node_selector:
            yield _Use(what=f"stages of {own} on CPU", labels=cpu)
        if (
            profile["spec"].get("pathways")
            or lookup(profile["spec"], "defaults.resources.controller") == "Pathways"
        ):
            yield _Use(
                what=f"the head of Pathways of {own} ({HEAD_CORES} cores, {HEAD_GB} GB)",
                labels=spec.pathways.head_node_selector or {},
                least={"cpu": HEAD_CORES, "memory": HEAD_GB * 1e9},
            )


def _found(use: _Use, nodes: Sequence[Object]) -> Finding:
    what = use.what
    if without := [each for each in nodes if _is_gke(each) and _labels(each).get(_METADATA_SERVER) != "true"]:
        pool = _labels(without[0]).get(_POOL, "POOL")
        fix = (
            f"gcloud container node-pools update {pool} --cluster CLUSTER --location LOCATION "
            "--workload-metadata=GKE_METADATA"
        )
        node = without[0]["metadata"]["name"]
        return Check.NODES.missing(f"Node {node}, for {what}, has no Workload Identity.", fix)
    selector = ",".join(f"{label}={value}" for label, value in sorted(use.labels.items()))
    if not nodes:
        message = (
            f"No node for {what} at present, as in a pool that scales from zero. Its labels: {selector}."
        )
        fix = "gcloud container node-pools list --cluster CLUSTER --location LOCATION; deploy/gke/setup.sh pools"
        return Check.NODES.unknown(message, fix)
    usable = [each for each in nodes if _is_usable(each)]
    show = f"kubectl get nodes --selector {selector}"
    if use.hosts == 1:
        if usable:
            return Check.NODES.ok(f"{len(usable)} ready nodes for {what}.")
        return Check.NODES.unknown(f"None of {len(nodes)} nodes for {what} is ready and schedulable.", show)
    pools = Counter(_labels(each).get(_POOL) for each in usable)
    if complete := sum(count >= use.hosts for pool, count in pools.items() if pool is not None):
        return Check.NODES.ok(f"{complete} node pools with all {use.hosts} hosts ready for {what}.")
    most = max(pools.values(), default=0)
    message = f"No node pool has all {use.hosts} hosts ready for {what}; the fullest has {most}."
    return Check.NODES.unknown(message, f"{show} --label-columns {_POOL}")


def _is_usable(node: Object) -> bool:
    """Whether the node takes pods: it is ready, and not cordoned."""
    return is_true(node, "Ready") and not (node.get("spec") or {}).get("unschedulable")


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _is_gke(node: Object) -> bool:
    """Whether GKE made the node; others have no metadata server of GKE."""
    return str((node.get("spec") or {}).get("providerID", "")).startswith("gce://")
