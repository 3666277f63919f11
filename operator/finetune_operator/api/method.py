"""Training method and hyperparameters: ``spec.method`` and ``spec.hyperparameters``."""

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
    """Training objective."""

    SFT = "SFT"
    """Supervised fine-tuning on answers."""
    DPO = "DPO"
    """Learns from preference pairs against a reference model."""
    ORPO = "ORPO"
    """Learns from preference pairs by their odds ratio, without a reference model."""


class Quantization(StrEnum):
    """Storage of the frozen base model's linear layers during LoRA."""

    NONE = "None"
    """The weight precision, unquantized."""
    NF4 = "NF4"
    """4-bit NormalFloat with a scale per block of inputs."""
    INT8 = "INT8"
    """8-bit integers with a scale per output."""


class Precision(StrEnum):
    """Floating-point format."""

    BF16 = "BF16"
    """bfloat16, 2 bytes per value."""
    FP32 = "FP32"
    """float32, 4 bytes per value."""


class LearningRateSchedule(StrEnum):
    """Course of the learning rate after the warm-up."""

    COSINE = "Cosine"
    """Decays to 0 along half a cosine."""
    LINEAR = "Linear"
    """Decays to 0 in a line."""
    CONSTANT = "Constant"
    """Stays at its peak."""


class Optimizer(StrEnum):
    """Optimizer of the training."""

    ADAMW = "AdamW"
    """Adam with decoupled weight decay."""
    SGD = "SGD"
    """Gradient descent without momentum and weight decay."""


class SftOptions(ApiModel):
    """Options of SFT."""

    train_on_prompt: Flag | None = None
    """Whether the prompt's tokens count towards the loss too. Default: false."""


class PreferenceOptions(ApiModel):
    """Options of all methods that compare preference pairs."""

    max_prompt_length: Positive | None = None
    """Longest prompt in tokens; a longer one loses its beginning. The answer takes the rest of the sequence. Default:
    half of datasets.maxSeqLength."""


class DpoOptions(PreferenceOptions):
    """Options of DPO."""

    beta: PositiveNumber | None = None
    """Strength of the penalty for moving away from the reference model. Default: 0.1."""
    label_smoothing: Fraction | None = None
    """Assumed share of preference pairs with swapped labels, from 0 to below 0.5; 0 trusts every label. Default: 0."""


class OrpoOptions(PreferenceOptions):
    """Options of ORPO."""

    weight: Annotated[PositiveNumber | None, Field(alias="lambda")] = None
    """Weight of the odds-ratio term in the loss. Default: 0.1."""


ModuleName = Annotated[str, Field(pattern=r"^[a-z_]+$", min_length=1, max_length=63)]


class Lora(ApiModel):
    """Trains a low-rank adapter; the base model stays frozen."""

    rank: Annotated[Positive, Field(le=1024)] | None = None
    """Rank of the adapter's matrices. Default: 16."""
    alpha: PositiveNumber | None = None
    """Scaling of the adapter, which is multiplied by alpha / rank. Default: twice the rank."""
    target_modules: (
        Annotated[tuple[ModuleName, ...], Field(min_length=1, max_length=16), distinct()] | None
    ) = None
    """Modules that get an adapter, by their Hugging Face names. Default: the model family's attention and MLP
    projections."""
    quantization: Quantization | None = None
    """Storage of the frozen base model's linear layers during training; the result is the adapter on the unquantized
    base. Default: None."""


def member(method: MethodType) -> str:
    """Returns the name of the field of :class:`Method` that holds the options of ``method``."""
    return method.lower()


def _belongs(method: MethodType) -> ValidationRule:
    name = member(method)
    return ValidationRule(
        cel=f"!has(self.{name}) || self.type == '{method}'",
        message=f"{name} belongs to type {method}: remove it, or set type: {method}",
        holds=lambda self: getattr(self, name) is None or self.type == method,
    )


class Method(ApiModel):
    """Training objective and adapter; the field that bears the type's name holds its options."""

    rules: ClassVar = tuple(_belongs(method) for method in MethodType)

    type: MethodType
    """Training objective of the job."""
    sft: SftOptions | None = None
    """Options of type SFT."""
    dpo: DpoOptions | None = None
    """Options of type DPO."""
    orpo: OrpoOptions | None = None
    """Options of type ORPO."""
    lora: Lora | None = None
    """LoRA adapter to train. Default: none, full fine-tuning."""


