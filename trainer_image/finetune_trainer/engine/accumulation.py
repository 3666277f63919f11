"""Gradient accumulation inside one step: the gradient of the whole batch, computed one microbatch at a time.

MaxText's accumulation does not support LoRA, and Tunix's (optax.MultiSteps) averages microbatches regardless of their
contents, so that rows of unequal length change the loss; it does not run at all between the two pinned releases. Here
every microbatch counts by its weight (tokens, pairs), so loss and gradient are those of the undivided batch, and a step
is one update: learning rates, checkpoints and evaluations are not affected.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

#: ``(model, batch) -> (mean loss, sums)``; ``sums["total_weights"]`` is what the mean was taken over. Where that is 0,
#: the loss is 0.
type LossFunction = Callable[[Any, Mapping[str, jax.Array]], tuple[jax.Array, Mapping[str, jax.Array]]]


def accumulated_step(model: Any, wrt: Any, loss: LossFunction, count: int) -> Callable[..., Any]:
    """``(model, optimizer, batch) -> (loss, sums, gradient norm)`` over ``count`` microbatches.

    ``wrt`` is the kind of variable that is trained. The batch's number of rows must be a multiple of ``count``.
    """
    graph, _, _ = nnx.split(model, wrt, ...)

    def objective(
        trained: Any, rest: Any, batch: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, tuple[Mapping[str, jax.Array], Any]]:
        local = nnx.merge(graph, trained, rest, copy=True)
        mean, sums = loss(local, batch)
        _, _, rest = nnx.split(local, wrt, ...)
        return mean * jax.lax.stop_gradient(sums["total_weights"]), (sums, rest)

    def step(model: Any, optimizer: Any, batch: Mapping[str, jax.Array]) -> tuple[Any, Any, Any]:
        _, trained, rest = nnx.split(model, wrt, ...)

        def add(carry: Any, part: Mapping[str, jax.Array]) -> tuple[Any, Any]:
            total, gradient, rest = carry
            (value, (sums, rest)), more = jax.value_and_grad(objective, has_aux=True)(trained, rest, part)
            return (total + value, jax.tree.map(jnp.add, gradient, more), rest), sums

        nothing = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, trained), rest)
        (total, gradient, rest), each = jax.lax.scan(add, nothing, microbatches(batch, count))
        sums = jax.tree.map(lambda values: values.sum(axis=0), each)
        weight = sums["total_weights"]
        gradient = jax.tree.map(lambda g: (g / weight).astype(g.dtype), gradient)
        nnx.update(model, rest)
        optimizer.update(model, gradient)
        norm = optax.global_norm(jax.tree.map(lambda g: g.astype(jnp.float32), gradient))
        return total / weight, sums, norm

    return step


def microbatches(batch: Mapping[str, jax.Array], count: int) -> dict[str, jax.Array]:
    """Reshapes ``[rows, ...]`` to ``[count, rows / count, ...]``.

    A microbatch takes every ``count``-th row, so that rows stay on their devices.
    """
    return {
        name: jnp.swapaxes(array.reshape(array.shape[0] // count, count, *array.shape[1:]), 0, 1)
        for name, array in batch.items()
    }
