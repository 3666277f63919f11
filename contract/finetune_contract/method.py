"""Training methods: one record for each, discriminated by ``type``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from finetune_contract.base import Record


class LoraSpec(Record):
    """Low-rank adaptation (LoRA) of the model's linear layers."""

    rank: int
    alpha: float
    target_modules: list[str] | None = None
    """Hugging Face module names (q_proj …). None for the model family's preset."""
    quantization: Literal["NF4", "INT8"] | None = None
    """Format of the frozen linear layers during training. None if they are not quantized. Evaluation and export apply
    the adapter to the original weights."""


class _Method(Record):
    """Fields common to all methods. Each subclass has its own ``type``."""

    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics on the validation rows, loss first."""
    reference: ClassVar[bool] = False
    """Whether loss and metrics compare the model with the one that training starts from."""

    lora: LoraSpec | None = None
    """None for full fine-tuning."""


class PreferenceMethod(_Method):
    """A method that compares the two answers of a preference pair. Its rows are never packed."""

    metrics: ClassVar = ("loss", "reward_accuracy", "reward_margin")

    max_prompt_length: Annotated[int, Field(ge=1)]
    """Maximum prompt length in tokens; longer prompts lose their beginning. The rest of ``max_seq_length`` is left for
    the answers."""


class SftMethod(_Method):
    """Supervised fine-tuning on conversations and texts."""

    metrics: ClassVar = ("loss", "perplexity")

    type: Literal["SFT"] = "SFT"
    train_on_prompt: bool
    """Whether the prompt's tokens also count towards the loss."""


class DpoMethod(PreferenceMethod):
    """Direct preference optimization."""

    reference: ClassVar = True

    type: Literal["DPO"] = "DPO"
    beta: float
    """Strength of the regularization towards the initial model; larger values keep the model closer to it."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)]
    """Share of pairs that are assumed to have their labels swapped."""


class OrpoMethod(PreferenceMethod):
    """Odds ratio preference optimization."""

    type: Literal["ORPO"] = "ORPO"
    weight: float
    """Weight of the odds-ratio loss relative to the negative log-likelihood of the chosen answer."""


MethodSpec = Annotated[SftMethod | DpoMethod | OrpoMethod, Field(discriminator="type")]
"""Any method. A method introduced after 3.0 is annotated here with its version: ``Since("3.1", "GRPO")``."""

#: Methods by type, in the order of ``MethodSpec``.
METHODS: Mapping[str, type[SftMethod | DpoMethod | OrpoMethod]] = MappingProxyType(
    {each.model_fields["type"].default: each for each in get_args(get_args(MethodSpec)[0])}
)
#: Types of the methods that compare preference pairs, in the order of ``MethodSpec``.
PREFERENCE_TYPES = tuple(name for name, each in METHODS.items() if issubclass(each, PreferenceMethod))
