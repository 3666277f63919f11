"""Samples the next token. An answer does not depend on the batch, the number of processes or the other prompts."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How answers are generated."""

    max_new_tokens: int
    temperature: float = 0.0
    """Temperature of sampling; 0 selects the likeliest token (greedy decoding)."""
    top_k: int = 0
    """Number of likeliest tokens to sample from; 0 samples from all tokens."""
    seed: int = 0


def sample_tokens(logits: jax.Array, sampling: Sampling, numbers: jax.Array, step: jax.Array) -> jax.Array:
    """Returns one token per row of ``logits`` ``[rows, vocabulary]``, int32 ``[rows]``.

    The random choice depends only on the seed, the prompt's number (``numbers``, ``[rows]``) and the answer's ``step``.
    """
    logits = logits.astype(jnp.float32)
    if sampling.temperature == 0.0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if sampling.top_k:
        least = jax.lax.top_k(logits, min(sampling.top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    seed = jax.random.key(sampling.seed)
    keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(seed, number), step))(numbers)
    drawn = jax.vmap(jax.random.categorical)(keys, logits / sampling.temperature)
    return drawn.astype(jnp.int32)
