"""What every method answers, and what methods that compare preference pairs have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from finetune_contract import LoraSpec, MethodSpec

if TYPE_CHECKING:
    import jax

    from finetune_trainer.objectives import Objective

type Arrays = Mapping[str, "jax.Array"]
type Range = tuple[float, float]

#: Pairs of a batch whose log-probabilities under the reference model are known carry them under these names.
REFERENCE = ("reference_chosen", "reference_rejected")


class TrainingMethod(ABC):
    """One method with the options of one request. Whether its rows are pairs, its metrics and its options are the
    record's in the contract."""

    usual_rates: ClassVar[Range]
    """Learning rates that published recipes for AdamW use with full fine-tuning. Small models take higher ones."""
    usual_lora_rates: ClassVar[Range]
    """The same for LoRA."""
    reference: ClassVar[bool] = False
    """Whether batches must carry log-probabilities of the model that training began with."""
    whole_logits: ClassVar[bool] = False
    """Whether the loss reads whole logits: of a model that computes them in tiles there are none."""
    exact_logits: ClassVar[bool] = False
    """Whether logits are computed in float32, whatever the precision of activations."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @property
    def trains_on_prompt(self) -> bool:
        """Whether the prompt's tokens count towards the loss, too."""
        return False

    @classmethod
    @abstractmethod
    def example(cls, length: int, lora: LoraSpec | None) -> Self:
        """With options for rows of ``length`` tokens, where only the shape of the program counts."""

    @abstractmethod
    def objective(self, config: Any) -> "Objective":
        """What a step minimises. ``config`` is MaxText's."""

    @abstractmethod
    def described(self) -> str:
        """The options for the model card, or nothing where none needs a word."""

    def shortened(self, length: int) -> MethodSpec:  # noqa: ARG002
        """The method on sequences of at most ``length`` tokens, for the smoke test."""
        spec: MethodSpec = self.spec
        return spec


class PreferenceTraining(TrainingMethod):
    """A method over preference pairs; a row without answers has no weight."""

    # Preferences are differences of sums over whole answers, where logits rounded to bfloat16 show.
    usual_rates: ClassVar = (1e-8, 1e-5)
    usual_lora_rates: ClassVar = (1e-7, 1e-4)
    whole_logits: ClassVar = True
    exact_logits: ClassVar = True

    @abstractmethod
    def compare(
        self, chosen: "jax.Array", rejected: "jax.Array", batch: Arrays
    ) -> "tuple[jax.Array, jax.Array, jax.Array]":
        """Of each pair: loss, reward of the chosen answer, reward of the rejected one. ``chosen`` and ``rejected``:
        log-probabilities of the answers, summed over their tokens."""

    def objective(self, config: Any) -> "Objective":  # noqa: ARG002
        from finetune_trainer.objectives import Preference

        return Preference(compare=self.compare, relative=self.reference)

    def shortened(self, length: int) -> MethodSpec:
        prompts = max(1, min(self.spec.max_prompt_length, length // 2))
        shorter: MethodSpec = self.spec.model_copy(update={"max_prompt_length": prompts})
        return shorter
