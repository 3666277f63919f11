"""Greedy answers of a MaxText model to a batch of prompts."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from finetune_trainer.spread import ROW_AXES

#: Lengths are rounded up to this, so that prompts of all sizes share few compiled programs.
_LENGTH_STEP = 64


def greedy(
    model: Any,
    config: Any,
    mesh: Mesh,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    end_ids: frozenset[int],
) -> list[list[int]]:
    """For each prompt (token ids, not empty) the new tokens, without the one that ended them. Every token is the most
    likely one after a forward pass over all before it; every process returns the same."""
    if not prompts:
        return []
    shards = math.prod(mesh.shape[axis] for axis in ROW_AXES)
    rows = math.ceil(len(prompts) / shards) * shards
    longest = max(len(prompt) for prompt in prompts) + max_new_tokens
    length = math.ceil(longest / _LENGTH_STEP) * _LENGTH_STEP
    tokens = np.zeros((rows, length), np.int32)
    ends = np.ones(rows, np.int32)  # an empty row is one token long and never read
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
        ends[row] = len(prompt)
    open_rows = np.arange(rows) < len(prompts)
    starts = ends.copy()
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        graph, state = nnx.split(model)
        step = _next_token(graph, mesh, length)
        by_rows = NamedSharding(mesh, PartitionSpec(ROW_AXES))
        for _ in range(max_new_tokens):
            arrays = (jax.make_array_from_callback(a.shape, by_rows, a.__getitem__) for a in (tokens, ends))
            chosen = np.asarray(step(state, *arrays))
            open_rows &= ~np.isin(chosen, list(end_ids))
            if not open_rows.any():
                break
            tokens[open_rows, ends[open_rows]] = chosen[open_rows]
            ends[open_rows] += 1
    return [tokens[row, starts[row] : ends[row]].tolist() for row in range(len(prompts))]


def _next_token(graph: Any, mesh: Mesh, length: int) -> Any:
    """The most likely token after position ``ends - 1`` of each row, on every process."""

    def step(state: Any, tokens: jax.Array, ends: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), tokens.shape)
        segments = (positions < ends[:, None]).astype(jnp.int32)
        output = nnx.merge(graph, state)(
            decoder_input_tokens=tokens,
            decoder_positions=positions,
            decoder_segment_ids=segments,
            enable_dropout=False,
        )
        logits = output[0] if isinstance(output, tuple) else output
        last = jnp.take_along_axis(logits, (ends - 1)[:, None, None], axis=1)[:, 0]
        return jnp.argmax(last, axis=-1).astype(jnp.int32)

    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))
