"""Node pools without machines, which kwok keeps ready. To the scheduler they equal GKE's nodes."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from devcluster import kwok
from devcluster.agent import nodes
from devcluster.agent.nodes import LocalNode
from finetune_contract.tpu import TpuMachine, machines
from finetune_operator.objects import Object

#: Stands for a machine type whose size is not published.
_UNPUBLISHED = TpuMachine(name="", vcpus=180, memory_gb=720)


def tpu_pool(
    name: str,
    *,
    accelerator: str,
    topology: str,
    machine_type: str,
    hosts: int,
    chips_per_host: int,
    labels: Mapping[str, str] | None = None,
) -> Sequence[LocalNode]:
    """A node pool as GKE labels it.

    With a multi-host topology it is one slice, with a single-host one it holds as many slices as hosts. ``labels`` are
    added.
    """
    machine = machines().get(machine_type, _UNPUBLISHED)
    return tuple(
        LocalNode(
            name=f"{name}-{host}",
            pool=name,
            machine_type=machine_type,
            cpu=str(machine.vcpus),
            memory=f"{machine.memory_gb}Gi",
            tpu=chips_per_host,
            labels={
                "cloud.google.com/gke-tpu-accelerator": accelerator,
                "cloud.google.com/gke-tpu-topology": topology,
                "cloud.google.com/gke-accelerator-count": str(chips_per_host),
                **(labels or {}),
            },
        )
        for host in range(hosts)
    )


def manifest(node: LocalNode) -> Object:
    """The Node to create, including its status; kwok adds that it is ready."""
    made = nodes.manifest(node)
    made["metadata"]["annotations"] = dict(kwok.ANNOTATION)
    reported = nodes.status(node, port=0, now=datetime.now(UTC))["status"]
    return {**made, "status": {key: reported[key] for key in ("capacity", "allocatable")}}
