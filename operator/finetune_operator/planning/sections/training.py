"""Translates the sections of spec about training into the contract's records.

Fields of ``spec.method`` and ``spec.hyperparameters`` have the same names in the models of the API and of the contract,
so a new field needs no code here unless its value depends on other fields.
"""

from typing import Any

from pydantic import BaseModel

from finetune_contract import (
    METHODS,
    CheckpointPolicy,
    HyperparametersSpec,
    LoraSpec,
    MethodSpec,
    PreferenceMethod,
)
from finetune_operator.api import MethodType, exact, options_of
from finetune_operator.api.export import ExportCheckpoint
from finetune_operator.api.method import Hyperparameters, Optimizer, Quantization, member
from finetune_operator.api.policies import MetricMode
from finetune_operator.objects import Object
from finetune_operator.planning import defaults
from finetune_operator.planning.defaulted import DefaultedJobSpec, DefaultedLora
from finetune_operator.planning.errors import invalid_spec

#: Metrics of a method that can rank checkpoints.
_RANKING = ("loss", "perplexity")


def resolve_method(spec: DefaultedJobSpec) -> MethodSpec:
    """Resolves ``spec.method``. Raises Refused."""
    kind, lora = spec.method.type, spec.method.lora
    options: BaseModel | None = getattr(spec.method, member(kind))
    values = _by_attribute(options_of(kind), defaults.METHODS[kind].options) | _set_values(options)
    if issubclass(METHODS[kind], PreferenceMethod):
        values["max_prompt_length"] = _prompt_length(spec, kind, values)
    if kind is MethodType.DPO:
        _refuse_smoothing(values["label_smoothing"])
    return METHODS[kind].model_validate({**values, "lora": _lora(lora) if lora else None})


def learning_rate(spec: DefaultedJobSpec) -> float:
    """Returns the method's default learning rate, for full fine-tuning or LoRA."""
    by_method = defaults.METHODS[spec.method.type]
    return by_method.lora_learning_rate if spec.method.lora else by_method.learning_rate


def resolve_hyperparameters(spec: DefaultedJobSpec, global_batch: int) -> HyperparametersSpec:
    """Resolves ``spec.hyperparameters``; several defaults depend on the method. Raises Refused."""
    section = spec.hyperparameters
    if section.optimizer is Optimizer.SGD and section.weight_decay:
        raise invalid_spec(
            f"spec.hyperparameters.weightDecay is {exact(section.weight_decay)}, but SGD has none: "
            "use AdamW, or set it to 0.",
        )
    values = {
        **_by_attribute(Hyperparameters, defaults.HYPERPARAMETERS),
        "learning_rate": learning_rate(spec),
        "weight_precision": defaults.LORA_WEIGHT_PRECISION if spec.method.lora else defaults.WEIGHT_PRECISION,
        **_set_values(section),
    }
    for chosen, other in (("steps", "epochs"), ("warmup_steps", "warmup_ratio")):
        if chosen in values:
            del values[other]
    return HyperparametersSpec.model_validate({**values, "global_batch_size": global_batch})


def _by_attribute(model: type[BaseModel], section: Object) -> dict[str, Any]:
    """Returns the values in ``section`` by the names of the model's attributes."""
    return {
        name: section[field.alias]
        for name, field in model.model_fields.items()
        if field.alias is not None and field.alias in section
    }


def _set_values(section: BaseModel | None) -> dict[str, Any]:
    """Returns the set fields of ``section`` by attribute."""
    return {name: value for name, value in section or () if value is not None}


def _lora(lora: DefaultedLora) -> LoraSpec:
    return LoraSpec(
        rank=lora.rank,
        alpha=float(2 * lora.rank) if lora.alpha is None else lora.alpha,
        target_modules=lora.target_modules,
        quantization=None if lora.quantization is Quantization.NONE else lora.quantization,
    )


def _refuse_smoothing(smoothing: float) -> None:
    """Raises Refused for label smoothing that the schema cannot exclude."""
    if smoothing >= 0.5:
        raise invalid_spec(
            f"spec.method.dpo.labelSmoothing is {smoothing:g}: with half of the pairs wrong there is nothing to "
            "learn. Use a share below 0.5.",
        )


def _prompt_length(spec: DefaultedJobSpec, kind: MethodType, values: Object) -> int:
    """Returns the number of tokens of a prompt; the rest of a sequence is for the answer. Raises Refused."""
    length = spec.datasets.max_seq_length
    wanted: int = values.get("max_prompt_length", length // 2)
    if not 0 < wanted < length:
        raise invalid_spec(
            f"spec.method.{member(kind)}.maxPromptLength is {wanted}, which leaves nothing of "
            f"spec.datasets.maxSeqLength, {length}, for prompt and answer: use {max(1, length // 2)}, or raise "
            "maxSeqLength.",
        )
    return wanted


def resolve_checkpointing(spec: DefaultedJobSpec) -> CheckpointPolicy:
    """Resolves ``spec.checkpointing``. The best checkpoints are kept if training measures which are best."""
    section, evaluated = spec.checkpointing, spec.evaluation.every_steps
    every, best, by = section.every_steps, section.keep.best, section.best_by
    wanted = bool(best) or by is not None or spec.export.checkpoint is ExportCheckpoint.BEST
    metric = by.metric if by else "loss"
    ranking = [each for each in METHODS[spec.method.type].metrics if each in _RANKING]
    if metric not in ranking:
        raise invalid_spec(
            f"spec.checkpointing.bestBy.metric is {metric}, but training measures "
            f"{' and '.join(ranking)} on spec.datasets.validation. Use one of them.",
        )
    known = evaluated is not None and every % evaluated == 0
    if wanted and not known:
        raise invalid_spec(
            f"the best checkpoint is requested, but not every checkpoint (spec.checkpointing.everySteps: {every}) is "
            f"measured (spec.evaluation.everySteps: {evaluated or 'not set'}). "
            "Set evaluation.everySteps to checkpointing.everySteps or a part of it, and name rows in "
            "spec.datasets.validation.",
        )
    return CheckpointPolicy(
        every_steps=every,
        every_seconds=section.every_seconds,
        keep_last=section.keep.last,
        keep_best=(1 if best is None else best) if known else 0,
        best_metric=metric,
        best_mode=(by and by.mode) or MetricMode.MIN,
    )
