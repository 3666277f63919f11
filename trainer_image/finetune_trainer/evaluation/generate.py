"""Generates a MaxText model's answers to prompts in batches, each in one compiled program.

Uses a KV cache if possible and full forward passes otherwise. Both produce the same tokens.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from maxtext.common.common_types import MODEL_MODE_AUTOREGRESSIVE, MODEL_MODE_PREFILL

from finetune_trainer.engine import widths
from finetune_trainer.engine.sharding import ROW_AXES, mesh_context, shard_batch
from finetune_trainer.evaluation.batching import Batching, RowCapacity
from finetune_trainer.evaluation.decoding import empty_cache, max_cache_length, sized, with_cache
from finetune_trainer.evaluation.models import LoadedModel
from finetune_trainer.evaluation.sampling import Sampling, sample_tokens
from finetune_trainer.process.stage_progress import ignore

_LOG = logging.getLogger(__name__)
type _Program = Callable[[Any, Any, Any, Any], jax.Array]
"""(state, tokens ``[rows, width]``, lengths ``[rows]``, numbers ``[rows]``, -1 for an empty row) -> new tokens
``[rows, new]``, -1 from the end of the answer on."""


class Generator:
    """Generates answers of one model. Compiles once per width of ``widths.group_by_width``."""

    def __init__(
        self,
        loaded: LoadedModel,
        sampling: Sampling,
        *,
        end_ids: frozenset[int],
        row_capacity: RowCapacity,
        longest: int,
        cached: bool = True,
    ) -> None:
        """Prepares generation.

        ``row_capacity`` is the number of rows that fit on the devices, ``longest`` the maximum number of tokens of a
        prompt. If ``cached`` is false, every token is computed by a forward pass over all tokens before it.
        """
        self._loaded, self._sampling, self._longest, self._cached = loaded, sampling, longest, cached
        self._batching = Batching(row_capacity=row_capacity)
        self._ends = tuple(sorted(end_ids))
        self._settings = widths.settings_of(loaded.config)
        self._programs: dict[tuple[int, int], tuple[_Program, Any]] = {}

    def answers(
        self, prompts: Sequence[Sequence[int]], *, answered: Callable[[int], None] = ignore
    ) -> list[list[int]]:
        """Returns each prompt's new tokens without the end token. Every process returns the same.

        ``prompts`` are token ids, none empty. ``answered`` is called with the number of prompts of each batch.
        """
        answers: dict[int, list[int]] = {}
        lengths = [len(prompt) for prompt in prompts]
        for width, numbers in widths.group_by_width(lengths, self._settings, longest=self._longest).items():

            def attempt(some: Sequence[int], rows: int, width: int = width) -> list[list[int]]:
                return self._batch(prompts, some, width, rows)

            needs = self._needs(width)
            for some, found in self._batching.over(numbers, attempt, **needs):
                answers |= dict(zip(some, found, strict=True))
                answered(len(some))
        return [answers[number] for number in range(len(prompts))]

    def rows(self, width: int, count: int) -> int:
        """Returns the number of rows of the program for ``count`` prompts of this width."""
        return self._batching.rows(count, **self._needs(width))

    def _needs(self, width: int) -> dict[str, int]:
        """Returns a row's number of positions in memory, and the number of positions with logits."""
        if self._sized_total(width) <= self._reach:
            return {"tokens": self._sized_total(width), "logits": 1}
        return {"tokens": self._total(width), "logits": self._total(width)}

    @cached_property
    def _reach(self) -> float:
        if not self._cached:
            return 0.0
        mesh = self._loaded.mesh
        with jax.set_mesh(mesh):
            return max_cache_length(self._loaded.config, mesh, rows=self._batching.row_capacity.groups)

    def program(self, width: int, rows: int) -> tuple[Any, Any]:
        """Returns the jitted program for ``rows`` prompts of this width, and the state that is its first argument.

        To be called inside ``mesh_context``.
        """
        config = sized(self._loaded.config, rows=rows, prompt=width, total=self._sized_total(width))
        mesh = self._loaded.mesh
        model = with_cache(self._loaded.model, config, mesh) if self._cached else None
        if model is None:
            if self._cached:
                _LOG.info(
                    "no KV cache for this model at %d tokens: generation is slower", config.max_target_length
                )
            graph, state = nnx.split(self._loaded.model)
            step = _by_forward_passes(graph, self._sampling, self._ends, self._total(width))
        else:
            graph, cache, state = nnx.split(model, nnx.Cache, ...)
            step = _by_cache(graph, cache, self._sampling, self._ends)
        return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec())), state

    def lowered(self, width: int, rows: int) -> Any:
        """Returns ``program`` as ``jax.stages.Lowered``."""
        sharding = NamedSharding(self._loaded.mesh, PartitionSpec(ROW_AXES))
        shapes = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding)
            for each in arrays(rows, width).values()
        ]
        with self._inside(width, rows):
            run, state = self.program(width, rows)
            return run.lower(state, *shapes)

    def _inside(self, width: int, rows: int) -> contextlib.AbstractContextManager[None]:
        config = sized(self._loaded.config, rows=rows, prompt=width, total=self._sized_total(width))
        return mesh_context(config, self._loaded.mesh)

    def _batch(
        self, prompts: Sequence[Sequence[int]], numbers: Sequence[int], width: int, rows: int
    ) -> list[list[int]]:
        batch = arrays(rows, width)
        for row, number in enumerate(numbers):
            prompt = prompts[number]
            batch["tokens"][row, : len(prompt)] = prompt
            batch["lengths"][row], batch["numbers"][row] = len(prompt), number
        mesh = self._loaded.mesh
        with self._inside(width, rows):
            if (width, rows) not in self._programs:
                self._programs[width, rows] = self.program(width, rows)
            run, state = self._programs[width, rows]
            found = np.asarray(run(state, *shard_batch(batch, mesh).values()))
        return [row[: np.argmax(np.append(row, -1) < 0)].tolist() for row in found[: len(numbers)]]

    def _sized_total(self, width: int) -> int:
        """Returns the number of positions of a cache."""
        return width + self._sampling.max_new_tokens

    def _total(self, width: int) -> int:
        """Returns a number of positions for prompt and answer that the attention kernel accepts."""
        needed = min(width, self._longest) + self._sampling.max_new_tokens
        return max(width, widths.row_width(needed, self._settings))


