"""Train and Evaluate under Pathways: one JAX process on a CPU node, the head, holds the devices of all slices.

Head: resource manager and proxy next to the trainer, which requests no chips. Workers: Pathways' server on every TPU
host. Evaluate runs this way, too: through the proxy, it reads what training wrote, on the same mesh, and over several
slices without a JAX process on each host.

Unlike published manifests, this one uses no host network (which would exclude Workload Identity) and no hostPath volume
(which the pod security standards exclude). The servers run unprivileged, as any non-root user; only their root file
system stays writable, as it is not known what they write outside /tmp.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from finetune_contract import StageRequest
from finetune_operator.objects import Object
from finetune_operator.planning import Plan
from finetune_operator.planning.slices.pathways import Pathways
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.pod import pod_spec, restricted, unprivileged, with_host_access
from finetune_operator.rendering.replicated_job import ReplicatedJob
from finetune_operator.rendering.stage_pods import host_chips, slice_affinity, slice_annotations

HEAD = "pathways-head"
WORKER = "worker"
WORKER_CONTAINER = "pathways-worker"

_PROXY_PORT, _MANAGER_PORT, _WORKER_PORT = 29000, 29001, 29005
#: Cores and GB of memory as in Google's manifests; CPU may burst, the memory request equals the limit.
_PROXY_SIZE, _MANAGER_SIZE, _TRAINER_SIZE = (16, 100), (8, 32), (24, 100)
#: Capacity that a node for the head must have.
HEAD_CORES, HEAD_GB = (
    sum(numbers) for numbers in zip(_PROXY_SIZE, _MANAGER_SIZE, _TRAINER_SIZE, strict=True)
)
#: The servers' own /tmp, separate from the trainer's.
_TMP = "pathways-tmp"
#: Crashes of a worker per host that the kubelet and the Job recover from before the slice counts as failed.
_RESTARTS_PER_HOST = 4
#: Kubernetes' limit for a label value: JobSet writes the head's address into one.
_LABEL_LENGTH = 63


def pathways_groups(plan: Plan, pathways: Pathways, request: StageRequest) -> list[ReplicatedJob]:
    """Returns the replicated jobs: head first, then workers."""
    hosts = plan.placement.shape.hosts
    return [
        ReplicatedJob(name=HEAD, replicas=1, pods=1, pod=_head(plan, pathways, request)),
        ReplicatedJob(
            name=WORKER,
            replicas=plan.mesh.slices,
            pods=hosts,
            pod=_worker(plan, pathways, request),
            backoff_limit=_RESTARTS_PER_HOST * hosts,
            # Only on these Jobs: on the JobSet, it would also place the head on the slices' node pools.
            annotations=slice_annotations(plan),
        ),
    ]


def pathways_policies(plan: Plan, jobset: str) -> dict[str, Any]:
    """Returns the fields of a JobSet's spec that differ from McJAX."""
    return {
        # Adds a label with the head's address to every pod: "<jobset>-pathways-head-0-0.<subdomain>".
        "coordinator": {"replicatedJob": HEAD, "jobIndex": 0, "podIndex": 0},
        "network": {
            "enableDNSHostnames": True,
            "subdomain": _subdomain(plan, jobset),
            "publishNotReadyAddresses": True,
        },
        # Workers serve until they are stopped; the JobSet succeeds when the head has succeeded.
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [HEAD]},
        # The head starts first, as workers register with the resource manager.
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
    }


def _subdomain(plan: Plan, jobset: str) -> str:
    """Returns a subdomain that is unique among JobSets and short enough for the head's address to fit a label value.

    The default, the JobSet's name, would be rejected for jobs whose names have more than 14 characters.
    """
    room = _LABEL_LENGTH - len(f"{jobset}-{HEAD}-0-0.")
    digest = hashlib.sha256(f"{plan.job.uid}/{jobset}".encode()).digest()
    return f"p{base64.b32encode(digest).decode().lower().rstrip('=')}"[: min(room, 16)]


