"""The pods of a stage: one on CPU, or one JAX process per host of a TPU slice (McJAX)."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import Stage, StageRequest
from finetune_contract.request import SLICE_PROGRAMS_VARIABLE, SLICE_VARIABLES
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.slices.memory import compiler_flags
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.memory import memory_for
from finetune_operator.rendering.pod import pod_spec, with_host_access
from finetune_operator.rendering.scratch import scratch_gib, scratch_limit_gib

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


def cpu_pod(plan: Plan, request: StageRequest, findings: Findings) -> dict[str, Any]:
    """Returns the spec of the stage's pod. Raises CpuPoolTooSmall."""
    resources = STAGES[request.stage].cpu
    assert resources is not None, "called for a stage on CPU"
    model = findings.preflight.model if findings.preflight else None
    memory = f"{memory_for(plan, request.stage, model)}Gi"
    scratch = scratch_gib(plan, request.stage, model)
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
    flags = compiler_flags(plan.placement.flags, plan.pod.env, pathways=False)
    variables = [{"name": SLICE_VARIABLES[name], "value": value} for name, value in flags.items()]
    return [*variables, {"name": SLICE_PROGRAMS_VARIABLE, "value": _programs_folder(plan)}]


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


def _programs_folder(plan: Plan) -> str:
    """Returns the folder in which a pod of ``slice_pod`` reads and writes compiled programs."""
    named = [each.value for each in plan.pod.env if each.name == _PROGRAMS]
    return named[-1] if named else plan.programs


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
