"""Memory of a training on each JAX device, as far as it follows from the model's sizes. Pure.

The compiler decides how much a step needs: what is added up here is a lower bound of it, and says what the memory is
used for.
"""

from dataclasses import dataclass

from finetune_contract import MeshSpec, PreferenceMethod, SliceShape
from finetune_contract.tpu import families
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.plan import Plan

_BYTES = {"BF16": 2, "FP32": 4}
_FLOAT32 = 4
#: Pieces in which preflight may let the logits be computed (``num_vocab_tiling``).
LOGIT_PIECES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes on one device."""

    parameters: int
    """Weights, and an adapter's. A quantized base counts as unquantized: both are held while it is loaded."""
    reference: int
    """The copy of the weights that DPO compares with; 0 with LoRA, whose base model is the reference."""
    optimizer: int
    gradients: int
    """All gradients at once, which are clipped by their global norm."""
    layer_inputs: int
    """The activations that remain with the remat policy ``full``: what each layer reads."""
    logits: int
    """The logits of one forward pass, in one piece."""
    usable: int | None
    """Memory that a program may use. None if it is not published."""

    @property
    def state(self) -> int:
        """What no setting of the compiler avoids: weights, their reference and the optimizer's state."""
        return self.parameters + self.reference + self.optimizer

    @property
    def left(self) -> int | None:
        """The most that is left for activations, logits and everything else. None if the memory is unknown."""
        return None if self.usable is None else self.usable - self.state - self.gradients

    @property
    def too_small(self) -> bool:
        """Whether the memory is known to be too small for the state alone."""
        return self.usable is not None and self.state > self.usable


def training_memory(plan: Plan, model: ModelShape, mesh: MeshSpec, family: str) -> TrainingMemory:
    """Returns the memory of the plan's training on a mesh of chips of that family.

    Data parallelism replicates weights; the axes fsdp and tensor shard them.
    """
    numbers, lora, shards = plan.hyperparameters, plan.method.lora, mesh.fsdp * mesh.tensor
    weights = model.parameters * _BYTES[numbers.weight_precision] // shards
    trained = weights if lora is None else _FLOAT32 * lora.rank * model.lora_width(lora) // shards
    width = plan.data.max_seq_length
    rows, scored = forward_rows(plan, mesh), width
    if isinstance(plan.method, PreferenceMethod):
        scored = width - plan.method.max_prompt_length
    activation = _BYTES[numbers.compute_precision]
    chip = families()[family].chip
    return TrainingMemory(
        parameters=weights if lora is None else weights + trained,
        reference=weights if lora is None and plan.method.type == "DPO" else 0,
        optimizer=2 * trained if numbers.optimizer == "AdamW" else 0,
        gradients=trained,
        layer_inputs=int(rows * width * model.layers * model.hidden_size * activation),
        logits=int(rows * scored * model.vocab_size * _FLOAT32),
        usable=None if chip is None else int(chip.usable_gib * 2**30),
    )


def forward_rows(plan: Plan, mesh: MeshSpec) -> float:
    """Returns a device's share of the model's rows in one forward pass; a pair of answers is two of them."""
    pair = 2 if isinstance(plan.method, PreferenceMethod) else 1
    return pair * plan.hyperparameters.microbatch_size / mesh.devices


def candidates_memory(plan: Plan, model: ModelShape) -> dict[tuple[str, str], TrainingMemory]:
    """Returns the memory on the planned slice and on those that preflight may choose, by family and topology."""
    shape = plan.placement.shape
    found = {(shape.family, shape.topology): training_memory(plan, model, plan.mesh, shape.family)}
    for each in plan.memory.candidates if plan.memory else ():
        place: SliceShape = each.slice
        found[place.family, place.topology] = training_memory(plan, model, each.mesh, place.family)
    return found
