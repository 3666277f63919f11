"""Memory of a train step on each JAX device, estimated from the model's sizes. Pure.

The step holds its state throughout. Beside it, the largest of two moments decides: the loss, when the logits exist, and
the backward pass through the layers, when the gradients exist. What is held at each is counted by sizes; the few
``_COEFFICIENTS`` that sizes do not give are fitted on steps that the TPU compiler has compiled
(``tests/bench/memory_cases.json``). Preflight's compilation decides.
"""

import math
from dataclasses import dataclass
from typing import Self

from finetune_contract import LoraSpec, MeshSpec, PreferenceMethod
from finetune_operator.planning.estimate.activations import block_values, kept_values
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.plan import Plan

_BYTES = {"BF16": 2, "FP32": 4}
_FLOAT32 = 4
#: Bytes of a weight of a quantized base, with its scales.
_QUANTIZED = {"NF4": 0.5625, "INT8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """What determines a step's memory on a device, beside the settings that preflight may choose."""

    model: ModelShape
    mesh: MeshSpec
    rows: float
    """A device's share of the model's rows in one forward pass; a pair of answers is two of them."""
    width: int
    """Tokens of a row."""
    scored: int
    """Tokens of a row whose logits are computed."""
    lora: LoraSpec | None
    preference: bool
    reference: bool
    """Whether a copy of the weights is held, as DPO's reference."""
    adam: bool
    weight_bytes: int
    value_bytes: int

    @classmethod
    def of(cls, plan: Plan, model: ModelShape, mesh: MeshSpec) -> Self:
        """Returns the step of a plan's training on that mesh."""
        numbers, width = plan.hyperparameters, plan.data.max_seq_length
        preference = isinstance(plan.method, PreferenceMethod)
        return cls(
            model=model,
            mesh=mesh,
            rows=forward_rows(plan, mesh),
            width=width,
            scored=width - plan.method.max_prompt_length
            if isinstance(plan.method, PreferenceMethod)
            else width,
            lora=plan.method.lora,
            preference=preference,
            reference=plan.method.lora is None and plan.method.type == "DPO",
            adam=numbers.optimizer == "AdamW",
            weight_bytes=_BYTES[numbers.weight_precision],
            value_bytes=_BYTES[numbers.compute_precision],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes on one device at the step's peak."""

    parameters: int
    """Weights, and an adapter's."""
    reference: int
    optimizer: int
    gradients: int
    activations: int
    """What is kept of the forward pass, what is computed again of it, and the weights that are gathered for that."""
    logits: int

    @property
    def peak(self) -> int:
        return (
            self.parameters
            + self.reference
            + self.optimizer
            + self.gradients
            + self.activations
            + self.logits
        )


def forward_rows(plan: Plan, mesh: MeshSpec) -> float:
    """Returns a device's share of the model's rows in one forward pass; a pair of answers is two of them."""
    pair = 2 if isinstance(plan.method, PreferenceMethod) else 1
    return pair * plan.hyperparameters.microbatch_size / mesh.devices
