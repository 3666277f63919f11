"""Remarks on hyperparameters that are worth checking before training."""

from collections.abc import Iterator

from finetune_contract import HyperparametersSpec, MethodSpec, Remark
from finetune_trainer.data.remarks import problem
from finetune_trainer.methods import method_of

#: Learning rate below which most updates are smaller than half the last bit of a bfloat16 weight.
_LEAST_ROUNDED = 1e-4
#: Number of parameters below which a model has no usual learning rate.
_SMALL_MODEL = 100_000_000


def of_learning_rate(method: MethodSpec, chosen: HyperparametersSpec, parameters: int) -> Iterator[Remark]:
    """Yields a remark if the learning rate is outside the range of published recipes for the method.

    ``parameters`` is the model's number of parameters.
    """
    if chosen.optimizer != "AdamW" or parameters < _SMALL_MODEL:
        return
    usual = method_of(method)
    lowest, highest = usual.usual_rates if method.lora is None else usual.usual_lora_rates
    if lowest <= chosen.learning_rate <= highest:
        return
    kind = f"{method.type} {'with LoRA' if method.lora else 'of all weights'}"
    effect = "may forget or diverge" if chosen.learning_rate > highest else "may learn very little"
    yield problem(
        f"The learning rate, {chosen.learning_rate:g}, is outside of the usual range for {kind} ({lowest:g} to "
        f"{highest:g}): the model {effect}."
    )


def of_warmup(chosen: HyperparametersSpec, steps: int) -> Iterator[Remark]:
    """Yields a remark if the warm-up takes all ``steps`` optimizer steps."""
    if not chosen.warmup_steps or chosen.warmup_steps < steps:
        return
    effect = "is 0 in the only step, and training fails" if steps == 1 else "never reaches its full value"
    yield problem(
        f"The warm-up, hyperparameters.warmupSteps {chosen.warmup_steps:,}, spans all {steps:,} steps, so the learning "
        f"rate {effect}: lower it, or set warmupRatio."
    )


def of_weight_precision(method: MethodSpec, chosen: HyperparametersSpec) -> Iterator[Remark]:
    """Yields a remark if bfloat16 weights are too coarse for full fine-tuning at the learning rate."""
    if method.lora is None and chosen.weight_precision == "BF16" and chosen.learning_rate < _LEAST_ROUNDED:
        yield problem(
            f"weightPrecision BF16 keeps 8 bits of a weight, so most updates at a learning rate of "
            f"{chosen.learning_rate:g} are rounded away: use FP32 or LoRA."
        )
