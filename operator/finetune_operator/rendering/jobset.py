"""The JobSet of one attempt of one stage.

Every field that the webhooks of JobSet and Job would default is set here, so that golden files are complete and a
missing webhook breaks nothing.

With backoffLimit 0, any failed pod ends its Job. A disrupted pod ends its Job through the podFailurePolicy, and JobSet
then recreates all pods by itself: the place in the queue and the admitted quota are kept, and no operator is needed.
Any other failure fails the JobSet, and the operator decides what follows. JobSet 0.8 has all fields that are used here,
so no release in use drops one.
"""

from collections.abc import Mapping
from typing import Any

from finetune_contract import Stage
from finetune_operator.planning import Findings, Plan, stage_request
from finetune_operator.planning.stored_plan import digest
from finetune_operator.rendering.labels import (
    CLAIM_ANNOTATION,
    FLAVOR_ANNOTATION,
    PLAN_ANNOTATION,
    SPEC_ANNOTATION,
    child_labels,
    jobset_name,
    of_profile,
    queue_labels,
)
from finetune_operator.rendering.pathways import HEAD, pathways_groups, pathways_policies
from finetune_operator.rendering.replicated_job import ReplicatedJob, render_replicated_job
from finetune_operator.rendering.stage_pods import cpu_pod, slice_annotations, slice_pod

#: Names of replicated jobs: the single pod on CPU, and the hosts of slices under McJAX.
CPU, SLICE = "cpu", "slice"


def first_group(plan: Plan, stage: Stage) -> str:
    """Returns the name of the replicated job whose pods start first; every JobSet of the stage has it."""
    if not stage.on_tpu:
        return CPU
    return SLICE if plan.pathways is None else HEAD


def render_jobset(plan: Plan, stage: Stage, attempt: int, findings: Findings) -> dict[str, Any]:
    """Returns the JobSet. The same arguments always give the same JobSet.

    Raises:
        Refused: the request is too large.
        ContractUnsupported: the trainer image does not support the whole request.
        CpuPoolTooSmall: the model does not fit the profile's CPU nodes.
    """
    name = jobset_name(plan.job.name, stage, attempt)
    labels = child_labels(plan, stage, attempt)
    request = stage_request(plan, stage, attempt, findings)
    queued = queue_labels(plan, on_tpu=stage.on_tpu)
    spec: dict[str, Any] = {
        # Kueue resumes the JobSet when there is quota. If Kueue is not running, nothing starts beyond the quota.
        "suspend": bool(queued),
        "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "failurePolicy": _failure_policy(),
    }
    annotations: Mapping[str, str] = {}
    claim = {}
    if stage.on_tpu:
        claim = {CLAIM_ANNOTATION: _claim(plan), FLAVOR_ANNOTATION: plan.placement.flavor}
    if not stage.on_tpu:
        groups = [ReplicatedJob(name=CPU, replicas=1, pods=1, pod=cpu_pod(plan, request, findings))]
    elif plan.pathways is None:
        hosts, annotations = plan.placement.shape.hosts, slice_annotations(plan)
        groups = [
            ReplicatedJob(name=SLICE, replicas=plan.mesh.slices, pods=hosts, pod=slice_pod(plan, request))
        ]
    else:
        groups = pathways_groups(plan, plan.pathways, request)
        spec |= pathways_policies(plan, name)
    spec["replicatedJobs"] = [render_replicated_job(group, labels, plan.pod) for group in groups]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": plan.job.namespace,
            "labels": of_profile(plan.pod.labels) | labels | queued,
            "annotations": {
                **of_profile(plan.pod.annotations),
                **annotations,
                **claim,
                SPEC_ANNOTATION: plan.spec_digests[stage],
                PLAN_ANNOTATION: plan.digest,
            },
            "ownerReferences": [dict(plan.owner)],
        },
        "spec": spec,
    }


def _claim(plan: Plan) -> str:
    """Returns a digest of the requested slices and of the mesh over them."""
    placement = plan.placement
    return digest([placement.node_selector, placement.tolerations, plan.mesh.model_dump()])


def _failure_policy() -> dict[str, Any]:
    return {
        "maxRestarts": 0,
        # Pods of two restarts side by side would claim the slice twice and exchange outdated restart numbers.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "disruption",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }
