"""Translates ``spec.method`` and ``spec.hyperparameters`` into the contract's records.

Fields have the same names in the models of the API and of the contract, so a new field needs no code here unless its
value depends on other fields.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from finetune_contract import METHODS, HyperparametersSpec, LoraSpec, MethodSpec, PreferenceMethod
from finetune_operator.api import MethodType, Reason, options_of
from finetune_operator.api.method import Hyperparameters, member
from finetune_operator.planning import defaults
from finetune_operator.planning.defaults import filled
from finetune_operator.planning.errors import Refused

type Object = Mapping[str, Any]


def method(spec: Object) -> MethodSpec:
    """Resolves ``spec.method``. Raises Refused."""
    section = spec["method"]
    kind = MethodType(section["type"])
    options = filled(section.get(member(kind), {}), defaults.METHODS[kind].options)
    values = _by_attribute(options_of(kind), options)
    if issubclass(METHODS[kind], PreferenceMethod):
        values["max_prompt_length"] = _prompt_length(spec, kind, values)
    if refuse := _REFUSALS.get(kind):
        refuse(options)
    lora = _lora(section["lora"]) if "lora" in section else None
    return METHODS[kind].model_validate({**values, "lora": lora})


def learning_rate(spec: Object) -> float:
    """Returns the method's default learning rate, for full fine-tuning or LoRA."""
    by_method = defaults.METHODS[spec["method"]["type"]]
    return by_method.lora_learning_rate if "lora" in spec["method"] else by_method.learning_rate


def hyperparameters(spec: Object, global_batch: int) -> HyperparametersSpec:
    """Resolves ``spec.hyperparameters``; several defaults depend on the method. Raises Refused."""
    section = spec["hyperparameters"]
    if section["optimizer"] == "SGD" and float(section["weightDecay"]):
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.hyperparameters.weightDecay is {section['weightDecay']}, but SGD has none: "
            "use AdamW, or set it to 0.",
        )
    lora = "lora" in spec["method"]
    values = _by_attribute(
        Hyperparameters,
        {
            **defaults.HYPERPARAMETERS,
            "learningRate": learning_rate(spec),
            "weightPrecision": defaults.LORA_WEIGHT_PRECISION if lora else defaults.WEIGHT_PRECISION,
            **section,
        },
    )
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


def _lora(section: Object) -> LoraSpec:
    lora = filled(section, defaults.LORA)
    return LoraSpec(
        rank=lora["rank"],
        alpha=float(lora.get("alpha", 2 * lora["rank"])),
        target_modules=lora.get("targetModules"),
        quantization=None if lora["quantization"] == "None" else lora["quantization"],
    )


def _refuse_smoothing(options: Object) -> None:
    smoothing = float(options["labelSmoothing"])
    if smoothing >= 0.5:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.method.dpo.labelSmoothing is {smoothing:g}: with half of the pairs wrong there is nothing to "
            "learn. Use a share below 0.5.",
        )


#: Checks of a method's options that the schema cannot express. They raise Refused.
_REFUSALS: Mapping[MethodType, Callable[[Object], None]] = {MethodType.DPO: _refuse_smoothing}


def _prompt_length(spec: Object, kind: MethodType, values: Object) -> int:
    """Returns the number of tokens of a prompt; the rest of a sequence is for the answer. Raises Refused."""
    length = int(spec["datasets"]["maxSeqLength"])
    wanted = int(values.get("max_prompt_length", length // 2))
    if not 0 < wanted < length:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.method.{member(kind)}.maxPromptLength is {wanted}, which leaves nothing of "
            f"spec.datasets.maxSeqLength, {length}, for prompt and answer: use {max(1, length // 2)}, or raise "
            "maxSeqLength.",
        )
    return wanted
