"""Train and Evaluate: one JAX process per host of a TPU slice."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import StageRequest
from finetune_operator.catalog import shares_labels
from finetune_operator.planning import Plan
from finetune_operator.rendering.pod import pod_spec

EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_TPU = "google.com/tpu"


def slice_pod(plan: Plan, request: StageRequest) -> dict[str, Any]:
    """The pod of one host."""
    shape = plan.placement.shape
    chips = {_TPU: str(shape.chips_per_host)}
    return pod_spec(
        plan,
        request,
        service_account=plan.service_account_tpu,
        resources={"requests": chips, "limits": dict(chips)},
        node_selector={
            "cloud.google.com/gke-tpu-accelerator": shape.accelerator,
            "cloud.google.com/gke-tpu-topology": shape.topology,
            # Both hosts of a 2x4 slice would find room on one host of eight chips.
            **({"node.kubernetes.io/instance-type": shape.machine_type} if shares_labels(shape) else {}),
            **plan.placement.node_selector,
        },
        tolerations=[
            {"key": _TPU, "operator": "Exists", "effect": "NoSchedule"},
            *plan.placement.tolerations,
        ],
        # 8471: between the hosts of a slice; 8431: what GKE scrapes the chips' metrics from.
        ports=[{"name": "tpu", "containerPort": 8471}, {"name": "tpu-metrics", "containerPort": 8431}],
        shared_memory=True,
    )


def slice_annotations(plan: Plan) -> Mapping[str, str]:
    """One slice per node pool, which only multi-host slices need: a single host would lock a whole shared pool."""
    if plan.placement.shape.multi_host:
        return {EXCLUSIVE_TOPOLOGY: "cloud.google.com/gke-nodepool"}
    return {}
