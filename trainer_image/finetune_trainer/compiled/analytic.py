"""A lower bound of the train step's memory, from the model's size alone: in a second instead of minutes."""

from finetune_contract import MeshSpec, SliceShape, StageRequest
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of

_BYTES = {"BF16": 2, "FP32": 4}
#: Usable share of a chip's memory; the compiler keeps the rest (31.24 of 32 GiB, 15.75 of 16, 95.73 of 96).
_USABLE = 0.976


def state_bytes(plan: ModelPlan, request: StageRequest, mesh: MeshSpec) -> int:
    """Bytes per chip of parameters, those of a reference model, and the optimizer's state, without activations."""
    h = request.hyperparameters
    weights = plan.parameters * _BYTES[h.weight_precision]
    if request.method.lora is not None:
        return _share(weights, mesh)
    moments = 2 if h.optimizer == "AdamW" else 0
    references = 1 if method_of(request.method).reference else 0
    return _share(weights * (1 + moments + references), mesh)


def limit_bytes(shape: SliceShape) -> int | None:
    """Bytes of a chip's memory that a program may use; None if the chip's memory is unknown."""
    return int(shape.hbm_gib * 2**30 * _USABLE) if shape.hbm_gib else None


def _share(size: int, mesh: MeshSpec) -> int:
    """Data parallelism replicates parameters; fsdp and tensor parallelism shard them."""
    devices_per_chip = max(1, mesh.devices // (mesh.hosts * mesh.chips_per_host * mesh.slices))
    return size * devices_per_chip // (mesh.fsdp * mesh.tensor)
