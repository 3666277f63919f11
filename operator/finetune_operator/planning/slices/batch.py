"""Devices, mesh and global batch: numbers that must fit each other, checked before anything runs."""

import math

from finetune_contract import MeshSpec
from finetune_operator.api import Reason
from finetune_operator.api.placement import Controller, Parallelism
from finetune_operator.catalog import TpuShape
from finetune_operator.planning.defaulted import DefaultedHyperparameters
from finetune_operator.planning.defaults import GLOBAL_BATCH
from finetune_operator.planning.errors import Refused

#: Numbers of devices that may share a row if there are more devices than rows; with more, they mostly wait.
_SHARING = (1, 2, 4, 8)


def resolve_mesh(
    shape: TpuShape,
    slices: int,
    parallelism: Parallelism,
    controller: Controller = Controller.MCJAX,
) -> MeshSpec:
    """Returns the mesh over all devices. Raises Refused.

    Slices split the data axis, since only its traffic tolerates the network between slices. Axes that ``parallelism``
    omits get their minimum, except fsdp, which gets the remaining devices.
    """
    devices = _devices(shape, slices, parallelism)
    data, tensor = parallelism.data or slices, parallelism.tensor or 1
    fsdp = parallelism.fsdp or devices // (data * tensor)
    if data * fsdp * tensor != devices:
        many = f"{slices} slices of " if slices > 1 else ""
        raise Refused(
            Reason.PARALLELISM_MISMATCH,
            f"spec.resources.parallelism: data {data} x fsdp {fsdp} x tensor {tensor} is {data * fsdp * tensor}, "
            f"but {many}{shape.accelerator} {shape.topology} has {devices} devices. "
            f"Leave fsdp out, or choose numbers whose product is {devices}.",
        )
    if data % slices:
        raise Refused(
            Reason.PARALLELISM_MISMATCH,
            f"spec.resources.parallelism.data: {data} is no multiple of the {slices} slices, which split the data "
            f"axis. Leave it out, or set it to {slices} or a multiple.",
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


def sharing_rows(mesh: MeshSpec, hyperparameters: DefaultedHyperparameters) -> MeshSpec:
    """Returns ``mesh`` with the least tensor parallelism that lets it split a named global batch.

    Returns ``mesh`` unchanged if no tensor parallelism is enough.
    """
    batch, parts = hyperparameters.global_batch_size or 0, hyperparameters.gradient_accumulation_steps
    for tensor in _SHARING:
        if mesh.fsdp % tensor == 0 and batch % (mesh.data * (mesh.fsdp // tensor) * parts) == 0:
            return mesh.model_copy(update={"fsdp": mesh.fsdp // tensor, "tensor": mesh.tensor * tensor})
    return mesh


def _devices(shape: TpuShape, slices: int, parallelism: Parallelism) -> int:
    """Returns the number of JAX devices over all slices. If it is not known for the chip, the job must set all axes."""
    if shape.devices_per_chip is not None:
        return shape.chips * slices * shape.devices_per_chip
    devices = (parallelism.data or 0) * (parallelism.fsdp or 0) * (parallelism.tensor or 0)
    if not devices or devices % (shape.chips * slices):
        raise Refused(
            Reason.PARALLELISM_MISMATCH,
            f"spec.resources.parallelism: how many JAX devices a chip of {shape.accelerator} has is not known. "
            "Set data, fsdp and tensor, so that their product is the number of devices, "
            f"a multiple of {shape.chips * slices}.",
        )
    return devices


def resolve_global_batch(hyperparameters: DefaultedHyperparameters, mesh: MeshSpec) -> int:
    """Returns the rows per optimizer step. Raises Refused if they cannot be split.

    Default: 8, or the smallest number that can be split if that is larger. A batch is computed in as many forward
    passes as gradients are accumulated, each split over data and fsdp.
    """
    devices, parts = mesh.devices, hyperparameters.gradient_accumulation_steps
    ways = mesh.data * mesh.fsdp
    if hyperparameters.global_batch_size is not None:
        batch, path = hyperparameters.global_batch_size, "spec.hyperparameters.globalBatchSize"
    elif hyperparameters.per_device_batch_size is not None:
        per_device = hyperparameters.per_device_batch_size
        batch, path = per_device * devices * parts, "spec.hyperparameters.perDeviceBatchSize"
    else:
        least = max(GLOBAL_BATCH, devices)
        return least if parts == 1 else math.ceil(least / (ways * parts)) * ways * parts
    if batch % (ways * parts):
        below, above = batch // (ways * parts) * ways * parts, (batch // (ways * parts) + 1) * ways * parts
        near = f"{below} or {above}" if below else str(above)
        accumulated = f" in {parts} forward passes" if parts > 1 else ""
        raise Refused(
            Reason.BATCH_MISMATCH,
            f"{path}: a global batch of {batch} rows cannot be split over {ways} devices "
            f"(data {mesh.data} x fsdp {mesh.fsdp}){accumulated}. Use {near}.",
        )
    return batch
