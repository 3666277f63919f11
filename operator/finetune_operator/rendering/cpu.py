"""Preflight, Convert and Export: one pod on a CPU node."""

from typing import Any

from finetune_contract import Stage, StageRequest
from finetune_operator.planning import Findings, Plan
from finetune_operator.rendering.memory import cpu_memory_gib
from finetune_operator.rendering.pod import pod_spec

_CORES = {Stage.PREFLIGHT: "1", Stage.CONVERT: "2", Stage.EXPORT: "2"}


def cpu_pod(plan: Plan, request: StageRequest, findings: Findings) -> dict[str, Any]:
    """The stage's pod. Raises CpuPoolTooSmall."""
    memory = f"{cpu_memory_gib(plan, request.stage, findings)}Gi"
    return pod_spec(
        plan,
        request,
        service_account=plan.service_account_cpu,
        # Memory is requested whole: an overcommitted node would kill whoever grew last. Cores may be borrowed.
        resources={
            "requests": {"cpu": _CORES[request.stage], "memory": memory},
            "limits": {"memory": memory},
        },
        node_selector=plan.cpu_pool.node_selector,
        tolerations=plan.cpu_pool.tolerations,
        # The image carries libtpu, which JAX would look for first.
        env=[{"name": "JAX_PLATFORMS", "value": "cpu"}],
    )
