"""Number of steps and least time of a training, as far as they follow from sizes. Pure."""

import math
from collections.abc import Sequence
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
    """Whether packing, or how many rows a source has beyond its ``maxExamples``, may make it smaller."""
    rows: int | None = None
    """The rows that it follows from, those that are held back included. None if the job names its steps."""


def step_count(plan: Plan, rows: int | None) -> StepCount | None:
    """Returns the steps of the training; None if they are not known.

    Args:
        plan: the job.
        rows: number of training rows of all sources together; None if it is not known. Of a source with ``maxExamples``
            these may be all rows or those that are read.

    Rows that preflight drops and texts that become several sequences are not foreseen: of the format Text, the number
    of rows says nothing.
    """
    numbers, data = plan.hyperparameters, plan.data
    if numbers.steps is not None:
        return StepCount(steps=numbers.steps)
    if rows is None or any(source.format == "Text" for source in data.train):
        return None
    rows, exact = _read_rows(rows, [source.max_examples for source in data.train])
    given = rows
    if data.split_from_train is not None:
        held = max(1, math.floor(round(data.split_from_train.fraction * rows, 9)))
        most = data.split_from_train.max_examples
        rows -= held if most is None else min(held, most * len(data.train))
    # As the trainer's data/batches.py counts them: the last batch is filled with rows of the next epoch.
    shown = math.ceil(round(max(1, rows) * (numbers.epochs or 1.0), 9))
    return StepCount(
        steps=max(1, math.ceil(shown / numbers.global_batch_size)),
        at_most=data.packing or not exact,
        rows=given,
    )


def _read_rows(rows: int, limits: Sequence[int | None]) -> tuple[int, bool]:
    """Returns how many of ``rows`` are read at most, by each source's ``maxExamples``, and whether that is exact."""
    known = [limit for limit in limits if limit is not None]
    if len(known) == len(limits):
        rows = min(rows, sum(known))
    # Of several sources the rows beyond the limit of one are not known.
    return rows, not known or len(limits) == 1


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
    attention = (
        1.0 * model.whole_context_layers * model.heads * (model.head_dim + model.value_dim) * length**2
    )
    # Of a pair the compiler leaves out the logits of prompts, which no loss needs.
    scored = length - plan.method.max_prompt_length if isinstance(plan.method, PreferenceMethod) else length
    products = float(model.matrices - model.embedding) * length + float(model.embedding) * scored
    forward = rows * (2.0 * products + attention)
    if lora is None:
        step = 3.0 * forward
    else:
        adapter = lora.rank * model.lora_width(lora)
        step = rows * (6.0 * adapter * length + 4.0 * products + 3.0 * attention)
    return step + (forward if plan.method.type == "DPO" else 0.0)
