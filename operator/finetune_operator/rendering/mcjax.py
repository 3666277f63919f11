"""Train and Evaluate: one JAX process per host of a TPU slice."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import StageRequest
from finetune_operator.planning import Plan
from finetune_operator.planning.slices.memory import compiler_flags
from finetune_operator.rendering.pod import pod_spec, with_host_access

EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_TPU = "google.com/tpu"
_PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
#: Communication between the hosts of a slice, and the port from which GKE scrapes the chips' metrics.
_PORTS = (
    {"name": "tpu", "containerPort": 8471},
    {"name": "tpu-metrics", "containerPort": 8431},
)
#: Communication between slices.
_MEGASCALE = {"name": "megascale", "containerPort": 8080}
#: Longest time in seconds for which queued provisioning provides nodes.
_MAX_RUN_SECONDS = 7 * 24 * 3600


def slice_pod(plan: Plan, request: StageRequest) -> dict[str, Any]:
    """Returns the spec of the pod for one host."""
    pod = pod_spec(
        plan,
        request,
        service_account=plan.service_account_tpu,
        resources=host_chips(plan),
        node_selector=plan.placement.node_selector,
        tolerations=plan.placement.tolerations,
        env=[
            {"name": _PROGRAMS, "value": plan.programs},
            *({"name": name, "value": value} for name, value in plan.placement.flags.items()),
        ],
        ports=_PORTS if plan.mesh.slices == 1 else [*_PORTS, _MEGASCALE],
        shared_memory=True,
    )
    return with_host_access(plan, {**pod, **slice_affinity(plan)})


def programs_folder(plan: Plan) -> str:
    """Returns the folder in which a pod of ``slice_pod`` reads and writes compiled programs."""
    named = [each.value for each in plan.pod.env if each.name == _PROGRAMS]
    return named[-1] if named else plan.programs


def slice_flags(plan: Plan) -> Mapping[str, str]:
    """Returns the compiler variables of a pod of ``slice_pod``; empty under Pathways, whose servers compile."""
    return compiler_flags(plan.placement.flags, plan.pod.env, pathways=plan.pathways is not None)


def slice_affinity(plan: Plan) -> dict[str, Any]:
    """Returns the affinity that keeps a pod off nodes of other capacity types; empty if node labels suffice."""
    expressions = [
        {"key": label, "operator": "NotIn", "values": list(values)}
        for label, values in plan.placement.avoided.items()
    ]
    if not expressions:
        return {}
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def host_chips(plan: Plan) -> dict[str, Any]:
    """Returns the resources of the container that holds a host's chips: always all of them."""
    chips = {_TPU: str(plan.placement.shape.chips_per_host)}
    host = plan.placement.host_resources
    # As for stages on CPU: CPU may burst, the memory request is the limit, which a LimitRange then does not lower.
    memory = {"memory": host["memory"]} if "memory" in host else {}
    return {"requests": {**chips, **host}, "limits": {**chips, **memory}}


def slice_annotations(plan: Plan) -> Mapping[str, str]:
    """Returns annotations for a JobSet whose Jobs are slices, or for those of its Jobs that are."""
    annotations = {}
    if plan.placement.shape.multi_host:
        # One slice per node pool. For a single host, it would lock a whole shared pool.
        annotations[EXCLUSIVE_TOPOLOGY] = "cloud.google.com/gke-nodepool"
    if plan.placement.queued_provisioning:
        annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] = str(_MAX_RUN_SECONDS)
    return annotations
