"""Direct preference optimization (DPO, https://arxiv.org/abs/2305.18290).

Computes the same loss as Tunix's trainer, and in addition the sums that weighting and evaluation need.
"""

from typing import ClassVar, Self

import jax

from finetune_contract import DpoMethod, LoraSpec
from finetune_trainer.methods.base import REFERENCE, Arrays, PreferenceTraining


class DpoTraining(PreferenceTraining):
    """Trains the model to prefer the chosen answer more strongly than the reference model does.

    ``label_smoothing`` is the assumed fraction of pairs whose labels are swapped.
    """

    spec: DpoMethod
    reference: ClassVar = True

    @classmethod
    def example(cls, length: int, lora: LoraSpec | None) -> Self:
        return cls(DpoMethod(beta=0.1, label_smoothing=0.0, max_prompt_length=length // 2, lora=lora))

    def compare(
        self, chosen: jax.Array, rejected: jax.Array, batch: Arrays
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        beta, smoothing = self.spec.beta, self.spec.label_smoothing
        better, worse = (chosen - batch[REFERENCE[0]]), (rejected - batch[REFERENCE[1]])
        delta = better - worse
        losses = -(
            jax.nn.log_sigmoid(beta * delta) * (1 - smoothing) + jax.nn.log_sigmoid(-beta * delta) * smoothing
        )
        return losses, beta * better, beta * worse

    def described(self) -> str:
        return f"beta {self.spec.beta:g}, label smoothing {self.spec.label_smoothing:g}"


METHOD = DpoTraining
