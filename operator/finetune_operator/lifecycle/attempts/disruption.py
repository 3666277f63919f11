"""Detects disruptions of an attempt's pods or nodes: by the pods' conditions, the JobSet's restarts and the nodes.

If one host of a slice is disrupted, the others crash because of it, often before the first host's pod has a condition.
So the nodes count, too, for a short time after the end of the attempt.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from finetune_contract import ExitCode, Failure
from finetune_operator.api.timestamps import after
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.container import CLOCKS_DIFFER
from finetune_operator.lifecycle.children.node import SliceNode
from finetune_operator.lifecycle.children.object_condition import ObjectCondition
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pods import trainer_terminations

PREEMPTED = "Preempted"
#: JobSet itself removed a pod that was scheduled to another node pool than its leader; no capacity was lost.
PLACEMENT_RACE = "PlacementRace"
_PLACEMENT = "ExclusivePlacementViolation"

#: How long before an attempt's end a disruption explains it, and how long after it the nodes' state does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """A disruption of an attempt."""

    reason: str
    """PREEMPTED or PLACEMENT_RACE."""
    message: str


def disruption(
    attempt: Attempt, nodes: Mapping[str, SliceNode] | None, *, ended: datetime | None, now: datetime
) -> Disruption | None:
    """Returns the first disruption found of an attempt that has ended; None if there is none.

    ``nodes``: all nodes of its slice's kind, by name; None if they were not read. ``ended``: None if unknown.
    """
    end = ended_at(attempt, ended)
    targets = [found for pod in attempt.pods if (found := disruption_target(pod, end))]
    for target in targets:
        if target.reason != _PLACEMENT:
            return Disruption(
                reason=PREEMPTED,
                message=f"Kubernetes disrupted a pod ({target.reason}): {target.message or ''}",
            )
    if targets and attempt.restarted:
        return Disruption(
            reason=PLACEMENT_RACE,
            message="JobSet restarted all pods, because some were scheduled to another node pool than the first.",
        )
    if nodes is not None and (ended is None or now - ended <= WINDOW):
        hosts = attempt.jobset.hosts_per_slice if attempt.jobset else 1
        lost = _nodes_lost(attempt.pods, nodes, end, now)
        for message in (*lost, *_slices_broken(attempt.pods, nodes, hosts)):
            return Disruption(reason=PREEMPTED, message=message)
    if attempt.restarted:
        return Disruption(reason=PREEMPTED, message="A pod was disrupted, and JobSet restarted all pods.")
    return None


def ended_at(attempt: Attempt, ended: datetime | None) -> datetime | None:
    """Returns ``ended`` if it is known, else when the trainer's last container ended; None if that is unknown, too."""
    ends = (each.finished_at for _, each in trainer_terminations(attempt.pods))
    return ended or max((each for each in ends if each), default=None)


def disruption_target(pod: Pod, ended: datetime | None) -> ObjectCondition | None:
    """Returns the pod's condition DisruptionTarget if it explains the end of the attempt; else None.

    The pod of a Pathways worker that was replaced hours earlier may still exist, and explains nothing. A pod may save
    for as long as its grace period before it ends.
    """
    found = pod.disruption_target
    taken = found.last_transition_time if found else None
    if found is None or taken is None or ended is None:
        return found
    gone = pod.finished_at
    window = WINDOW.total_seconds()
    recent = gone is not None and after(gone, window) >= ended
    saved = pod.termination_grace_period_seconds if recent else 0
    return found if after(taken, saved + window) >= ended else None


def _nodes_lost(
    pods: Iterable[Pod], nodes: Mapping[str, SliceNode], ended: datetime | None, now: datetime
) -> Iterator[str]:
    for pod in pods:
        name = pod.node_name
        # Only nodes of slices were read.
        if name is None or not pod.slice_kind:
            continue
        of_pod = f"of pod {pod.name}"
        if name not in nodes:
            yield f"Node {name} {of_pod} is gone."
        elif wrong := _wrong(nodes[name]):
            yield f"Node {name} {of_pod} is {wrong}."
        elif _began_anew(nodes[name], pod, ended, now):
            yield f"Node {name} {of_pod} was lost: another machine, or the same one after a restart, has its name."