def options_of(method: MethodType) -> type[ApiModel]:
    """Returns the model class of the method's options."""
    options, _ = get_args(Method.model_fields[member(method)].annotation)
    return cast("type[ApiModel]", options)


class Hyperparameters(ApiModel):
    """Hyperparameters of the training."""

    rules: ClassVar = (
        at_most_one("epochs", "steps"),
        at_most_one("globalBatchSize", "perDeviceBatchSize"),
        at_most_one("warmupRatio", "warmupSteps"),
    )

    epochs: Positive | None = None
    """Passes over the training rows; excludes steps. Default: 1."""
    steps: Positive | None = None
    """Optimizer steps of the whole training; excludes epochs. Default: derived from epochs."""
    global_batch_size: Positive | None = None
    """Sequences per optimizer step over all devices; excludes perDeviceBatchSize. Default: 8, or the number of devices
    where that is higher."""
    per_device_batch_size: Positive | None = None
    """Sequences per device and forward pass; excludes globalBatchSize. Default: derived from globalBatchSize."""
    gradient_accumulation_steps: Positive | None = None
    """Forward and backward passes per optimizer step. Default: 1."""
    learning_rate: PositiveNumber | None = None
    """Peak learning rate, after the warm-up. Default: 2e-5 for full fine-tuning, 2e-4 for LoRA; with DPO 5e-7 and 5e-6,
    with ORPO 8e-6 and 8e-5."""
    schedule: LearningRateSchedule | None = None
    """Course of the learning rate after the warm-up. Default: Cosine."""
    warmup_ratio: Fraction | None = None
    """Share of the steps in which the learning rate rises from 0, below 1; 0 for no warm-up; excludes warmupSteps.
    Default: 0.03."""
    warmup_steps: NonNegative | None = None
    """Steps in which the learning rate rises from 0; 0 for no warm-up; excludes warmupRatio."""
    weight_decay: NonNegativeNumber | None = None
    """Weight decay of AdamW; 0 for none. Default: 0."""
    max_grad_norm: PositiveNumber | None = None
    """Global norm that gradients are clipped to. Default: 1."""
    optimizer: Optimizer | None = None
    """Optimizer of the training. Default: AdamW."""
    seed: NonNegative | None = None
    """Seed of the shuffle and of new weights. Default: 42."""
    compute_precision: Precision | None = None
    """Precision of the activations. Default: BF16."""
    weight_precision: Precision | None = None
    """Precision of the weights in memory. Default: FP32 for full fine-tuning, BF16 for LoRA's frozen base."""


class ResolvedHyperparameters(ApiModel):
    """Hyperparameters with all defaults filled in."""

    steps: Whole | None = None
    """Optimizer steps of the whole training."""
    global_batch_size: NonNegative | None = None
    """Sequences per optimizer step over all devices."""
    per_device_batch_size: Decimal | None = None
    """Sequences per device and forward pass; below 1 where devices share a sequence."""
    max_seq_length: Whole | None = None
    """Longest sequence in tokens, within the model's own limit."""
    gradient_accumulation_steps: NonNegative | None = None
    """Forward and backward passes per optimizer step."""
    learning_rate: Decimal | None = None
    """Peak learning rate, after the warm-up."""
    schedule: LearningRateSchedule | None = None
    """Course of the learning rate after the warm-up."""
    warmup_steps: Whole | None = None
    """Steps of the warm-up. Absent if it is a share of the steps."""
    warmup_ratio: Decimal | None = None
    """Warm-up as a share of all steps. Absent if it is a number of steps."""
    optimizer: Optimizer | None = None
    """Optimizer of the training."""
    weight_decay: Decimal | None = None
    """Weight decay of AdamW."""
    max_grad_norm: Decimal | None = None
    """Global norm that gradients are clipped to."""
    seed: Whole | None = None
    """Seed of the shuffle and of new weights."""
    weight_precision: Precision | None = None
    """Precision of the weights in memory."""
    compute_precision: Precision | None = None
    """Precision of the activations."""
