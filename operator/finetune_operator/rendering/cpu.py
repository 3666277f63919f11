"""CPU stages: one pod on a CPU node."""

from typing import Any

from finetune_contract import Stage, StageRequest
from finetune_contract.request import SLICE_PROGRAMS_VARIABLE, SLICE_VARIABLES
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.mcjax import programs_folder, slice_flags
from finetune_operator.rendering.memory import memory_for
from finetune_operator.rendering.pod import pod_spec
from finetune_operator.rendering.scratch import scratch_gib, scratch_limit_gib


def cpu_pod(plan: Plan, request: StageRequest, findings: Findings) -> dict[str, Any]:
    """Returns the spec of the stage's pod. Raises CpuPoolTooSmall."""
    resources = STAGES[request.stage].cpu
    assert resources is not None, "called for a stage on CPU"
    model = findings.preflight.model if findings.preflight else None
    memory = f"{memory_for(plan, request.stage, model)}Gi"
    scratch = scratch_gib(plan, request.stage, findings)
    most = scratch_limit_gib(request.stage, scratch)
    return pod_spec(
        plan,
        request,
        service_account=plan.service_account_cpu,
        # The memory request equals the limit: an overcommitted node would kill the pod that grew last. CPU may burst.
        resources={
            "requests": {
                "cpu": resources.cores,
                "memory": memory,
                "ephemeral-storage": f"{scratch}Gi",
            },
            "limits": {"memory": memory, **({"ephemeral-storage": f"{most}Gi"} if most else {})},
        },
        node_selector=plan.cpu_pool.node_selector,
        tolerations=[toleration.to_document() for toleration in plan.cpu_pool.tolerations],
        # The image contains libtpu, which JAX would try first.
        env=[{"name": "JAX_PLATFORMS", "value": "cpu"}, *_compiled_with(plan, request.stage)],
    )


def _compiled_with(plan: Plan, stage: Stage) -> list[dict[str, str]]:
    """Returns the variables with which preflight compiles the programs of the slice.

    Preflight uses the slice's compiler flags and writes to the folder from which the slice's stages read programs.
    Empty under Pathways, whose servers compile.
    """
    if stage is not Stage.PREFLIGHT or plan.pathways is not None:
        return []
    flags = [{"name": SLICE_VARIABLES[name], "value": value} for name, value in slice_flags(plan).items()]
    return [*flags, {"name": SLICE_PROGRAMS_VARIABLE, "value": programs_folder(plan)}]
