"""The JobSet of one attempt of one stage.

Every field that JobSet's and Job's webhooks would default stands here, so that golden files are whole and an absent
webhook breaks nothing. There is no podFailurePolicy: with backoffLimit 0 any failed pod ends the Job, and who
is to blame is read from the trainer's record and the pod's conditions.
"""

from typing import Any

from finetune_contract import Stage
from finetune_operator.planning import Findings, Plan, stage_request
from finetune_operator.rendering.cpu import cpu_pod
from finetune_operator.rendering.labels import child_labels, jobset_name, queue_labels
from finetune_operator.rendering.mcjax import slice_annotations, slice_pod

TPU_STAGES = frozenset({Stage.TRAIN, Stage.EVALUATE})


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
    queued = queue_labels(plan, on_tpu=on_tpu)
    annotations = dict(slice_annotations(plan)) if on_tpu else {}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": plan.job.namespace,
        "labels": labels | queued,
        "ownerReferences": [dict(plan.owner)],
    }
    if annotations:
        metadata["annotations"] = annotations
    pod_metadata: dict[str, Any] = {"labels": {**plan.pod.labels, **labels}}
    if plan.pod.annotations:
        pod_metadata["annotations"] = dict(plan.pod.annotations)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # Kueue lets it go when there is quota. Were it not there, nothing would run past the quota.
            "suspend": bool(queued),
            "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            # Every attempt is a JobSet of its own.
            "failurePolicy": {"maxRestarts": 0, "restartStrategy": "Recreate"},
            "replicatedJobs": [
                {
                    "name": "slice" if on_tpu else "cpu",
                    "groupName": "default",
                    "replicas": plan.mesh.slices if on_tpu else 1,
                    "template": {
                        "metadata": {"labels": dict(labels)},
                        "spec": {
                            "parallelism": hosts,
                            "completions": hosts,
                            "completionMode": "Indexed",
                            "backoffLimit": 0,
                            # A pod that is still saving counts as running: the Job ends when it has ended.
                            "podReplacementPolicy": "Failed",
                            "suspend": False,
                            "template": {
                                "metadata": pod_metadata,
                                "spec": slice_pod(plan, request)
                                if on_tpu
                                else cpu_pod(plan, request, findings),
                            },
                        },
                    },
                }
            ],
        },
    }