def _head(plan: Plan, pathways: Pathways, request: StageRequest) -> dict[str, Any]:
    pod = pod_spec(
        plan,
        request,
        service_account=plan.service_account_tpu,
        resources=_size(*_TRAINER_SIZE),
        node_selector=pathways.head_node_selector,
        tolerations=(),
        env=[
            _head_address(),
            {"name": "JAX_PLATFORMS", "value": "proxy"},
            {"name": "JAX_BACKEND_TARGET", "value": f"grpc://$(PATHWAYS_HEAD):{_PROXY_PORT}"},
            {"name": "XCLOUD_ENVIRONMENT", "value": "GCP"},
            # Workers read and write checkpoints directly; otherwise all data would pass through the head's memory.
            {"name": "ENABLE_PATHWAYS_PERSISTENCE", "value": "1"},
            # The proxy is a container of this pod; Workload Identity provides no certificate for it.
            {"name": "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "value": "true"},
        ],
        shared_memory=True,
    )
    pod["volumes"] = [*pod["volumes"], {"name": _TMP, "emptyDir": {}}]
    # Sidecars: they start before the trainer, end after it, and do not keep the pod from completing. No probes:
    # workers are created once the head is ready, and the proxy may become ready only after they exist.
    servers = (_manager(plan, pathways), _proxy(pathways))
    pod["initContainers"] = [{**server, "restartPolicy": "Always"} for server in servers]
    return pod


def _manager(plan: Plan, pathways: Pathways) -> dict[str, Any]:
    return _server(
        "pathways-rm",
        pathways.server,
        [
            f"--server_port={_MANAGER_PORT}",
            f"--gcs_scratch_location={pathways.scratch}",
            "--node_type=resource_manager",
            f"--instance_count={plan.mesh.slices}",
            f"--instance_type={pathways.instance_type}",
        ],
        env=[
            *_names(),
            _of_label("HOST_ADDRESS", "coordinator"),
            {"name": "TPU_SKIP_MDS_QUERY", "value": "true"},
        ],
        ports=(_MANAGER_PORT, 29002),
        resources=_size(*_MANAGER_SIZE),
    )


def _proxy(pathways: Pathways) -> dict[str, Any]:
    return _server(
        "pathways-proxy",
        pathways.proxy,
        [
            f"--server_port={_PROXY_PORT}",
            f"--resource_manager_address=$(PATHWAYS_HEAD):{_MANAGER_PORT}",
            f"--gcs_scratch_location={pathways.scratch}",
        ],
        env=[_head_address()],
        ports=(_PROXY_PORT,),
        resources=_size(*_PROXY_SIZE),
    )


def _worker(plan: Plan, pathways: Pathways, request: StageRequest) -> dict[str, Any]:
    pod = {
        # A worker that dies restarts on its host and registers again; the others continue.
        "restartPolicy": "OnFailure",
        # As long as the head's grace period: the head saves through the workers.
        **restricted(plan.service_account_tpu, grace_seconds=STAGES[request.stage].grace_seconds),
        "nodeSelector": dict(plan.placement.node_selector),
        "tolerations": [dict(toleration) for toleration in plan.placement.tolerations],
        **slice_affinity(plan),
        "containers": [
            _server(
                WORKER_CONTAINER,
                pathways.server,
                [
                    f"--server_port={_WORKER_PORT}",
                    f"--resource_manager_address=$(PATHWAYS_HEAD):{_MANAGER_PORT}",
                    f"--gcs_scratch_location={pathways.scratch}",
                ],
                env=[
                    {"name": "TPU_MIN_LOG_LEVEL", "value": "0"},
                    {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "0"},
                    {"name": "XCLOUD_ENVIRONMENT", "value": "GCP"},
                    {"name": "MEGASCALE_GRPC_ENABLE_XOR_TRACER", "value": "false"},
                    _of_label("MEGASCALE_NUM_SLICES", "replicatedjob-replicas"),
                    _of_label("MEGASCALE_SLICE_ID", "job-index"),
                    _of_label("MEGASCALE_COORDINATOR_ADDRESS", "coordinator"),
                    _head_address(),
                    *_names(),
                ],
                # 8471: between the hosts of a slice; 8080: between slices.
                ports=(_WORKER_PORT, 29006, 8471, 8080),
                resources=host_chips(plan),
            )
        ],
        "volumes": [{"name": _TMP, "emptyDir": {}}],
    }
    return with_host_access(plan, pod)


def _server(
    name: str,
    image: str,
    args: Sequence[str],
    *,
    env: Sequence[Object],
    ports: Sequence[int],
    resources: Object,
) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "args": list(args),
        "env": list(env),
        "resources": resources,
        "securityContext": unprivileged(),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _TMP, "mountPath": "/tmp"}],  # noqa: S108  a mount of its own
        "ports": [{"containerPort": port, "protocol": "TCP"} for port in ports],
    }


def _size(cores: int, gigabytes: int) -> dict[str, Any]:
    memory = f"{gigabytes}G"
    return {"requests": {"cpu": str(cores), "memory": memory}, "limits": {"memory": memory}}


def _of_label(name: str, label: str) -> Object:
    """Returns a variable whose value is a label that JobSet sets on the pod."""
    path = f"metadata.labels['jobset.sigs.k8s.io/{label}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _head_address() -> Object:
    """Returns the address variable. A container that expands it must list it before the variables that do."""
    return _of_label("PATHWAYS_HEAD", "coordinator")


def _names() -> tuple[Object, ...]:
    return (
        _of_label("REPLICATED_JOB_NAME", "replicatedjob-name"),
        _of_label("JOBSET_NAME", "jobset-name"),
    )
