"""Supervised fine-tuning (SFT): maximizes the likelihood of every trained token."""

from typing import TYPE_CHECKING, Any, ClassVar, Self

from finetune_contract import LoraSpec, SftMethod
from finetune_trainer.methods.base import TrainingMethod

if TYPE_CHECKING:
    from finetune_trainer.methods.objectives import Objective


class SftTraining(TrainingMethod):
    """Supervised fine-tuning on prompts with completions, conversations or plain text."""

    spec: SftMethod
    usual_rates: ClassVar = (1e-6, 1e-4)
    usual_lora_rates: ClassVar = (1e-5, 1e-3)

    @classmethod
    def example(cls, length: int, lora: LoraSpec | None) -> Self:  # noqa: ARG003
        return cls(SftMethod(train_on_prompt=False, lora=lora))

    def objective(self, config: Any) -> "Objective":
        from finetune_trainer.methods.objectives import SftLoss

        return SftLoss(config=config)

    @property
    def trains_on_prompt(self) -> bool:
        trains: bool = self.spec.train_on_prompt
        return trains

    def described(self) -> str:
        return "prompts too" if self.trains_on_prompt else ""


METHOD = SftTraining
