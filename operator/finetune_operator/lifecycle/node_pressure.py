"""Pods that the kubelet evicted because their node ran out of disk or memory.

Kubernetes marks them as it marks a pod on a node that is shut down. But the next attempt would fill the next node, too:
so it is charged, and says what is short.
"""

import re
from datetime import datetime

from finetune_contract import ExitCode, Failure
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.disruption import disruption_target, ended_at

PRESSURES = ("DiskPressure", "MemoryPressure")
#: In the kubelet's words (pkg/kubelet/eviction/helpers.go): a node is low, or a pod is beyond a limit of its own.
_DISK = re.compile(
    r"low on resource: (?:ephemeral-storage|inodes)|ephemeral (?:local )?storage|EmptyDir volume",
    re.IGNORECASE,
)
_OWN_LIMIT = re.compile(r"exceed\w* (?:the total limit|its local ephemeral storage limit)", re.IGNORECASE)
_RAISE = "Raise the limit in the namespace's LimitRange. Export's own follows from the model: report it."
_MEMORY = re.compile(r"low on resource: memory", re.IGNORECASE)


def pressure(attempt: Attempt, ended: datetime | None) -> Failure | None:
    """The failure of an attempt that has ended so; None for any other. ``ended``: when, where that is known."""
    for pod in attempt.pods:
        evicted = disruption_target(pod, ended_at(attempt, ended))
        if evicted is None or evicted.get("reason") != "TerminationByKubelet":
            continue
        told = " ".join(str(evicted.get("message", "")).split())
        for pattern, reason, fix in (
            (_OWN_LIMIT, "DiskPressure", _RAISE),
            (_DISK, "DiskPressure", "Use nodes with a larger boot disk or local SSDs for scratch space."),
            (_MEMORY, "MemoryPressure", "Give the pod's node more memory, or keep other pods from it."),
        ):
            if pattern.search(told):
                evicted_pod = f"Kubernetes evicted pod {pod['metadata']['name']}"
                return Failure(
                    code=ExitCode.UNAVAILABLE,
                    reason=reason,
                    message=f"{attempt.key.stage}: {evicted_pod}: {told} {fix}"[:1024],
                    saw=told[:512],
                    fix=fix,
                )
    return None
