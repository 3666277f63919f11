"""Host memory of the CPU stages, as a pure function of the model's largest piece and the profile's CPU nodes.

A pod can only use the memory that a node leaves to pods. GKE reserves part of a node's memory, so requests are amounts
that a node of a common size leaves, never the size of a node.
"""

from collections.abc import Iterable
from math import floor

from finetune_contract import ModelIdentity, ModelSizes, Stage, host_memory
from finetune_operator.catalog.gke_nodes import request_gib
from finetune_operator.planning import Plan
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.quantities import gib

#: GiB below which no stage starts.
_LEAST_GIB = 1
#: Memory of the node types that clouds offer, in GiB.
NODE_SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 864, 1024, 1408, 1952, 3844, 5888)


class CpuPoolTooSmall(ValueError):
    """A stage needs more memory or disk than the profile's CPU nodes give to one pod. ``str()`` names the stage and the
    amount."""

    def __init__(self, message: str, *, stage: Stage, fix: str) -> None:
        self.stage, self.fix = stage, fix
        super().__init__(message)


def sizes_of(model: ModelIdentity | None) -> ModelSizes:
    """Returns the sizes of the model's parts; zeros before preflight has read the model."""
    if model is None:
        return ModelSizes(largest_piece=0, largest_stack=0, largest_block=0, lora_width=0, weights_bytes=0)
    return model.sizes


def needed_gib(plan: Plan, stage: Stage, model: ModelIdentity | None) -> int:
    """Returns the GiB that a stage needs whose memory depends on the model."""
    sizes = sizes_of(model)
    held = host_memory.PIECE * sizes.largest_piece
    if stage is Stage.EXPORT:
        if plan.method.lora is None:
            held = max(held, host_memory.CHUNK * _share(plan, sizes))
        else:
            adapter = plan.method.lora.rank * sizes.lora_width
            held = max(held + host_memory.ADAPTER_HELD * adapter, host_memory.ADAPTER_WRITTEN * adapter)
    return -(-(host_memory.FIXED + held) // 2**30)


def _share(plan: Plan, sizes: ModelSizes) -> int:
    """Returns the parameters of a chip's shard of the largest stacked array, which training writes as one chunk."""
    return sizes.largest_stack // (plan.mesh.fsdp * plan.mesh.tensor)


def limit_gib(plan: Plan) -> float | None:
    """Returns the most GiB that a pod may request under the profile's ``cpuPool.maxMemory``; None if it sets no limit.

    A value between the size of a common node and what that node leaves to pods counts as what it leaves: a pod that
    requested all of it would wait forever.
    """
    if plan.cpu_pool.max_memory is None:
        return None
    given = gib(plan.cpu_pool.max_memory)
    whole = next((request_gib(node) for node in NODE_SIZES if request_gib(node) < given <= node), None)
    return given if whole is None else float(whole)


def largest_piece(plan: Plan) -> int | None:
    """Returns the parameters of the largest piece that fits the profile, in whole millions; None if it has no limit."""
    limit = limit_gib(plan)
    if limit is None:
        return None
    return max(0, floor(limit) * 2**30 - host_memory.FIXED) // host_memory.PIECE // 10**6 * 10**6


def memory_for(plan: Plan, stage: Stage, model: ModelIdentity | None) -> int:
    """Returns the memory request of the stage's pod in GiB. Raises CpuPoolTooSmall.

    Before preflight the model is unknown (None), and the smallest size is requested.
    """
    limit = limit_gib(plan)
    if limit is not None and limit < _LEAST_GIB:
        raise CpuPoolTooSmall(
            f"the profile's cpuPool.maxMemory is {plan.cpu_pool.max_memory}, but stage {stage} needs more.",
            stage=stage,
            fix="Create the job under a profile with larger CPU nodes.",
        )
    require_cpu_memory(plan, (stage,), model)
    return memory_wanted(plan, stage, model)


def memory_wanted(plan: Plan, stage: Stage, model: ModelIdentity | None) -> int:
    """Returns the stage's memory request in GiB, or what it would need if the profile's nodes are too small."""
    limit, cpu = limit_gib(plan), STAGES[stage].cpu
    if cpu is not None and cpu.memory_gib is not None:
        return cpu.memory_gib if limit is None else min(cpu.memory_gib, floor(limit))
    needed = needed_gib(plan, stage, model)
    size = next((fits for node in NODE_SIZES if (fits := request_gib(node)) >= needed), needed)
    return size if limit is None or size <= limit else max(needed, floor(limit))


def require_cpu_memory(plan: Plan, stages: Iterable[Stage], model: ModelIdentity | None) -> None:
    """Raises CpuPoolTooSmall if any of ``stages`` does not fit; the error names all that do not."""
    limit = limit_gib(plan)
    needed = {stage: needed_gib(plan, stage, model) for stage in stages if STAGES[stage].sized_by_model}
    failing = {stage: size for stage, size in needed.items() if limit is not None and size > limit}
    if failing:
        raise _too_small(plan, failing, model)


def _too_small(plan: Plan, needed: dict[Stage, int], model: ModelIdentity | None) -> CpuPoolTooSmall:
    limit, most = limit_gib(plan), max(needed.values())
    assert limit is not None, "called for a profile with a limit"
    given = plan.cpu_pool.max_memory
    allowed = (
        given if limit == gib(str(given)) else f"{given}, of which {limit:g} GiB are allocatable on a node"
    )
    wants = " and ".join(f"{stage} needs {size} GiB" for stage, size in needed.items())
    node = next((node for node in NODE_SIZES if request_gib(node) >= most), None)
    # A value up to the size of a node is read as what that node leaves.
    enough = max(most, NODE_SIZES[-1] + 1) if node is None else request_gib(node)
    return CpuPoolTooSmall(
        f"{wants} of memory{_because(plan, model)}, and the profile's cpuPool.maxMemory is {allowed}.",
        stage=next(iter(needed)),
        fix=f"Create the job under a profile whose CPU nodes give a pod {most} GiB: cpuPool.maxMemory {enough}Gi"
        + (f", which a node of {node} GiB leaves." if node else "."),
    )


def _because(plan: Plan, model: ModelIdentity | None) -> str:
    """Returns what the need depends on, as a part of the message."""
    if model is None:
        return ""
    sizes, lora = sizes_of(model), plan.method.lora
    piece = (
        " for the model's largest piece (a tensor, or one projection of all experts of a layer) of "
        f"{sizes.largest_piece / 1e9:.2f} billion parameters"
    )
    if lora is not None:
        return f"{piece} and an adapter of rank {lora.rank}"
    share = _share(plan, sizes)
    if host_memory.CHUNK * share <= host_memory.PIECE * sizes.largest_piece:
        return piece
    return f"{piece} and a chip's share of its largest array of {share / 1e9:.2f} billion"
