"""What a training learns from: one record for each method, discriminated by ``type``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from finetune_contract.base import Record


class LoraSpec(Record):
    rank: int
    alpha: float
    target_modules: list[str] | None = None
    """Hugging Face module names (q_proj …); None: the family's preset."""
    quantization: Literal["NF4", "INT8"] | None = None
    """How the frozen linear layers are held while training. What is evaluated and exported is the adapter on the
    weights as they were."""


class _Method(Record):
    """Members of every method. A subclass has a ``type`` of its own."""

    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics on the validation rows, the loss first."""

    lora: LoraSpec | None = None
    """None: full fine-tuning."""


class PreferenceMethod(_Method):
    """A method that compares the two answers of a preference pair. Its rows are never packed."""

    metrics: ClassVar = ("loss", "reward_accuracy", "reward_margin")

    max_prompt_length: Annotated[int, Field(ge=1)]
    """Tokens; longer prompts lose their beginning. The rest of ``max_seq_length`` is for the answers."""


class SftMethod(_Method):
    """Supervised fine-tuning on conversations and texts."""

    metrics: ClassVar = ("loss", "perplexity")

    type: Literal["SFT"] = "SFT"
    train_on_prompt: bool
    """The prompt's tokens count towards the loss, too."""


class DpoMethod(PreferenceMethod):
    """Direct preference optimization."""

    type: Literal["DPO"] = "DPO"
    beta: float
    """How far the model may move from the one that training began with."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)]
    """Share of pairs that are taken to be labelled the wrong way round."""


class OrpoMethod(PreferenceMethod):
    """Odds ratio preference optimization."""

    type: Literal["ORPO"] = "ORPO"
    weight: float
    """Of the odds ratio beside the likelihood of the chosen answer."""


MethodSpec = Annotated[SftMethod | DpoMethod | OrpoMethod, Field(discriminator="type")]
"""Any of them. A method that comes after 1.0 stands here as ``Since("1.1", "GRPO")``."""

#: By type, in the order of ``MethodSpec``.
METHODS: Mapping[str, type[SftMethod | DpoMethod | OrpoMethod]] = MappingProxyType(
    {each.model_fields["type"].default: each for each in get_args(get_args(MethodSpec)[0])}
)
#: Types of the methods that compare pairs, in the same order.
PREFERENCE_TYPES = tuple(name for name, each in METHODS.items() if issubclass(each, PreferenceMethod))
