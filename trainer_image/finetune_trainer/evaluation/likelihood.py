"""Computes log-probabilities of given texts under a MaxText model in batches, each in one compiled program."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from finetune_trainer.engine import widths
from finetune_trainer.engine.sharding import ROW_AXES, mesh_context, shard_batch
from finetune_trainer.evaluation.batching import Batching, RowCapacity
from finetune_trainer.evaluation.models import LoadedModel
from finetune_trainer.process.stage_progress import ignore

type Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context, which is not empty, and of its continuation."""


class Likelihood:
    """Log-probabilities under one model. Compiles once per width of ``widths.group_by_width``."""

    def __init__(self, loaded: LoadedModel, *, row_capacity: RowCapacity, longest: int) -> None:
        """Prepares the computation.

        ``row_capacity`` is the number of rows that fit on the devices, ``longest`` the model's context length in
        tokens. Longer pairs are truncated at the beginning.
        """
        self._loaded, self._longest = loaded, longest
        self._batching = Batching(row_capacity=row_capacity)
        graph, self._state = nnx.split(loaded.model)

        def run(state: Any, tokens: Any, targets: Any, counted: Any, there: Any) -> tuple[Any, Any]:
            output = nnx.merge(graph, state, copy=True)(
                decoder_input_tokens=tokens,
                decoder_positions=jnp.broadcast_to(
                    jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape
                ),
                decoder_segment_ids=there,
                enable_dropout=False,
            )
            logits = (output[0] if isinstance(output, tuple) else output).astype(jnp.float32)
            chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
            each = chosen - jax.nn.logsumexp(logits, axis=-1)
            likeliest = (jnp.argmax(logits, axis=-1) == targets) | (counted == 0)
            return (each * counted).sum(axis=-1), likeliest.all(axis=-1)

        whole = NamedSharding(loaded.mesh, PartitionSpec())
        self._run = jax.jit(run, out_shardings=(whole, whole))

    def of(
        self, pairs: Sequence[Pair], *, measured: Callable[[int], None] = ignore
    ) -> list[tuple[float, bool]]:
        """Returns each continuation's log-probability in nats, and whether all of its tokens are the likeliest ones.

        The results are in the order of ``pairs``, and the same in every process. ``measured`` is called with the number
        of pairs of each batch.
        """
        found: dict[int, tuple[float, bool]] = {}
        # The last token is only a target.
        lengths = [min(len(context) + len(rest) - 1, self._longest) for context, rest in pairs]
        settings = widths.settings_of(self._loaded.config)
        with mesh_context(self._loaded.config, self._loaded.mesh):
            for width, numbers in widths.group_by_width(lengths, settings, longest=self._longest).items():

                def attempt(some: Sequence[int], rows: int, width: int = width) -> list[tuple[float, bool]]:
                    return self._measured([pairs[number] for number in some], rows, width)

                for some, each in self._batching.over(numbers, attempt, tokens=width, logits=width):
                    found |= dict(zip(some, each, strict=True))
                    measured(len(some))
        return [found[number] for number in range(len(pairs))]

    def rows(self, width: int, count: int) -> int:
        """Returns the number of rows of the program for ``count`` pairs of this width."""
        return self._batching.rows(count, tokens=width, logits=width)

    def lowered(self, width: int, rows: int) -> Any:
        """Returns the program for ``rows`` pairs of this width as ``jax.stages.Lowered``.

        To be called inside ``mesh_context``.
        """
        sharding = NamedSharding(self._loaded.mesh, PartitionSpec(ROW_AXES))
        each = jax.ShapeDtypeStruct((rows, width), jnp.int32, sharding=sharding)
        return self._run.lower(self._state, each, each, each, each)

    def _measured(self, pairs: Sequence[Pair], rows: int, width: int) -> list[tuple[float, bool]]:
        batch = self._batch(pairs, rows, width)
        sums, likeliest = self._run(self._state, *shard_batch(batch, self._loaded.mesh).values())
        scored = zip(np.asarray(sums).tolist(), np.asarray(likeliest).tolist(), strict=True)
        return list(scored)[: len(pairs)]

    def _batch(self, pairs: Sequence[Pair], rows: int, width: int) -> dict[str, np.ndarray]:
        """Returns the program's arrays ``[rows, width]``; rows beyond the pairs are empty."""
        tokens, targets, counted, there = (np.zeros((rows, width), np.int32) for _ in range(4))
        for row, (context, rest) in enumerate(pairs):
            ids = [*context, *rest][-self._longest - 1 :]
            length = len(ids) - 1
            tokens[row, :length], targets[row, :length], there[row, :length] = ids[:-1], ids[1:], 1
            counted[row, max(0, length - len(rest)) : length] = 1
        there[len(pairs) :, 0] = 1  # attention over no positions yields NaN
        return {"tokens": tokens, "targets": targets, "counted": counted, "there": there}
