"""Log-probabilities of given texts under a MaxText model: a batch at a time, in one compiled program."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from jax.sharding import NamedSharding, PartitionSpec

from finetune_trainer.evaluation.models import LoadedModel
from finetune_trainer.spread import ROW_AXES, to_devices

#: The width of the narrowest program, a multiple of what attention kernels want.
_SHORTEST = 128
type Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context, not empty, and of what follows it."""


class Likelihood:
    """Of one model. Compiles once for each power of two that a batch's longest pair needs."""

    def __init__(self, loaded: LoadedModel, *, tokens: int, longest: int) -> None:
        """``tokens``: of one forward pass over all devices, where a single row is not longer. ``longest``: the model's
        context; a longer pair loses its beginning."""
        self._loaded, self._tokens, self._longest = loaded, tokens, longest
        self._devices = int(np.prod([loaded.mesh.shape[axis] for axis in ROW_AXES]))
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

    def of(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        """For each pair the sum of the log-probabilities (nats) of what follows its context, and whether every token of
        it is the likeliest; every process returns the same."""
        found: dict[int, tuple[float, bool]] = {}
        by_width: dict[int, list[int]] = {}
        for number, (context, rest) in enumerate(pairs):
            length = min(len(context) + len(rest) - 1, self._longest)
            by_width.setdefault(max(_SHORTEST, 1 << (length - 1).bit_length()), []).append(number)
        with jax.set_mesh(self._loaded.mesh), logical_axis_rules(self._loaded.config.logical_axis_rules):
            for width, numbers in sorted(by_width.items()):
                rows = max(1, self._tokens // width // self._devices) * self._devices
                for start in range(0, len(numbers), rows):
                    some = numbers[start : start + rows]
                    batch = self._batch([pairs[number] for number in some], rows, width)
                    sums, likeliest = self._run(self._state, *to_devices(batch, self._loaded.mesh).values())
                    told = zip(some, np.asarray(sums).tolist(), np.asarray(likeliest).tolist(), strict=False)
                    found |= {number: (nats, greedy) for number, nats, greedy in told}
        return [found[number] for number in range(len(pairs))]

    def _batch(self, pairs: Sequence[Pair], rows: int, width: int) -> dict[str, np.ndarray]:
        """Arrays ``[rows, width]``; rows beyond the pairs are empty."""
        tokens, targets, counted, there = (np.zeros((rows, width), np.int32) for _ in range(4))
        for row, (context, rest) in enumerate(pairs):
            ids = [*context, *rest][-self._longest - 1 :]
            length = len(ids) - 1
            tokens[row, :length], targets[row, :length], there[row, :length] = ids[:-1], ids[1:], 1
            counted[row, max(0, length - len(rest)) : length] = 1
        there[len(pairs) :, 0] = 1  # attention over nothing is no number
        return {"tokens": tokens, "targets": targets, "counted": counted, "there": there}
