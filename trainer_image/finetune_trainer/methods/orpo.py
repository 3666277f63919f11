"""Odds ratio preference optimization (https://arxiv.org/abs/2403.07691).

It is not Tunix's, which takes the odds of whole answers, not the length-normalised ones of the paper's equation 1:
their log1p(-exp(log p)) is zero beyond a few tokens.
"""

from typing import Self

import jax
import jax.numpy as jnp

from finetune_contract import LoraSpec, OrpoMethod
from finetune_trainer.methods.base import Arrays, PreferenceTraining


class OrpoTraining(PreferenceTraining):
    """Imitate the chosen answer, and raise its odds over the other's with ``weight`` (the paper's lambda)."""

    spec: OrpoMethod

    @classmethod
    def example(cls, length: int, lora: LoraSpec | None) -> Self:
        return cls(OrpoMethod(weight=0.1, max_prompt_length=length // 2, lora=lora))

    def compare(
        self, chosen: jax.Array, rejected: jax.Array, batch: Arrays
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        weight = self.spec.weight
        better, worse = (
            nats / jnp.maximum(batch[mask].sum(axis=-1), 1)
            for nats, mask in ((chosen, "chosen_mask"), (rejected, "rejected_mask"))
        )
        odds = (better - worse) - (_log_of_other(better) - _log_of_other(worse))
        return -better - weight * jax.nn.log_sigmoid(odds), weight * better, weight * worse

    def described(self) -> str:
        return f"weight {self.spec.weight:g}"


def _log_of_other(nats: jax.Array) -> jax.Array:
    """log(1 - exp(nats)). A token that is certain to float32 would be infinitely odd: it counts as all but certain."""
    return jnp.log(-jnp.expm1(jnp.minimum(nats, -1e-6)))


METHOD = OrpoTraining
