"""Loss of a MaxText model over a dataset: the mean over all trained tokens, or over all preference pairs.

One compiled program returns the loss of each token or pair. Their sums over all rows and over single rows are computed
on the host, so that they agree.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from finetune_trainer.data.layout import Batch
from finetune_trainer.engine.sharding import mesh_context, shard_batch
from finetune_trainer.evaluation.numbers import perplexity
from finetune_trainer.evaluation.rows import RowSums
from finetune_trainer.methods.objectives import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoss:
    """Loss of a model over one or several datasets."""

    total: float
    """Sum of the losses of all tokens (or pairs), in nats."""
    weight: int
    """Number of tokens (or pairs) in the sum."""
    tokens: int
    """Number of tokens whose probability contributed."""
    metrics: Mapping[str, float]
    """Means of the method's other metrics."""
    per_token: bool

    @property
    def mean(self) -> float:
        """Mean loss per token (or pair), in nats."""
        return self.total / max(1, self.weight)

    @property
    def perplexity(self) -> float | None:
        """Perplexity of a token; None if the loss is not per token."""
        return perplexity(self.mean) if self.per_token else None


def combined(losses: Iterable[MeasuredLoss]) -> MeasuredLoss:
    """Returns the loss over several datasets as if they were one: every token (or pair) has the same weight.

    ``losses`` are of the same method and not empty.
    """
    several = list(losses)
    weight = sum(each.weight for each in several)
    return MeasuredLoss(
        total=sum(each.total for each in several),
        weight=weight,
        tokens=sum(each.tokens for each in several),
        metrics={
            name: sum(each.metrics[name] * each.weight for each in several) / max(1, weight)
            for name in several[0].metrics
        },
        per_token=several[0].per_token,
    )


class LossMeter:
    """Measures the loss of models with the same structure. Compiles once."""

    def __init__(self, model: Any, config: Any, mesh: Mesh, objective: Objective) -> None:
        """``config`` is MaxText's configuration; batches must have its global batch size."""
        self._config, self._mesh, self._objective = config, mesh, objective
        graph, _ = nnx.split(model)

        def step(state: Any, batch: Any) -> Mapping[str, jax.Array]:
            return objective.parts(nnx.merge(graph, state), batch)

        self._step = jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def lowered(self, model: Any, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
        """Returns the program of ``measure`` as ``jax.stages.Lowered``.

        To be called inside ``mesh_context``.
        """
        return self._step.lower(nnx.split(model)[1], batch)

    def measure(
        self,
        model: Any,
        batches: Iterable[Batch],
        *,
        rows: RowSums | None = None,
        alive: Callable[[], None] = lambda: None,
    ) -> MeasuredLoss:
        """Returns the loss over all batches, summed on the host in float64 and in the order of the batches.

        Loss and metrics are 0 if the batches count no token or pair. ``rows`` receives the same for each row of the
        dataset that the batches are from; the model must not compute its logits in tiles. ``alive`` is called after
        each batch.
        """
        totals = dict.fromkeys(("nats", *self._objective.metrics), 0.0)
        weight = tokens = 0
        with mesh_context(self._config, self._mesh):
            _, state = nnx.split(model)
            for batch in batches:
                found = self._step(state, shard_batch(batch, self._mesh))
                parts = {name: np.asarray(found[name], np.float64) for name in totals}
                for name, each in parts.items():
                    totals[name] += float(each.sum())
                examples = self._objective.examples(batch)
                weight += int(np.count_nonzero(examples))
                tokens += self._objective.tokens(batch)
                if rows is not None:
                    rows.add(examples, parts)
                alive()
        return MeasuredLoss(
            total=totals["nats"],
            weight=weight,
            tokens=tokens,
            metrics={name: totals[name] / max(1, weight) for name in self._objective.metrics},
            per_token=self._objective.per_token,
        )
