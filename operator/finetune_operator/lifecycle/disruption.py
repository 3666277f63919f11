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

PREEMPTED = "Preempted"
#: JobSet itself removed a pod that had landed in another pool than its leader; nothing was taken away.
PLACEMENT_RACE = "PlacementRace"
_PLACEMENT = "ExclusivePlacementViolation"

#: How long after an attempt's end its nodes tell of it.
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
_MAINTENANCE = "cloud.google.com/active-node-maintenance"


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
    targets = [found for pod in attempt.pods if (found := children.condition(pod, "DisruptionTarget"))]
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
        for told in _nodes_lost(attempt.pods, nodes):
            return Disruption(reason=PREEMPTED, message=told)
    if attempt.restarted:
        return Disruption(
            reason=PREEMPTED, message="A pod was taken away, and JobSet started all of them again."
        )
    return None


def _nodes_lost(pods: Iterable[children.Object], nodes: Mapping[str, children.Object]) -> Iterator[str]:
    for pod in pods:
        name = pod.get("spec", {}).get("nodeName")
        # of other nodes than slices nobody has looked
        if name is None or not children.slice_kind(pod):
            continue
        node = nodes.get(name)
        if node is None:
            yield f"Node {name} of pod {pod['metadata']['name']} is gone."
            continue
        leaving = [
            taint["key"] for taint in node.get("spec", {}).get("taints", ()) if taint["key"] in _LEAVING
        ]
        if leaving:
            yield f"Node {name} of pod {pod['metadata']['name']} is going away: {leaving[0]}."
        elif node["metadata"].get("labels", {}).get(_MAINTENANCE, "false").lower() not in ("false", ""):
            yield f"Node {name} of pod {pod['metadata']['name']} is under maintenance."
        elif not children.condition(node, "Ready"):
            yield f"Node {name} of pod {pod['metadata']['name']} is not ready."
