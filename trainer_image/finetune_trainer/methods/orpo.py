"""Odds ratio preference optimization (ORPO, https://arxiv.org/abs/2403.07691).

Differs from Tunix's ORPO, which computes the odds of whole answers instead of the length-normalized odds of the paper's
equation 1: for answers of more than a few tokens its ``log1p(-exp(log p))`` is zero.
"""

from typing import Self

import jax
import jax.numpy as jnp

from finetune_contract import LoraSpec, OrpoMethod
from finetune_trainer.methods.base import Arrays, PreferenceTraining


class OrpoTraining(PreferenceTraining):
    """Trains on the chosen answer and increases its odds relative to the rejected one's.

    ``weight``, the paper's lambda, scales the odds ratio term.
    """

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
    """Returns ``log(1 - exp(nats))``, the log-probability of the complement.

    ``nats`` is clipped to -1e-6: the odds of a probability that rounds to 1 in float32 would be infinite.
    """
    return jnp.log(-jnp.expm1(jnp.minimum(nats, -1e-6)))


METHOD = OrpoTraining
