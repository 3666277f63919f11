"""Lists the nodes of slices whose pods have failed, which may show the cause."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from finetune_operator.cluster.port import NODES, KubernetesClient, Rejected
from finetune_operator.lifecycle.attempts.classify import settled
from finetune_operator.lifecycle.attempts.disruption import WINDOW
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.node import SliceNode
from finetune_operator.lifecycle.children.pod import Pod, SliceKind
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.reconcile.children import list_kept
from finetune_operator.reconcile.watch_entries import JOB_BYTES

log = logging.getLogger(__name__)

#: Maximum number of slice kinds whose nodes are listed in one observation of a job.
_MOST_KINDS = 4


@dataclass(frozen=True, slots=True)
class ListedNodes:
    """All nodes of some kinds of slices: a node of such a kind that is missing does not exist."""

    kinds: Sequence[SliceKind] = ()
    nodes: Mapping[str, SliceNode] | None = None
    """By name; None if nothing was listed or the operator may not list nodes."""

    @classmethod
    def of(cls, observation: Observation) -> "ListedNodes":
        kinds = failed_kinds(observation.pods, observation.jobsets, observation.folder, observation.now)
        return cls(kinds, observation.nodes)


def failed_kinds(
    pods: Sequence[Pod], jobsets: Sequence[JobSet], view: RunFolderView, now: datetime
) -> Sequence[SliceKind]:
    """Returns the kinds of slices on which pods failed recently, without those whose failure is classified.

    Kinds that the JobSets request come first, since a pod may name any kind.
    """
    kinds = {
        pod.slice_kind
        for pod in pods
        if pod.slice_kind and not _is_classified(pod, view) and _failed_lately(pod, now)
    }
    wanted = {kind for jobset in jobsets for kind in jobset.slice_kinds}
    return sorted(kinds, key=lambda kind: (kind not in wanted, kind))[:_MOST_KINDS]


async def list_nodes(
    cluster: KubernetesClient, kinds: Sequence[SliceKind], earlier: ListedNodes | None
) -> Mapping[str, SliceNode] | None:
    """Returns all nodes of the kinds, with one list per kind unless those were listed ``earlier``.

    None without kinds, or if the operator may not list nodes. Raises ClusterError.
    """
    if earlier is not None and kinds == earlier.kinds:
        return earlier.nodes
    if not kinds:
        return None
    try:
        found = [
            await list_kept(cluster, NODES, None, keep=SliceNode.parse, most=JOB_BYTES, labels=dict(kind))
            for kind in kinds
        ]
    except Rejected as error:
        log.warning(
            "nodes cannot be listed, so the loss of a node counts as a failure of the stage: %s", error
        )
        return None
    return {node.name: node for nodes in found for node in nodes}


def _is_classified(pod: Pod, view: RunFolderView) -> bool:
    """Whether the classification of the pod's attempt is final.

    If so, its nodes need not be listed; there may be thousands of that kind.
    """
    files = view.attempts.get(pod.key) if pod.key else None
    return files is not None and settled(files.failure)


def _failed_lately(pod: Pod, now: datetime) -> bool:
    """Whether the pod failed so recently that the state of its nodes may still show the cause."""
    if pod.phase != "Failed":
        return False
    # Without an end, the kubelet did not start it, or its node no longer exists.
    ended = pod.finished_at or pod.last_change
    return ended is None or now - ended <= 2 * WINDOW
