"""How to train: ``spec.method`` and ``spec.hyperparameters``."""

from enum import StrEnum
from typing import Annotated, ClassVar, cast, get_args

from pydantic import Field

from finetune_operator.api.common import (
    ApiModel,
    Decimal,
    Flag,
    Fraction,
    NonNegative,
    NonNegativeNumber,
    Positive,
    PositiveNumber,
    Whole,
    distinct,
)
from finetune_operator.api.rules import ValidationRule, at_most_one


class MethodType(StrEnum):
    """What the model learns from."""

    SFT = "SFT"
    DPO = "DPO"
    ORPO = "ORPO"


class Quantization(StrEnum):
    """How the frozen base model is held during LoRA."""

    NONE = "None"
    NF4 = "NF4"
    INT8 = "INT8"


class Precision(StrEnum):
    """A floating-point format."""

    BF16 = "BF16"
    FP32 = "FP32"


class LearningRateSchedule(StrEnum):
    """How the learning rate falls after the warm-up."""

    COSINE = "Cosine"
    LINEAR = "Linear"
    CONSTANT = "Constant"


class Optimizer(StrEnum):
    """The optimizer."""

    ADAMW = "AdamW"
    SGD = "SGD"


class SftOptions(ApiModel):
    """Options of SFT."""

    train_on_prompt: Flag | None = None
    """Let the prompt's tokens count towards the loss too. Default: false."""


class PreferenceOptions(ApiModel):
    """Options of every method that compares preference pairs."""

    max_prompt_length: Positive | None = None
    """Longest prompt in tokens; a longer one loses its beginning. The rest of a sequence is for the answer.
    Default: half of datasets.maxSeqLength."""


class DpoOptions(PreferenceOptions):
    """Options of DPO."""

    beta: PositiveNumber | None = None
    """How far the model may move from the reference. Default: 0.1."""
    label_smoothing: Fraction | None = None
    """Share of preference pairs that are taken to be wrong, below a half. Default: 0."""


class OrpoOptions(PreferenceOptions):
    """Options of ORPO."""

    weight: Annotated[PositiveNumber | None, Field(alias="lambda")] = None
    """Weight of the odds-ratio term. Default: 0.1."""


ModuleName = Annotated[str, Field(pattern=r"^[a-z_]+$", min_length=1, max_length=63)]


class Lora(ApiModel):
    """Train a low-rank adapter; the base model stays frozen."""

    rank: Annotated[Positive, Field(le=1024)] | None = None
    """Rank of the adapter. Default: 16."""
    alpha: PositiveNumber | None = None
    """The adapter is scaled by alpha / rank. Default: twice the rank."""
    target_modules: (
        Annotated[tuple[ModuleName, ...], Field(min_length=1, max_length=16), *distinct()] | None
    ) = None
    """Modules that get an adapter, by their Hugging Face names. Default: the model family's attention and MLP
    projections."""
    quantization: Quantization | None = None
    """How the linear layers of the frozen base are held while training: None, NF4 or INT8. The result is the adapter on
    the base as it was. Default: None."""


def member(method: MethodType) -> str:
    """The member of :class:`Method` that holds the options of ``method``."""
    return method.lower()


def _belongs(method: MethodType) -> ValidationRule:
    name = member(method)
    return ValidationRule(
        cel=f"!has(self.{name}) || self.type == '{method}'",
        message=f"{name} belongs to type {method}: remove it, or set type: {method}",
        holds=lambda self: getattr(self, name) is None or self.type is method,
    )


class Method(ApiModel):
    """What the model learns from; the member that bears the type's name holds its options."""

    rules: ClassVar = tuple(_belongs(method) for method in MethodType)

    type: MethodType
    """SFT: imitate answers. DPO, ORPO: learn from preference pairs."""
    sft: SftOptions | None = None
    """Options of SFT."""
    dpo: DpoOptions | None = None
    """Options of DPO."""
    orpo: OrpoOptions | None = None
    """Options of ORPO."""
    lora: Lora | None = None
    """Train an adapter. Absent: full fine-tuning."""


def options_of(method: MethodType) -> type[ApiModel]:
    """The model of the method's options."""
    options, _ = get_args(Method.model_fields[member(method)].annotation)
    return cast("type[ApiModel]", options)


class Hyperparameters(ApiModel):
    """The numbers of the training."""

    rules: ClassVar = (
        at_most_one("epochs", "steps"),
        at_most_one("globalBatchSize", "perDeviceBatchSize"),
        at_most_one("warmupRatio", "warmupSteps"),
    )

    epochs: Positive | None = None
    """Passes over the training rows; or steps. Default: 1."""
    steps: Positive | None = None
    """Optimizer steps; or epochs."""
    global_batch_size: Positive | None = None
    """Sequences per optimizer step over all devices; or perDeviceBatchSize. Default: 8, or the number of devices
    where that is higher."""
    per_device_batch_size: Positive | None = None
    """Sequences per device and forward pass; or globalBatchSize."""
    gradient_accumulation_steps: Positive | None = None
    """Forward passes per optimizer step. Default: 1."""
    learning_rate: PositiveNumber | None = None
    """Highest learning rate. Default: 2e-5 for full fine-tuning, 2e-4 for LoRA; with DPO 5e-7 and 5e-6,
    with ORPO 8e-6 and 8e-5."""
    schedule: LearningRateSchedule | None = None
    """How the learning rate falls after the warm-up. Default: Cosine."""
    warmup_ratio: Fraction | None = None
    """Share of the steps in which the learning rate rises; or warmupSteps. Default: 0.03."""
    warmup_steps: NonNegative | None = None
    """Steps in which the learning rate rises; or warmupRatio."""
    weight_decay: NonNegativeNumber | None = None
    """Weight decay of AdamW. Default: 0."""
    max_grad_norm: PositiveNumber | None = None
    """Gradients are scaled down to this norm. Default: 1."""
    optimizer: Optimizer | None = None
    """AdamW, or SGD without momentum and weight decay. Default: AdamW."""
    seed: NonNegative | None = None
    """Seed of the shuffle and of new weights. Default: 42."""
    compute_precision: Precision | None = None
    """Precision of activations. Default: BF16."""
    weight_precision: Precision | None = None
    """Precision of the weights in memory. Default: FP32 for full fine-tuning, BF16 for LoRA's frozen base."""


class ResolvedHyperparameters(ApiModel):
    """Numbers instead of Auto."""

    steps: Whole | None = None
    """Optimizer steps of the whole training."""
    global_batch_size: NonNegative | None = None
    """Sequences per optimizer step."""
    per_device_batch_size: Decimal | None = None
    """Sequences per device and forward pass; below 1 where devices share a sequence."""
    max_seq_length: Whole | None = None
    """Longest sequence in tokens, after the model's own limit."""
    gradient_accumulation_steps: NonNegative | None = None
    """Forward passes per optimizer step."""
    learning_rate: Decimal | None = None
    """Peak learning rate."""
    schedule: LearningRateSchedule | None = None
    """How the learning rate falls."""
    warmup_steps: Whole | None = None
    """Steps of warm-up, where the job counts them."""
    warmup_ratio: Decimal | None = None
    """Warm-up as a share of all steps, where the job gives no number of steps."""
    optimizer: Optimizer | None = None
    """The optimizer."""
    weight_decay: Decimal | None = None
    """Weight decay."""
    max_grad_norm: Decimal | None = None
    """Gradients are clipped to this norm."""
    seed: Whole | None = None
    """Seed of shuffling and of new weights."""
    weight_precision: Precision | None = None
    """Precision in which weights are held."""
    compute_precision: Precision | None = None
    """Precision in which a step is computed."""
