"""The interface of all training methods, and the base class of methods that compare preference pairs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from finetune_contract import LoraSpec, MethodSpec

if TYPE_CHECKING:
    import jax

    from finetune_trainer.methods.objectives import Objective

type Arrays = Mapping[str, "jax.Array"]
type Range = tuple[float, float]

#: Names of a batch's arrays with the answers' log-probabilities under the reference model.
REFERENCE = ("reference_chosen", "reference_rejected")


class TrainingMethod(ABC):
    """One method with the options of one request.

    The method's entry in the contract defines its options, its metrics and whether its rows are pairs.
    """

    usual_rates: ClassVar[Range]
    """Range of learning rates in published AdamW recipes for full fine-tuning. Small models use higher rates."""
    usual_lora_rates: ClassVar[Range]
    """Range of learning rates in published AdamW recipes for LoRA."""
    reference: ClassVar[bool] = False
    """Whether batches must contain log-probabilities under the reference model, with which training starts."""
    whole_logits: ClassVar[bool] = False
    """Whether the loss needs the full logits, which a model that computes them in tiles does not return."""
    exact_logits: ClassVar[bool] = False
    """Whether logits are computed in float32 regardless of the activations' precision."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @property
    def trains_on_prompt(self) -> bool:
        """Whether the prompt's tokens count toward the loss too."""
        return False

    @classmethod
    @abstractmethod
    def example(cls, length: int, lora: LoraSpec | None) -> Self:
        """Returns the method with arbitrary valid options for rows of ``length`` tokens.

        Used where only the shape of the compiled program matters.
        """

    @abstractmethod
    def objective(self, config: Any) -> "Objective":
        """Returns the objective that a training step minimizes. ``config`` is MaxText's configuration."""

    @abstractmethod
    def described(self) -> str:
        """Returns the options as text for the model card; empty if there are none to mention."""

    def shortened(self, length: int) -> MethodSpec:  # noqa: ARG002
        """Returns the method's spec limited to sequences of ``length`` tokens, for the smoke test."""
        spec: MethodSpec = self.spec
        return spec


class PreferenceTraining(TrainingMethod):
    """Base class of methods that train on preference pairs. A row without answers has weight zero."""

    # The loss compares log-probabilities summed over whole answers; bfloat16 logits would distort the difference.
    usual_rates: ClassVar = (1e-8, 1e-5)
    usual_lora_rates: ClassVar = (1e-7, 1e-4)
    whole_logits: ClassVar = True
    exact_logits: ClassVar = True

    @abstractmethod
    def compare(
        self, chosen: "jax.Array", rejected: "jax.Array", batch: Arrays
    ) -> "tuple[jax.Array, jax.Array, jax.Array]":
        """Returns each pair's loss, the reward of its chosen answer and the reward of its rejected answer.

        ``chosen`` and ``rejected`` are the answers' log-probabilities, summed over their tokens.
        """

    def objective(self, config: Any) -> "Objective":  # noqa: ARG002
        from finetune_trainer.methods.objectives import Preference

        return Preference(compare=self.compare, relative=self.reference)

    def shortened(self, length: int) -> MethodSpec:
        prompts = max(1, min(self.spec.max_prompt_length, length // 2))
        shorter: MethodSpec = self.spec.model_copy(update={"max_prompt_length": prompts})
        return shorter
