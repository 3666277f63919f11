"""Token-weighted loss of a MaxText model over a dataset: the sum over all trained tokens divided by their number."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh
from maxtext.trainers.pre_train.train import loss_fn

from finetune_trainer.data.layout import Batch
from finetune_trainer.spread import to_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    total: float
    """Nats, summed over tokens."""
    tokens: int

    @property
    def mean(self) -> float:
        return self.total / max(1, self.tokens)


def combined(losses: Iterable[Loss]) -> Loss:
    """Over several sets as over one: every token counts the same."""
    several = list(losses)
    return Loss(total=sum(each.total for each in several), tokens=sum(each.tokens for each in several))


class LossMeter:
    """Measures models of one structure; compiles once."""

    def __init__(self, model: Any, config: Any, mesh: Mesh) -> None:
        """``config`` is MaxText's. Batches must be of its global batch size."""
        self._config, self._mesh = config, mesh
        graph, _ = nnx.split(model)

        @jax.jit
        def step(state: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
            _, aux = loss_fn(nnx.merge(graph, state), config, dict(batch), None, None, is_train=False)
            return aux["xent_sum"], aux["total_weights"]

        self._step = step

    def measure(
        self, model: Any, batches: Iterable[Batch], *, alive: Callable[[], None] = lambda: None
    ) -> Loss:
        """The loss over all batches; ``alive`` is called after each. The sum over them is made in float64 on the host,
        in their order."""
        total, tokens = 0.0, 0
        with jax.set_mesh(self._mesh), logical_axis_rules(self._config.logical_axis_rules):
            _, state = nnx.split(model)
            for batch in batches:
                loss, count = self._step(state, to_devices(batch, self._mesh))
                total += float(np.asarray(loss, np.float64))
                tokens += int(count)
                alive()
        return Loss(total=total, tokens=tokens)
