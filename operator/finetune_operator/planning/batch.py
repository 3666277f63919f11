"""Devices, mesh and global batch: numbers that must fit each other, checked before anything runs."""

from collections.abc import Mapping
from typing import Any, Literal

from finetune_contract import MeshSpec
from finetune_operator.api import Reason
from finetune_operator.catalog import TpuShape
from finetune_operator.planning.errors import Refused

DEFAULT_GLOBAL_BATCH = 8


def resolve_mesh(
    shape: TpuShape,
    slices: int,
    parallelism: Mapping[str, Any],
    controller: Literal["McJAX", "Pathways"] = "McJAX",
) -> MeshSpec:
    """The mesh over all devices. What is left out is 1, but fsdp, which takes what remains. Raises Refused."""
    devices = shape.chips * slices * (shape.devices_per_chip or 1)
    data = int(parallelism.get("data", 1))
    tensor = int(parallelism.get("tensor", 1))
    rest, remainder = divmod(devices, data * tensor)
    fsdp = int(parallelism.get("fsdp", rest))
    if data * fsdp * tensor != devices or (remainder and "fsdp" not in parallelism):
        raise Refused(
            Reason.PARALLELISM_MISMATCH,
            f"spec.resources.parallelism: data {data} x fsdp {fsdp} x tensor {tensor} is {data * fsdp * tensor}, "
            f"but {shape.accelerator} {shape.topology} has {devices} devices. "
            f"Leave fsdp out, or choose numbers whose product is {devices}.",
        )
    return MeshSpec(
        hosts=shape.hosts,
        chips_per_host=shape.chips_per_host,
        slices=slices,
        data=data,
        fsdp=fsdp,
        tensor=tensor,
        controller=controller,
    )


def resolve_global_batch(hyperparameters: Mapping[str, Any], mesh: MeshSpec) -> int:
    """Rows per optimizer step; where nothing is said 8, or one per device where that is more. Raises Refused.

    The batch dimension is split over data and fsdp, so it must be divisible by their product.
    """
    devices = mesh.hosts * mesh.chips_per_host * mesh.slices
    if "globalBatchSize" in hyperparameters:
        batch, path = int(hyperparameters["globalBatchSize"]), "spec.hyperparameters.globalBatchSize"
    elif "perDeviceBatchSize" in hyperparameters:
        per_device = int(hyperparameters["perDeviceBatchSize"])
        batch, path = per_device * devices, "spec.hyperparameters.perDeviceBatchSize"
    else:
        return max(DEFAULT_GLOBAL_BATCH, devices)
    ways = mesh.data * mesh.fsdp
    if batch % ways:
        below, above = batch // ways * ways, (batch // ways + 1) * ways
        near = f"{below} or {above}" if below else str(above)
        raise Refused(
            Reason.BATCH_MISMATCH,
            f"{path}: a global batch of {batch} rows cannot be split over {ways} devices "
            f"(data {mesh.data} x fsdp {mesh.fsdp}). Use {near}.",
        )
    return batch
