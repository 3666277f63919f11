"""The JobSet of one attempt of one stage.

Every field that JobSet's and Job's webhooks would default stands here, so that golden files are whole and an absent
webhook breaks nothing.

With backoffLimit 0 any failed pod ends its Job. A pod that was taken away ends it by the podFailurePolicy, and JobSet
then starts all pods again by itself: place in the queue and admitted quota are kept, and no operator is needed.
Everything else fails the JobSet, and the operator judges. JobSet 0.8 knows all fields that are used here, so that no
release in use drops one.
"""

from typing import Any

from finetune_contract import ExitCode, Stage
from finetune_operator.planning import Findings, Plan, stage_request
from finetune_operator.planning.snapshot import digest
from finetune_operator.rendering.cpu import cpu_pod
from finetune_operator.rendering.labels import CONTENT_ANNOTATION, child_labels, jobset_name
from finetune_operator.rendering.mcjax import slice_annotations, slice_pod
from finetune_operator.rendering.pod import CONTAINER

TPU_STAGES = frozenset({Stage.TRAIN, Stage.EVALUATE})
#: Of a process that was asked to stop: by the trainer after saving, and by the kernel before it could answer.
_STOPPED = (int(ExitCode.STOPPED), 143)


def render_jobset(plan: Plan, stage: Stage, attempt: int, findings: Findings) -> dict[str, Any]:
    """The JobSet. Same arguments, same JobSet.

    Raises:
        Refused: the request is too large.
        CpuPoolTooSmall: the model does not fit the profile's CPU nodes.
    """
    name = jobset_name(plan.job.name, stage, attempt)
    labels = child_labels(plan, stage, attempt)
    request = stage_request(plan, stage, attempt, findings)
    on_tpu = stage in TPU_STAGES
    hosts = plan.placement.shape.hosts if on_tpu else 1
    annotations = dict(slice_annotations(plan)) if on_tpu else {}
    pod_metadata: dict[str, Any] = {"labels": {**plan.pod.labels, **labels}}
    if plan.pod.annotations:
        pod_metadata["annotations"] = dict(plan.pod.annotations)
    spec = {
        "suspend": False,
        "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "failurePolicy": _failure_policy(),
        "replicatedJobs": [
            {
                "name": "slice" if on_tpu else "cpu",
                "replicas": plan.mesh.slices if on_tpu else 1,
                "template": {
                    "metadata": {"labels": dict(labels)},
                    "spec": {
                        "parallelism": hosts,
                        "completions": hosts,
                        "completionMode": "Indexed",
                        "backoffLimit": 0,
                        "podFailurePolicy": _pod_failure_policy(),
                        # A pod that is still saving counts as running: the Job ends when it has ended.
                        "podReplacementPolicy": "Failed",
                        "suspend": False,
                        "template": {
                            "metadata": pod_metadata,
                            "spec": slice_pod(plan, request) if on_tpu else cpu_pod(plan, request, findings),
                        },
                    },
                },
            }
        ],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": plan.job.namespace,
            "labels": dict(labels),
            "annotations": {**annotations, CONTENT_ANNOTATION: digest([annotations, spec])},
            "ownerReferences": [dict(plan.owner)],
        },
        "spec": spec,
    }


def _failure_policy() -> dict[str, Any]:
    return {
        "maxRestarts": 0,
        # Pods of two restarts side by side would claim twice the slice, and tell each other old numbers.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "disruption",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
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
