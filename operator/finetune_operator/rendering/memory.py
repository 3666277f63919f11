"""Host memory of the stages on CPU: a pure function of the model's size and the profile's CPU nodes.

A pod can only have what a node leaves to pods. GKE keeps part of a node's memory for itself, so requests are sizes
that a node of a common size leaves, never the size of a node.
"""

import math
import re
from collections.abc import Iterable
from math import ceil, floor

from finetune_contract import Stage, host_memory
from finetune_operator.planning import Findings, Plan

#: An adapter has at most rank / this of the model's parameters; with layers so narrow that it has more, it is small.
_PARAMETERS_PER_RANK = 2000
#: The stages whose memory grows with the model.
SIZED_STAGES = (Stage.CONVERT, Stage.EXPORT)
#: For the process itself, the files that are being fetched, and two shards of an export.
_SLACK_GIB = 8
_PREFLIGHT_GIB = 8
#: Below it no stage starts.
_LEAST_GIB = 1
#: More is not a model but a damaged record: the pod then asks for what no node has, and says so.
_MOST_PARAMETERS = 10**15
#: Memory of the node types that clouds offer, GiB.
NODE_SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 864, 1024, 1408, 1952, 3844, 5888)
#: What GKE reserves of a node's memory: this share, up to that many GiB of the node.
_RESERVED = ((4, 0.25), (8, 0.20), (16, 0.10), (128, 0.06), (math.inf, 0.02))
#: GiB below which the kubelet evicts pods; not allocatable.
_EVICTION_GIB = 100 / 1024
#: GiB that DaemonSets of the cluster request on every node: logging, metrics, storage, network.
_DAEMONS_GIB = 1.0
_UNITS = {
    "": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


class CpuPoolTooSmall(ValueError):
    """A stage needs more memory than the profile's CPU nodes give to one pod. ``str()`` says which and how much."""

    def __init__(self, message: str, *, stage: Stage, fix: str) -> None:
        self.stage, self.fix = stage, fix
        super().__init__(message)


def allocatable_gib(node: float) -> float:
    """What GKE leaves to all pods of a node with ``node`` GiB of memory."""
    reserved, below = 0.0, 0.0
    for above, share in _RESERVED:
        reserved += max(0.0, min(node, above) - below) * share
        below = above
    return node - reserved - _EVICTION_GIB


def request_gib(node: int) -> int:
    """The most that one pod can request on a node with ``node`` GiB of memory, beside the cluster's DaemonSets."""
    return floor(allocatable_gib(node) - _DAEMONS_GIB)


def needed_gib(plan: Plan, stage: Stage, parameters: int) -> int:
    """What a stage of ``SIZED_STAGES`` needs for a model with so many parameters."""
    return ceil(_believable(parameters) * _factor(plan, stage) / 2**30 + _SLACK_GIB)


def _factor(plan: Plan, stage: Stage) -> float:
    """Bytes per parameter of the model. An adapter is exported without a copy of the model, unless the model comes in
    MaxText's format, which is restored whole."""
    if stage is Stage.CONVERT:
        return host_memory.CONVERT
    lora, export = plan.method.lora, plan.export
    whole = host_memory.EXPORT_WITH_ORBAX if export.orbax else host_memory.EXPORT
    if lora is None or plan.model.orbax or export.orbax:
        return whole
    adapter = host_memory.ADAPTER * lora.rank / _PARAMETERS_PER_RANK
    return min(whole, adapter + (0 if export.content == "Adapter" else host_memory.EXPORT_MERGED))


def limit_gib(plan: Plan) -> float | None:
    """The most that a pod may request under the profile's ``cpuPool.maxMemory``; None: it names no limit.

    A value that lies between what a node of a common size leaves and that size is read as that node's: a pod that
    asked for all of it would wait for ever.
    """
    if plan.cpu_pool.max_memory is None:
        return None
    given = _gib(plan.cpu_pool.max_memory)
    whole = next((request_gib(node) for node in NODE_SIZES if request_gib(node) < given <= node), None)
    return given if whole is None else float(whole)


def most_parameters(plan: Plan, stage: Stage) -> int | None:
    """The largest model that fits the stage under the profile, in whole millions; None: the profile names no limit."""
    limit = limit_gib(plan)
    if limit is None:
        return None
    return max(0, int((floor(limit) - _SLACK_GIB) * 2**30 / _factor(plan, stage) / 1e6) * 10**6)


def cpu_memory_gib(plan: Plan, stage: Stage, findings: Findings) -> int:
    """What the stage's pod requests, GiB. Raises CpuPoolTooSmall.

    Before preflight the model's size is unknown, and the smallest size stands for it.
    """
    parameters = findings.preflight.model.parameters if findings.preflight else 0
    return memory_for(plan, stage, parameters)


def memory_for(plan: Plan, stage: Stage, parameters: int) -> int:
    """The same for a model with so many parameters."""
    limit = limit_gib(plan)
    if limit is not None and limit < _LEAST_GIB:
        raise CpuPoolTooSmall(
            f"the profile's cpuPool.maxMemory is {plan.cpu_pool.max_memory}, and stage {stage} needs more.",
            stage=stage,
            fix="Create the job under a profile with larger CPU nodes.",
        )
    if stage is Stage.PREFLIGHT:
        return _PREFLIGHT_GIB if limit is None else min(_PREFLIGHT_GIB, floor(limit))
    needed = needed_gib(plan, stage, parameters)
    size = next((fits for node in NODE_SIZES if (fits := request_gib(node)) >= needed), needed)
    if limit is None or size <= limit:
        return size
    if needed > limit:
        raise _too_small(plan, {stage: needed}, parameters)
    return floor(limit)


def memory_wanted(plan: Plan, stage: Stage, parameters: int) -> int:
    """What the stage requests, or what it would need where the profile's nodes do not have it. GiB."""
    try:
        return memory_for(plan, stage, parameters)
    except CpuPoolTooSmall:
        return needed_gib(plan, stage, parameters)


def require_cpu_memory(plan: Plan, stages: Iterable[Stage], parameters: int) -> None:
    """Raises CpuPoolTooSmall, which names all of ``stages`` that do not fit, where any does not."""
    limit = limit_gib(plan)
    needed = {stage: needed_gib(plan, stage, parameters) for stage in stages if stage in SIZED_STAGES}
    failing = {stage: size for stage, size in needed.items() if limit is not None and size > limit}
    if failing:
        raise _too_small(plan, failing, parameters)


def _too_small(plan: Plan, needed: dict[Stage, int], parameters: int) -> CpuPoolTooSmall:
    limit, most = limit_gib(plan), max(needed.values())
    assert limit is not None, "called for a profile with a limit"
    given = plan.cpu_pool.max_memory
    allowed = f"{given}" if limit == _gib(str(given)) else f"{given}, of which a node leaves {limit:g} GiB"
    wants = " and ".join(f"{stage} about {size} GiB" for stage, size in needed.items())
    least = min(most_parameters(plan, stage) or 0 for stage in needed)
    fits = f"models of up to {least / 1e9:.1f} billion parameters fit" if least else "no model fits"
    node = next((node for node in NODE_SIZES if request_gib(node) >= most), None)
    # A value that is no more than the size of a node is read as what that node leaves.
    enough = max(most, NODE_SIZES[-1] + 1) if node is None else request_gib(node)
    return CpuPoolTooSmall(
        f"A model with {_believable(parameters) / 1e9:.1f} billion parameters needs more memory than the profile's "
        f"CPU nodes give to a pod: {wants}, and cpuPool.maxMemory is {allowed}. There {fits}.",
        stage=next(iter(needed)),
        fix=f"Create the job under a profile whose CPU nodes give a pod {most} GiB: cpuPool.maxMemory {enough}Gi"
        + (f", which a node of {node} GiB leaves." if node else "."),
    )


def _believable(parameters: int) -> int:
    return min(max(0, parameters), _MOST_PARAMETERS)


def _gib(quantity: str) -> float:
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", quantity)
    assert match is not None, "the profile's schema admits quantities only"
    return float(match[1]) * _UNITS[match[2]] / 2**30
