"""Number of steps and least time of a training, as far as they follow from sizes. Pure."""

import math
from dataclasses import dataclass

from finetune_contract import PreferenceMethod
from finetune_contract.tpu import families
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Number of optimizer steps."""

    steps: int
    at_most: bool = False
    """Whether packing may make it smaller."""


def step_count(plan: Plan, rows: int | None) -> StepCount | None:
    """Returns the steps of the training; None if they are not known.

    Args:
        plan: the job.
        rows: number of training rows of all sources together; None if it is not known.

    Rows that preflight drops and texts that become several sequences are not foreseen: of the format Text, the number
    of rows says nothing.
    """
    numbers, data = plan.hyperparameters, plan.data
    if numbers.steps is not None:
        return StepCount(steps=numbers.steps)
    if rows is None or any(source.format == "Text" for source in data.train):
        return None
    if data.split_from_train is not None:
        held = max(1, math.floor(round(data.split_from_train.fraction * rows, 9)))
        most = data.split_from_train.max_examples
        rows -= held if most is None else min(held, most * len(data.train))
    # As the trainer's data/batches.py counts them: the last batch is filled with rows of the next epoch.
    shown = math.ceil(round(max(1, rows) * (numbers.epochs or 1.0), 9))
    return StepCount(steps=max(1, math.ceil(shown / numbers.global_batch_size)), at_most=data.packing)


def least_step_seconds(plan: Plan, model: ModelShape) -> float | None:
    """Returns the seconds that no step can be faster than: its arithmetic at the chips' published rate.

    None if the rate is not published. Recomputation, memory and network are left out, and attention in layers with a
    sliding window.
    """
    seconds = least_step_chip_seconds(plan, model, plan.placement.shape.family)
    return None if seconds is None else seconds / plan.chips


def least_step_chip_seconds(plan: Plan, model: ModelShape, family: str) -> float | None:
    """As :func:`least_step_seconds`, for all chips of a slice of the family together: any number of them."""
    chip = families()[family].chip
    return None if chip is None else _step_flops(plan, model) / chip.bf16_flops


def _step_flops(plan: Plan, model: ModelShape) -> float:
    """Operations of one step: two per weight and token forward; twice that backward for trained weights, once for
    frozen ones, through which the gradients of activations pass."""
    pair = 2 if isinstance(plan.method, PreferenceMethod) else 1
    rows, length, lora = (
        pair * plan.hyperparameters.global_batch_size,
        plan.data.max_seq_length,
        plan.method.lora,
    )
    attention = 1.0 * model.whole_context_layers * model.heads * model.head_dims * length**2
    forward = rows * (2.0 * model.matrices * length + attention)
    if lora is None:
        step = 3.0 * forward
    else:
        adapter = lora.rank * model.lora_width(lora)
        step = rows * length * (6.0 * adapter + 4.0 * model.matrices) + 3.0 * rows * attention
    return step + (forward if plan.method.type == "DPO" else 0.0)
