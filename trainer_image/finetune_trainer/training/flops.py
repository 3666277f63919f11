"""The number of floating-point operations that a model's passes need, from its sizes alone.

Two per weight of a matrix and token, and attention to all earlier tokens of the row that are in the layer's window.
"""

from finetune_contract import MethodSpec
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of


def forward_flops(plan: ModelPlan, *, rows: int, length: int) -> float:
    """Operations of one forward pass over ``rows`` of ``length`` tokens, without LoRA."""
    return rows * (2.0 * plan.matrices * length + attention_flops(plan, length))


def step_flops(plan: ModelPlan, method: MethodSpec, *, rows: int, length: int) -> float:
    """Operations of one training step: a forward pass, and gradients of trained weights and of activations.

    Recomputation by remat is not counted. ``rows`` are the model's: a pair of answers is two of them.
    """
    tokens, lora = rows * length, method.lora
    trained = lora.rank * plan.lora_width(lora) if lora is not None else plan.matrices
    frozen = plan.matrices if lora is not None else 0
    step = tokens * (6.0 * trained + 4.0 * frozen) + 3.0 * rows * attention_flops(plan, length)
    return step + (forward_flops(plan, rows=rows, length=length) if method_of(method).reference else 0.0)


def attention_flops(plan: ModelPlan, length: int) -> float:
    """Operations of attention for a row: queries by keys and weights by values, half of which a causal mask hides, and
    in layers with a sliding window what is outside of it."""
    outside = max(0, length - int(str(plan.overrides.get("sliding_window_size", length))))
    products = plan.layers * length**2 - (plan.layers - plan.whole_context_layers) * outside**2
    return 1.0 * products * plan.heads * (plan.head_dim + plan.value_dim)
