"""What GKE leaves of a machine to pods.

GKE reserves a part of each node's cores and memory, and the cluster's DaemonSets (logging, metrics, storage, network,
the TPU device plugin) request some of the rest. A pod that requests more waits forever.
"""

import math
from collections.abc import Mapping, Sequence
from math import floor

from finetune_contract.tpu import machines

#: GKE's reservation of a node's memory: pairs of an upper bound in GiB and the reserved share up to that bound.
_RESERVED_MEMORY = ((4, 0.25), (8, 0.20), (16, 0.10), (128, 0.06), (math.inf, 0.02))
#: The same of its cores.
_RESERVED_CORES = ((1, 0.06), (2, 0.01), (4, 0.005), (math.inf, 0.0025))
#: Free GiB below which the kubelet evicts pods; not allocatable.
_EVICTION_GIB = 100 / 1024
#: GiB and cores that the cluster's DaemonSets request on every node.
_DAEMONS_GIB = 1.0
_DAEMONS_CORES = 2.0


def allocatable_gib(node: float) -> float:
    """Returns the memory that GKE leaves to all pods of a node with ``node`` GiB of memory."""
    return node - _reserved(node, _RESERVED_MEMORY) - _EVICTION_GIB


def request_gib(node: float) -> int:
    """Returns the most that one pod can request on a node with ``node`` GiB, next to the cluster's DaemonSets."""
    return floor(allocatable_gib(node) - _DAEMONS_GIB)


def request_cores(vcpus: int) -> int:
    """Returns the most cores that one pod can request on a node with ``vcpus``, next to the cluster's DaemonSets."""
    return floor(vcpus - _reserved(vcpus, _RESERVED_CORES) - _DAEMONS_CORES)


def host_requests(machine_type: str) -> Mapping[str, str]:
    """Returns the most that the one pod of a TPU host can request: ``cpu`` and ``memory``.

    Empty if the machine's figures are not published. The published GB are GiB, of which the kernel keeps a part; read
    as 10^9 bytes, they are less than what it leaves.
    """
    machine = machines().get(machine_type)
    if machine is None:
        return {}
    memory = request_gib(machine.memory_gb * 10**9 / 2**30)
    return {"cpu": str(request_cores(machine.vcpus)), "memory": f"{memory}Gi"}


def _reserved(size: float, shares: Sequence[tuple[float, float]]) -> float:
    reserved, below = 0.0, 0.0
    for above, share in shares:
        reserved += max(0.0, min(size, above) - below) * share
        below = above
    return reserved