def _began_anew(node: SliceNode, pod: Pod, ended: datetime | None, now: datetime) -> bool:
    """Whether the node's machine began after the pod, which was scheduled to a node that was ready.

    A machine that is created again under the same name may find the node's object, and becomes ready with it. A node
    that was not ready for a while long before the end explains nothing. Its clock may be wrong now, or was when the pod
    began and may have been set right before the node was ready.
    """
    begun, since = pod.start_time, node.ready_since
    if begun is None or since is None or (node.created and node.created > begun):
        return bool(begun and node.created and node.created > begun)
    fast = ((node.heartbeat or since) - now).total_seconds()
    ahead = pod.clock_ahead.total_seconds()
    times = (after(since, -max(ahead, fast)),) if fast > CLOCKS_DIFFER else (since, after(since, -ahead))
    explaining = after(ended, -WINDOW.total_seconds()) if ended else begun
    return any(begun < each <= after(now, CLOCKS_DIFFER) and each >= explaining for each in times)


def _slices_broken(pods: Iterable[Pod], nodes: Mapping[str, SliceNode], hosts: int) -> Iterator[str]:
    """Returns messages about slices of several hosts, each of which has a node pool of its own.

    The pod of a lost host is often deleted before it is observed.
    """
    placed = {pod.node_name for pod in pods if pod.node_name} & nodes.keys()
    pools = {pool for name in placed if (pool := nodes[name].pool)} if hosts > 1 else set()
    for pool in sorted(pools):
        members = {name: node for name, node in nodes.items() if node.pool == pool}
        if len(members) < hosts:
            yield f"Slice {pool} has {len(members)} of its {hosts} nodes."
        for name, node in sorted(members.items()):
            if wrong := _wrong(node):
                yield f"Node {name} of slice {pool} is {wrong}."


def _wrong(node: SliceNode) -> str | None:
    leaving = [taint for taint in node.taints if taint in _LEAVING]
    if leaving:
        return f"leaving: {leaving[0]}"
    if node.under_maintenance:
        return "under maintenance"
    return None if node.ready else "not ready"


#: What the operator has determined of pods and nodes, which no later record of the trainer changes.
DISRUPTIONS = (PREEMPTED, PLACEMENT_RACE, "DiskPressure", "MemoryPressure")
#: The kubelet's messages (pkg/kubelet/eviction/helpers.go): a node is low, or was when it rejected the pod, or a pod
#: exceeds a limit of its own.
_DISK = re.compile(
    r"low on resource: (?:ephemeral-storage|inodes)|ephemeral (?:local )?storage|EmptyDir volume"
    r"|had condition: \[[^]]*DiskPressure",
    re.IGNORECASE,
)
_OWN_LIMIT = re.compile(r"exceed\w* (?:the total limit|its local ephemeral storage limit)", re.IGNORECASE)
_RAISE = "Raise the limit in the namespace's LimitRange. If it is Export's own, set by the model, report it."
_MEMORY = re.compile(r"low on resource: memory|had condition: \[[^]]*MemoryPressure", re.IGNORECASE)


def pressure(attempt: Attempt, ended: datetime | None) -> Failure | None:
    """Returns the failure of an attempt that a kubelet has evicted under disk or memory pressure; None for any other.

    ``ended``: when the attempt ended; None if unknown.
    """
    for pod in attempt.pods:
        message = _eviction(pod, ended_at(attempt, ended))
        for pattern, reason, fix in (
            (_OWN_LIMIT, "DiskPressure", _RAISE),
            (_DISK, "DiskPressure", "Use nodes with a larger boot disk or local SSDs for scratch space."),
            (_MEMORY, "MemoryPressure", "Use nodes with more memory, or keep other pods off the node."),
        ):
            if pattern.search(message):
                evicted_pod = f"Kubernetes evicted pod {pod.name}"
                return Failure(
                    code=ExitCode.UNAVAILABLE,
                    reason=reason,
                    message=f"{attempt.key.stage}: {evicted_pod}: {message} {fix}"[:1024],
                    actual=message[:512],
                    fix=fix,
                )
    return None


def _eviction(pod: Pod, ended: datetime | None) -> str:
    """The kubelet's message about an eviction that explains the end of the attempt; empty if there is none.

    A pod that exceeds a limit of its own is evicted without the condition DisruptionTarget.
    """
    target = disruption_target(pod, ended)
    if target is not None:
        message = target.message if target.reason == "TerminationByKubelet" else None
    else:
        gone = pod.finished_at
        # ``ended`` is a trainer's, and may be the first day of the calendar.
        recent = ended is None or gone is None or after(gone, WINDOW.total_seconds()) >= ended
        message = pod.failure_message if recent and pod.failure_reason == "Evicted" else None
    return " ".join((message or "").split())