def arrays(rows: int, width: int) -> dict[str, np.ndarray]:
    """Returns a program's arguments other than the state, for empty rows."""
    return {
        "tokens": np.zeros((rows, width), np.int32),
        "lengths": np.ones(rows, np.int32),  # an empty row has one token and is never read
        "numbers": np.full(rows, -1, np.int32),
    }


def _logits(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _by_cache(graph: Any, cache: Any, sampling: Sampling, ends: tuple[int, ...]) -> _Program:
    """Returns the program that decodes with a KV cache.

    One prefill pass fills the cache with each prompt except its last token, which is the first decoding input. The
    prefill therefore needs no logits, which for all positions of a batch would be larger than the model.
    """

    def run(state: Any, tokens: jax.Array, lengths: jax.Array, numbers: jax.Array) -> jax.Array:
        def call(cache: Any, tokens: Any, positions: Any, segments: Any, mode: str) -> tuple[Any, Any]:
            """Returns the logits of ``tokens`` and the cache with their keys and values."""
            model = nnx.merge(graph, cache, state, copy=True)
            output = model(
                decoder_input_tokens=tokens,
                decoder_positions=positions,
                decoder_segment_ids=segments,
                enable_dropout=False,
                model_mode=mode,
            )
            return _logits(output), nnx.state(model, nnx.Cache)

        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        all_but_last = (positions < lengths[:, None] - 1).astype(jnp.int32)
        _, filled = call(empty_cache(cache), tokens, positions, all_but_last, MODEL_MODE_PREFILL)
        last = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)

        def next_logits(carry: tuple[Any, Any], step: jax.Array) -> tuple[jax.Array, Any]:
            cache, token = carry
            position = (lengths - 1 + step)[:, None]
            logits, cache = call(cache, token, position, None, MODEL_MODE_AUTOREGRESSIVE)
            return logits[:, 0], cache

        def append(cache: Any, chosen: jax.Array, _: jax.Array) -> tuple[Any, Any]:
            return cache, chosen[:, None]

        return _loop(next_logits, append, (filled, last), sampling, ends, numbers)

    return run


def _by_forward_passes(graph: Any, sampling: Sampling, ends: tuple[int, ...], total: int) -> _Program:
    """Returns the program that runs a full forward pass per token.

    ``total`` is at least the number of positions of prompt and answer together.
    """

    def run(state: Any, tokens: jax.Array, lengths: jax.Array, numbers: jax.Array) -> jax.Array:
        tokens = jnp.pad(tokens, ((0, 0), (0, total - tokens.shape[1])))
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)

        def next_logits(tokens: jax.Array, step: jax.Array) -> tuple[jax.Array, Any]:
            until = lengths[:, None] + step
            output = nnx.merge(graph, state, copy=True)(
                decoder_input_tokens=tokens,
                decoder_positions=places,
                decoder_segment_ids=(places < until).astype(jnp.int32),
                enable_dropout=False,
            )
            return jnp.take_along_axis(_logits(output), until[..., None] - 1, axis=1)[:, 0], tokens

        def append(tokens: jax.Array, chosen: jax.Array, step: jax.Array) -> jax.Array:
            return jnp.where(places == lengths[:, None] + step, chosen[:, None], tokens)

        return _loop(next_logits, append, tokens, sampling, ends, numbers)

    return run


def _loop(  # noqa: PLR0917
    next_logits: Callable[[Any, jax.Array], tuple[jax.Array, Any]],
    append: Callable[[Any, jax.Array, jax.Array], Any],
    start: Any,
    sampling: Sampling,
    ends: tuple[int, ...],
    numbers: jax.Array,
) -> jax.Array:
    """Returns tokens ``[rows, new]``, generated until every row has ended.

    ``next_logits`` maps (carry, step) to (logits, carry), ``append`` maps (carry, tokens, step) to carry.
    """

    def goes_on(carry: Any) -> jax.Array:
        step, _, open_rows, _ = carry
        return jnp.logical_and(step < sampling.max_new_tokens, open_rows.any())

    def advance(carry: Any) -> Any:
        step, inner, open_rows, written = carry
        logits, inner = next_logits(inner, step)
        chosen = sample_tokens(logits, sampling, numbers, step)
        open_rows = open_rows & ~jnp.isin(chosen, jnp.asarray(ends, jnp.int32))
        written = written.at[:, step].set(jnp.where(open_rows, chosen, -1))
        return step + 1, append(inner, chosen, step), open_rows, written

    written = jnp.full((numbers.shape[0], sampling.max_new_tokens), -1, jnp.int32)
    end = jax.lax.while_loop(goes_on, advance, (jnp.int32(0), start, numbers >= 0, written))
    tokens: jax.Array = end[-1]
    return tokens
