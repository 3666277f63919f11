"""One of a JobSet's replicated jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finetune_contract import ExitCode
from finetune_operator.rendering.pod import CONTAINER

type Object = Mapping[str, Any]

#: Of a process that was asked to stop: by the trainer after saving, and by the kernel before it could answer.
_STOPPED = (int(ExitCode.STOPPED), 143)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob:
    """So many Jobs of so many equal pods."""

    name: str
    replicas: int
    pods: int
    """Of each Job; all at once."""
    pod: Object
    """Spec of a pod."""
    backoff_limit: int = 0
    """Pods (or, where the kubelet restarts them, containers) that may fail before the Job does."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """On the Jobs; JobSet takes those that are its own over to the pods."""
    pod_annotations: Mapping[str, str] = field(default_factory=dict)


def render_replicated_job(
    group: ReplicatedJob,
    labels: Mapping[str, str],
    pod_labels: Mapping[str, str],
    pod_annotations: Mapping[str, str],
) -> dict[str, Any]:
    """The replicated job. ``labels`` are those of all children; the others are additions for all pods."""
    metadata: dict[str, Any] = {"labels": dict(labels)}
    if group.annotations:
        metadata["annotations"] = dict(group.annotations)
    pod_metadata: dict[str, Any] = {"labels": {**pod_labels, **labels}}
    if annotations := {**pod_annotations, **group.pod_annotations}:
        pod_metadata["annotations"] = annotations
    spec: dict[str, Any] = {
        "parallelism": group.pods,
        "completions": group.pods,
        "completionMode": "Indexed",
        "backoffLimit": group.backoff_limit,
        # A pod that is still saving counts as running: the Job ends when it has ended.
        "podReplacementPolicy": "Failed",
        "suspend": False,
        "template": {"metadata": pod_metadata, "spec": dict(group.pod)},
    }
    # Kubernetes takes it only for pods that the kubelet does not start again itself.
    if group.pod["restartPolicy"] == "Never":
        spec["podFailurePolicy"] = _pod_failure_policy()
    return {
        "name": group.name,
        "replicas": group.replicas,
        "template": {
            "metadata": metadata,
            "spec": spec,
        },
    }


def _pod_failure_policy() -> dict[str, Any]:
    """What JobSet takes for a disruption. A replacement pod alone could not join the others: the whole Job fails."""
    return {
        "rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(_STOPPED)},
            },
        ]
    }
