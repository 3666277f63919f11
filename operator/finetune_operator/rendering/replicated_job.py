"""One replicated job of a JobSet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finetune_contract import ExitCode
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import DefaultedPodSettings
from finetune_operator.rendering.labels import of_profile
from finetune_operator.rendering.pod import CONTAINER, with_choices

#: Exit codes of a process that was stopped: by the trainer after saving, or by SIGTERM before it could handle it.
_STOPPED = (int(ExitCode.STOPPED), 143)
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob:
    """``replicas`` Jobs, each of ``pods`` equal pods."""

    name: str
    replicas: int
    pods: int
    """Number of pods of each Job; all run in parallel."""
    pod: Object
    """Pod spec."""
    backoff_limit: int = 0
    """Number of pod failures (or container failures, if the kubelet restarts them) after which the Job fails."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Jobs; JobSet copies its own annotations from there to the pods."""


def render_replicated_job(
    group: ReplicatedJob, labels: Mapping[str, str], added: DefaultedPodSettings
) -> dict[str, Any]:
    """Returns the replicated job. ``labels`` are set on all children, ``added`` where the profile says so."""
    metadata: dict[str, Any] = {"labels": {**of_profile(added.labels), **labels}}
    if annotations := {**of_profile(added.annotations), **group.annotations}:
        metadata["annotations"] = annotations
    pod_metadata: dict[str, Any] = {
        "labels": {**added.labels, **labels},
        # A stage that is moved to another node begins again, which costs more than a node that is used little.
        "annotations": {_SAFE_TO_EVICT: "false", **added.annotations},
    }
    spec: dict[str, Any] = {
        "parallelism": group.pods,
        "completions": group.pods,
        "completionMode": "Indexed",
        "backoffLimit": group.backoff_limit,
        # A pod that is still saving counts as running: the Job ends only after the pod has.
        "podReplacementPolicy": "Failed",
        "suspend": False,
        "template": {"metadata": pod_metadata, "spec": with_choices(added, group.pod)},
    }
    # Kubernetes allows this policy only for pods that the kubelet does not restart.
    if group.pod["restartPolicy"] == "Never":
        spec["podFailurePolicy"] = _pod_failure_policy()
    return {"name": group.name, "replicas": group.replicas, "template": {"metadata": metadata, "spec": spec}}


def _pod_failure_policy() -> dict[str, Any]:
    """Returns the policy that reports a disruption to JobSet.

    A replacement pod alone could not join the others, so the whole Job fails.
    """
    return {
        "rules": [
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(_STOPPED)},
            },
        ]
    }
