"""``spec.method`` and ``spec.hyperparameters`` in the contract's terms."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import DpoSpec, HyperparametersSpec, LoraSpec, MethodSpec, OrpoSpec
from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused

type Object = Mapping[str, Any]

_DEFAULT_RANK = 16
#: By method, for full fine-tuning and LoRA. DPO moves away from its reference within few steps: MaxText's own default.
_LEARNING_RATE = {"SFT": (2e-5, 2e-4), "DPO": (5e-7, 5e-6), "ORPO": (8e-6, 8e-5)}
_WARMUP_RATIO = 0.03


def method(spec: Object) -> MethodSpec:
    """``spec.method``."""
    section = spec["method"]
    options = section.get(section["type"].lower(), {})
    return MethodSpec(
        type=section["type"],
        train_on_prompt=options.get("trainOnPrompt", False),
        dpo=DpoSpec(
            beta=float(options.get("beta", 0.1)),
            label_smoothing=_smoothing(options),
            max_prompt_length=_prompt_length(spec, options),
        )
        if section["type"] == "DPO"
        else None,
        orpo=OrpoSpec(
            weight=float(options.get("lambda", 0.1)), max_prompt_length=_prompt_length(spec, options)
        )
        if section["type"] == "ORPO"
        else None,
        lora=_lora(section["lora"]) if "lora" in section else None,
    )


def hyperparameters(spec: Object, global_batch: int) -> HyperparametersSpec:
    """``spec.hyperparameters``; several defaults depend on the method."""
    section = spec["hyperparameters"]
    lora = "lora" in spec["method"]
    if section["optimizer"] == "SGD" and section["weightDecay"]:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.hyperparameters.weightDecay is {section['weightDecay']}, but SGD has none: "
            "use AdamW, or set it to 0.",
        )
    steps = section.get("steps")
    warmup_steps = section.get("warmupSteps")
    return HyperparametersSpec(
        steps=steps,
        epochs=None if steps is not None else float(section.get("epochs", 1)),
        global_batch_size=global_batch,
        gradient_accumulation_steps=section.get("gradientAccumulationSteps", 1),
        learning_rate=float(section.get("learningRate", _LEARNING_RATE[spec["method"]["type"]][lora])),
        schedule=section["schedule"],
        warmup_steps=warmup_steps,
        warmup_ratio=None if warmup_steps is not None else float(section.get("warmupRatio", _WARMUP_RATIO)),
        weight_decay=float(section["weightDecay"]),
        max_grad_norm=float(section["maxGradNorm"]),
        optimizer=section["optimizer"],
        seed=section["seed"],
        compute_precision=section["computePrecision"],
        weight_precision=section.get("weightPrecision", "BF16" if lora else "FP32"),
    )


def _lora(section: Object) -> LoraSpec:
    rank = section.get("rank", _DEFAULT_RANK)
    quantization = section.get("quantization", "None")
    return LoraSpec(
        rank=rank,
        alpha=float(section.get("alpha", 2 * rank)),
        target_modules=section.get("targetModules"),
        quantization=None if quantization == "None" else quantization,
    )


def _smoothing(options: Object) -> float:
    smoothing = float(options.get("labelSmoothing", 0))
    if smoothing >= 0.5:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.method.dpo.labelSmoothing is {smoothing:g}: with half of the pairs wrong there is nothing to "
            "learn. Use a share below 0.5.",
        )
    return smoothing


def _prompt_length(spec: Object, options: Object) -> int:
    """Tokens of a prompt; the rest of a sequence is for the answer."""
    length = int(spec["datasets"]["maxSeqLength"])
    wanted = int(options.get("maxPromptLength", length // 2))
    if not 0 < wanted < length:
        kind = spec["method"]["type"].lower()
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.method.{kind}.maxPromptLength is {wanted}, which leaves nothing of spec.datasets.maxSeqLength, "
            f"{length}, for prompt and answer: use {max(1, length // 2)}, or raise maxSeqLength.",
        )
    return wanted
