"""Train and Evaluate under Pathways: one JAX process on a CPU node, the head, holds the devices of all slices.

Head: resource manager and proxy beside the trainer, which asks for no chips. Workers: Pathways' server on every TPU
host. Evaluate runs so, too: it reads what training wrote through the proxy, on the same mesh, and over several slices
without a JAX process on each host.

Unlike what is published elsewhere there is no host network (it would exclude Workload Identity) and no folder of the
host (the pod standards exclude it). The servers run as any other user, without rights; only their root file system
stays writable, as it is not known what they write beside /tmp.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from finetune_contract import StageRequest
from finetune_operator.planning import Plan
from finetune_operator.planning.pathways import Pathways
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.mcjax import host_chips, slice_affinity, slice_annotations
from finetune_operator.rendering.pod import (
    pod_spec,
    restricted,
    unprivileged,
    with_host_access,
)
from finetune_operator.rendering.replicated_job import Object, ReplicatedJob

HEAD = "pathways-head"
WORKER = "worker"

_PROXY_PORT, _MANAGER_PORT, _WORKER_PORT = 29000, 29001, 29005
#: Cores and GB of memory as Google's own manifests give them; cores may be borrowed, memory is requested whole.
_PROXY_SIZE, _MANAGER_SIZE, _TRAINER_SIZE = (16, 100), (8, 32), (24, 100)
#: What a node for the head must have room for.
HEAD_CORES, HEAD_GB = (
    sum(numbers) for numbers in zip(_PROXY_SIZE, _MANAGER_SIZE, _TRAINER_SIZE, strict=True)
)
#: The servers' own /tmp; the trainer has another.
_TMP = "pathways-tmp"
#: Crashes of a worker that the kubelet and the Job mend by themselves, per host, before the slice counts as failed.
_RESTARTS_PER_HOST = 4
#: Kubernetes' limit for the value of a label: JobSet writes the head's address into one.
_LABEL_LENGTH = 63


def pathways_groups(plan: Plan, pathways: Pathways, request: StageRequest) -> list[ReplicatedJob]:
    """Head, then workers."""
    hosts = plan.placement.shape.hosts
    return [
        ReplicatedJob(
            name=HEAD,
            replicas=1,
            pods=1,
            pod=_head(plan, pathways, request),
            # Without it all slices stop, so a node that is only half used is not worth removing.
            pod_annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        ),
        ReplicatedJob(
            name=WORKER,
            replicas=plan.mesh.slices,
            pods=hosts,
            pod=_worker(plan, pathways, request),
            backoff_limit=_RESTARTS_PER_HOST * hosts,
            # On these Jobs alone: on the JobSet it would put the head on the slices' node pools, too.
            annotations=slice_annotations(plan),
        ),
    ]


def pathways_policies(plan: Plan, jobset: str) -> dict[str, Any]:
    """What a JobSet's spec says otherwise than for McJAX."""
    return {
        # Gives every pod the label with the head's address, "<jobset>-pathways-head-0-0.<subdomain>".
        "coordinator": {"replicatedJob": HEAD, "jobIndex": 0, "podIndex": 0},
        "network": {
            "enableDNSHostnames": True,
            "subdomain": _subdomain(plan, jobset),
            "publishNotReadyAddresses": True,
        },
        # Workers serve until they are ended; when the trainer has ended well, all is done.
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [HEAD]},
        # Workers register with the resource manager: the head first.
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
    }


def _subdomain(plan: Plan, jobset: str) -> str:
    """Unique among JobSets, and short enough for the head's address to be the value of a label: by default it is the
    JobSet's name, and jobs whose name has more than 14 characters would be refused."""
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
            # The workers read and write checkpoints themselves; else all of it would pass through the head's memory.
            {"name": "ENABLE_PATHWAYS_PERSISTENCE", "value": "1"},
            # The proxy is a container of this pod; Workload Identity gives it no certificate.
            {"name": "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "value": "true"},
        ],
        shared_memory=True,
    )
    pod["volumes"] = [*pod["volumes"], {"name": _TMP, "emptyDir": {}}]
    # Sidecars: they start before the trainer, end after it, and do not keep the pod from being done. Without probes:
    # workers are made once the head is ready, and the proxy may be ready only once they are there.
    pod["initContainers"] = [
        {
            **_server(
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
            ),
            "restartPolicy": "Always",
        },
        {
            **_server(
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
            ),
            "restartPolicy": "Always",
        },
    ]
    return pod


def _worker(plan: Plan, pathways: Pathways, request: StageRequest) -> dict[str, Any]:
    pod = {
        # One that dies comes back on its host and registers anew; the others go on.
        "restartPolicy": "OnFailure",
        # As long as the head may take: it saves through the workers.
        **restricted(plan.service_account_tpu, grace_seconds=STAGES[request.stage].grace_seconds),
        "nodeSelector": dict(plan.placement.node_selector),
        "tolerations": [dict(toleration) for toleration in plan.placement.tolerations],
        **slice_affinity(plan),
        "containers": [
            _server(
                "pathways-worker",
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
    """A variable that holds what JobSet tells the pod about itself."""
    path = f"metadata.labels['jobset.sigs.k8s.io/{label}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _head_address() -> Object:
    """In every container that expands it, and before the variables that do."""
    return _of_label("PATHWAYS_HEAD", "coordinator")


def _names() -> tuple[Object, ...]:
    return (
        _of_label("REPLICATED_JOB_NAME", "replicatedjob-name"),
        _of_label("JOBSET_NAME", "jobset-name"),
    )
