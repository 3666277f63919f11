"""Whether pods or nodes were taken away from an attempt: what Kubernetes wrote on the pods, what the JobSet did of it,
and how the nodes are.

When one host of a slice is taken, the others crash of it, often before anything is written on the pod of the first.
So the nodes count too, for as long as they tell of this attempt and not of a later life of theirs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.times import parse

PREEMPTED = "Preempted"
#: JobSet itself removed a pod that had landed in another pool than its leader; nothing was taken away.
PLACEMENT_RACE = "PlacementRace"
_PLACEMENT = "ExclusivePlacementViolation"

#: How long before an attempt's end a disruption explains it, and how long after it the nodes do.
WINDOW = timedelta(minutes=3)
_LEAVING = frozenset(
    {
        "cloud.google.com/impending-node-termination",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
        "ToBeDeletedByClusterAutoscaler",
    }
)
POOL_LABEL = "cloud.google.com/gke-nodepool"
MAINTENANCE_LABEL = "cloud.google.com/active-node-maintenance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """What was taken away."""

    reason: str
    """PREEMPTED or PLACEMENT_RACE."""
    message: str


def disruption(
    attempt: Attempt, nodes: Mapping[str, children.Object] | None, *, ended: datetime | None, now: datetime
) -> Disruption | None:
    """The first sign of one, or None.

    Args:
        attempt: one that has ended.
        nodes: all nodes of its slice's kind, by name; None where nobody has looked.
        ended: when it ended, where that is known.
        now: the time of this look.
    """
    end = ended_at(attempt, ended)
    targets = [found for pod in attempt.pods if (found := disruption_target(pod, end))]
    for target in targets:
        if target.get("reason") != _PLACEMENT:
            return Disruption(
                reason=PREEMPTED,
                message=f"Kubernetes took a pod away ({target.get('reason')}): {target.get('message', '')}",
            )
    if targets and attempt.restarted:
        return Disruption(
            reason=PLACEMENT_RACE,
            message="JobSet started all pods again, since some had landed in another node pool than the first.",
        )
    if nodes is not None and (ended is None or now - ended <= WINDOW):
        hosts = children.hosts_per_slice(attempt.jobset) if attempt.jobset else 1
        for told in (*_nodes_lost(attempt.pods, nodes), *_slices_broken(attempt.pods, nodes, hosts)):
            return Disruption(reason=PREEMPTED, message=told)
    if attempt.restarted:
        return Disruption(
            reason=PREEMPTED, message="A pod was taken away, and JobSet started all of them again."
        )
    return None


def ended_at(attempt: Attempt, ended: datetime | None) -> datetime | None:
    """When the attempt ended: as told, else when the trainer's last container did; None where nothing tells."""
    ends = (each["finishedAt"] for _, each in children.terminated(attempt.pods) if each.get("finishedAt"))
    return ended or max(map(parse, ends), default=None)


def disruption_target(pod: children.Object, ended: datetime | None) -> children.Object | None:
    """The pod's condition that it was taken away, where that explains the end of its attempt: the pod of a Pathways
    worker that was replaced hours before stays, and explains nothing.

    A pod may save for as long as its grace period before it ends.
    """
    found = children.condition(pod, "DisruptionTarget")
    taken = found.get("lastTransitionTime") if found else None
    if found is None or taken is None or ended is None:
        return found
    gone = children.pod_ended_at(pod)
    grace = timedelta(seconds=pod.get("spec", {}).get("terminationGracePeriodSeconds", 0))
    saved = grace if gone is not None and gone >= ended - WINDOW else timedelta()
    return found if parse(taken) >= ended - WINDOW - saved else None


def _nodes_lost(pods: Iterable[children.Object], nodes: Mapping[str, children.Object]) -> Iterator[str]:
    for pod in pods:
        name = pod.get("spec", {}).get("nodeName")
        # of other nodes than slices nobody has looked
        if name is None or not children.slice_kind(pod):
            continue
        of_pod = f"of pod {pod['metadata']['name']}"
        if name not in nodes:
            yield f"Node {name} {of_pod} is gone."
        elif wrong := _wrong(nodes[name]):
            yield f"Node {name} {of_pod} is {wrong}."


def _slices_broken(
    pods: Iterable[children.Object], nodes: Mapping[str, children.Object], hosts: int
) -> Iterator[str]:
    """Of slices of several hosts, each of which has a node pool to itself: the pod of a host that was lost is often
    gone sooner than anybody looks."""
    placed = {pod.get("spec", {}).get("nodeName") for pod in pods} & nodes.keys()
    pools = {pool for name in placed if (pool := _pool(nodes[name]))} if hosts > 1 else set()
    for pool in sorted(pools):
        members = {name: node for name, node in nodes.items() if _pool(node) == pool}
        if len(members) < hosts:
            yield f"Of the {hosts} nodes of slice {pool} {len(members)} are left."
        for name, node in sorted(members.items()):
            if wrong := _wrong(node):
                yield f"Node {name} of slice {pool} is {wrong}."


def _wrong(node: children.Object) -> str | None:
    leaving = [taint["key"] for taint in node.get("spec", {}).get("taints", ()) if taint["key"] in _LEAVING]
    if leaving:
        return f"going away: {leaving[0]}"
    if node["metadata"].get("labels", {}).get(MAINTENANCE_LABEL, "false").lower() not in ("false", ""):
        return "under maintenance"
    return None if children.condition(node, "Ready") else "not ready"


def _pool(node: children.Object) -> str | None:
    found: str | None = node["metadata"].get("labels", {}).get(POOL_LABEL)
    return found
