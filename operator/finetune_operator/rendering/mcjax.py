"""Train and Evaluate: one JAX process per host of a TPU slice."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import StageRequest
from finetune_operator.planning import Plan
from finetune_operator.rendering.pod import pod_spec

EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_TPU = "google.com/tpu"


def slice_pod(plan: Plan, request: StageRequest) -> dict[str, Any]:
    """The pod of one host."""
    return pod_spec(
        plan,
        request,
        service_account=plan.service_account_tpu,
        resources=host_chips(plan),
        node_selector=slice_nodes(plan),
        tolerations=slice_tolerations(plan),
        # 8471: between the hosts of a slice; 8431: what GKE scrapes the chips' metrics from.
        ports=[{"name": "tpu", "containerPort": 8471}, {"name": "tpu-metrics", "containerPort": 8431}],
        shared_memory=True,
    )


def host_chips(plan: Plan) -> dict[str, Any]:
    """Resources of the container that holds a host's chips: always all of them."""
    chips = {_TPU: str(plan.placement.shape.chips_per_host)}
    return {"requests": chips, "limits": dict(chips)}


def slice_nodes(plan: Plan) -> dict[str, str]:
    """Labels of the nodes that a slice's pods may run on."""
    shape = plan.placement.shape
    return {
        "cloud.google.com/gke-tpu-accelerator": shape.accelerator,
        "cloud.google.com/gke-tpu-topology": shape.topology,
        **plan.placement.node_selector,
    }


def slice_tolerations(plan: Plan) -> list[Mapping[str, Any]]:
    """Taints of those nodes."""
    return [{"key": _TPU, "operator": "Exists", "effect": "NoSchedule"}, *plan.placement.tolerations]


def slice_annotations(plan: Plan) -> Mapping[str, str]:
    """One slice per node pool, which only multi-host slices need: a single host would lock a whole shared pool."""
    if plan.placement.shape.multi_host:
        return {EXCLUSIVE_TOPOLOGY: "cloud.google.com/gke-nodepool"}
    return {}
