"""The local nodes: they resemble GKE's and compute on this machine's CPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from finetune_operator.objects import Object

#: The kubelet version that a node reports; the agent implements its part of the API.
KUBELET_VERSION = "v1.36.3"
LEASE_SECONDS = 40
RENEW_SECONDS = 10
TPU_RESOURCE = "google.com/tpu"
LEASE_NAMESPACE = "kube-node-lease"
#: Of nodes and of their pods: there are no network namespaces.
ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A node's name, pool and resources. Sizes are those of the machine type, not of this machine."""

    name: str
    pool: str
    machine_type: str
    cpu: str
    memory: str
    tpu: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


def _v6e(name: str, pool: str, topology: str) -> LocalNode:
    """A ct6e-standard-4t host: four v6e chips (180 vCPU, 720 GB)."""
    return LocalNode(
        name=name,
        pool=pool,
        machine_type="ct6e-standard-4t",
        cpu="180",
        memory="720Gi",
        tpu=4,
        labels={
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": topology,
            "cloud.google.com/gke-accelerator-count": "4",
        },
    )


#: One node for CPU stages and for one head of Pathways, two slices of one host, one slice of two hosts.
LOCAL_NODES: tuple[LocalNode, ...] = (
    LocalNode(name="cpu-0", pool="cpu", machine_type="n2-highmem-64", cpu="64", memory="512Gi"),
    _v6e("v6e-2x2-a-0", "v6e-2x2-a", "2x2"),
    _v6e("v6e-2x2-b-0", "v6e-2x2-b", "2x2"),
    _v6e("v6e-2x4-0", "v6e-2x4", "2x4"),
    _v6e("v6e-2x4-1", "v6e-2x4", "2x4"),
)


def manifest(node: LocalNode) -> Object:
    """The Node object to register, without status."""
    taints = [{"key": TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}] if node.tpu else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {
                "kubernetes.io/hostname": node.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": node.machine_type,
                "topology.kubernetes.io/region": "local",
                "topology.kubernetes.io/zone": "local-a",
                "cloud.google.com/gke-nodepool": node.pool,
                "cloud.google.com/machine-family": node.machine_type.partition("-")[0],
                "cloud.google.com/gke-provisioning": "standard",
                **node.labels,
            },
        },
        "spec": {"taints": taints},
    }


def status(node: LocalNode, *, port: int, now: datetime) -> Object:
    """A patch of the Node's status: Ready, its resources, and the port that serves its logs."""
    resources = {"cpu": node.cpu, "memory": node.memory, "ephemeral-storage": "10Ti", "pods": "110"}
    if node.tpu:
        resources[TPU_RESOURCE] = str(node.tpu)
    return {
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [_condition(*row, now=now) for row in _CONDITIONS],
            # only an InternalIP: a Hostname address would be dialed by name
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "osImage": "local processes",
                "kernelVersion": "",
                "machineID": node.name,
                "systemUUID": "",
                "bootID": "",
                "containerRuntimeVersion": "processes://1",
                "kubeletVersion": KUBELET_VERSION,
                "kubeProxyVersion": "",
            },
        }
    }


_CONDITIONS = (
    ("Ready", "True", "KubeletReady", "the node agent is posting ready status"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "memory is not watched locally"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "disks are not watched locally"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "process numbers are not watched locally"),
)


def _condition(kind: str, state: str, reason: str, message: str, *, now: datetime) -> Object:
    stamp = timestamp(now)
    return {
        "type": kind,
        "status": state,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": stamp,
    }


def lease(node: LocalNode, *, now: datetime) -> Object:
    """The node's heartbeat."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node.name, "namespace": LEASE_NAMESPACE},
        "spec": {
            "holderIdentity": node.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def timestamp(moment: datetime) -> str:
    """The time as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
