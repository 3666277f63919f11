"""What a training step minimizes: pure functions of a MaxText model and a batch, and the reference model.

The loss on texts is MaxText's own. Losses on preference pairs are those of the methods
(:mod:`finetune_trainer.methods`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from maxtext.trainers.pre_train.train import loss_fn
from maxtext.utils.max_utils import cross_entropy_with_logits
from tunix.rl.common import selective_log_softmax
from tunix.sft.utils import build_positions_from_mask

from finetune_trainer.data.layout import Batch
from finetune_trainer.engine.accumulation import microbatches
from finetune_trainer.engine.sharding import shard_batch
from finetune_trainer.methods.base import REFERENCE, Arrays


class Objective(Protocol):
    """``(model, batch) -> (mean loss, sums)``.

    Of the sums, ``nats`` over ``total_weights`` is the mean without what an architecture adds in training (the load
    balancing of experts); others are metrics, summed over the same weights.
    """

    metrics: ClassVar[tuple[str, ...]]
    """Names of the sums that are metrics."""
    per_token: ClassVar[bool]
    """Whether the loss is a mean over tokens, so that its exponential is a perplexity."""

    @property
    def relative(self) -> bool:
        """Whether the batch must contain log-probabilities of the model that training began with."""

    def __call__(self, model: Any, batch: Arrays, *, train: bool) -> tuple[jax.Array, Arrays]: ...

    def parts(self, model: Any, batch: Arrays) -> Arrays:
        """What ``nats`` and the metrics are sums of: a value for each element of ``examples``, 0 where that is 0.

        A model that computes its logits in tiles returns the sums themselves, as scalars.
        """

    @staticmethod
    def examples(batch: Batch) -> npt.NDArray[np.int32]:
        """What has a weight of 1 in the sums, as the number of its example in the row, from 1; 0: a weight of 0.

        Of texts the target tokens ``[rows, length]``; of pairs the pairs ``[rows]``.
        """

    @staticmethod
    def tokens(batch: Batch) -> int:
        """Number of tokens of the batch whose probability counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftLoss:
    """Loss on texts: MaxText's cross-entropy, over all trained tokens of the batch."""

    config: Any
    metrics: ClassVar[tuple[str, ...]] = ()
    per_token: ClassVar[bool] = True
    relative: ClassVar[bool] = False

    def __call__(self, model: Any, batch: Arrays, *, train: bool) -> tuple[jax.Array, Arrays]:
        loss, aux = loss_fn(model, self.config, dict(batch), dropout_rng=None, params=None, is_train=train)
        return loss, {"nats": aux["xent_sum"], "total_weights": aux["total_weights"]}

    def parts(self, model: Any, batch: Arrays) -> Arrays:
        if self.config.num_vocab_tiling > 1:
            return {"nats": self(model, batch, train=False)[1]["nats"]}
        # As in MaxText's ``loss_fn``, which returns nothing but the sum.
        logits = model(
            decoder_input_tokens=batch["inputs"],
            decoder_positions=batch["inputs_position"],
            decoder_segment_ids=batch["inputs_segmentation"],
            enable_dropout=False,
            decoder_target_tokens=batch["targets"],
            decoder_target_mask=batch["targets_segmentation"],
        )
        targets = jax.nn.one_hot(batch["targets"], self.config.vocab_size)
        nats, _ = cross_entropy_with_logits(logits, targets, z_loss=self.config.z_loss_multiplier)
        return {"nats": jnp.where(batch["targets_segmentation"] != 0, nats, 0.0)}

    @staticmethod
    def examples(batch: Batch) -> npt.NDArray[np.int32]:
        return batch["targets_segmentation"]

    @staticmethod
    def tokens(batch: Batch) -> int:
        return int(np.count_nonzero(batch["targets_segmentation"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Loss on preference pairs; a row without answers has no weight."""

    compare: Callable[[jax.Array, jax.Array, Arrays], tuple[jax.Array, jax.Array, jax.Array]]
    """:meth:`.methods.base.Comparison.compare`."""
    relative: bool
    metrics: ClassVar[tuple[str, ...]] = ("reward_accuracy", "reward_margin")
    per_token: ClassVar[bool] = False

    def __call__(self, model: Any, batch: Arrays, *, train: bool) -> tuple[jax.Array, Arrays]:  # noqa: ARG002
        sums = {name: each.sum() for name, each in self.parts(model, batch).items()}
        weight = (batch["chosen_mask"][:, 0] != 0).astype(jnp.float32).sum()
        return sums["nats"] / jnp.maximum(weight, 1.0), {**sums, "total_weights": weight}

    def parts(self, model: Any, batch: Arrays) -> Arrays:
        losses, better, worse = self.compare(*log_probabilities(model, batch), batch)
        there = (batch["chosen_mask"][:, 0] != 0).astype(jnp.float32)
        return {
            "nats": losses * there,
            # A tie is half right: a model that equals its reference prefers neither answer.
            "reward_accuracy": jnp.where(better == worse, 0.5, better > worse) * there,
            "reward_margin": (better - worse) * there,
        }

    @staticmethod
    def examples(batch: Batch) -> npt.NDArray[np.int32]:
        return np.asarray(batch["chosen_mask"][:, 0] != 0, np.int32)

    @staticmethod
    def tokens(batch: Batch) -> int:
        return int(np.count_nonzero(batch["chosen_mask"]) + np.count_nonzero(batch["rejected_mask"]))


def log_probabilities(model: Any, batch: Arrays) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of the chosen and the rejected answers ``[pairs]``, each summed over its tokens.

    Computed in one forward pass. Prompts are right-aligned in their columns, answers left-aligned, as in Tunix.
    """
    prompt, seen = (jnp.concatenate([batch[f"prompt_{part}"]] * 2) for part in ("ids", "mask"))
    answer, counted = (
        jnp.concatenate([batch[f"chosen_{part}"], batch[f"rejected_{part}"]]) for part in ("ids", "mask")
    )
    mask = jnp.concatenate([seen, counted], axis=1)
    logits = model(
        decoder_input_tokens=jnp.concatenate([prompt, answer], axis=1),
        decoder_positions=build_positions_from_mask(mask),
        decoder_segment_ids=mask,
        enable_dropout=False,
    )
    nnx.pop(model, nnx.Intermediate)
    each = selective_log_softmax(logits[:, -answer.shape[1] - 1 : -1], answer)
    sums = (each * counted).sum(axis=-1)
    pairs = sums.shape[0] // 2
    return sums[:pairs], sums[pairs:]


class ReferenceModel:
    """The model that training began with: adds its log-probabilities to batches."""

    def __init__(self, graph: Any, state: Callable[[], Any], mesh: Mesh, *, rows: int | None) -> None:
        """``state`` returns the parameters at every use.

        ``rows``: rows of one forward pass, a divisor of those of each batch; None for whole batches.
        """
        self._state, self._mesh = state, mesh

        def known(state: Any, batch: Arrays) -> tuple[jax.Array, ...]:
            parts = 1 if rows is None else len(batch["prompt_ids"]) // rows
            if parts == 1:
                return log_probabilities(nnx.merge(graph, state, copy=True), batch)
            each = jax.lax.map(
                lambda part: log_probabilities(nnx.merge(graph, state, copy=True), part),
                microbatches(batch, parts),
            )
            return tuple(jnp.swapaxes(values, 0, 1).reshape(-1) for values in each)

        whole = NamedSharding(mesh, PartitionSpec())
        self._known = jax.jit(known, out_shardings=(whole, whole))

    @classmethod
    def itself(cls, model: Any, mesh: Mesh, *, rows: int | None = None) -> "ReferenceModel":
        """A reference that is the model itself, which is not trained."""
        graph, state = nnx.split(model)
        return cls(graph, lambda: state, mesh, rows=rows)

    @classmethod
    def copied(cls, model: Any, mesh: Mesh, *, rows: int) -> "ReferenceModel":
        """A reference that copies ``model`` in its current state, before training changes it."""
        graph, state = nnx.split(model)
        kept = jax.tree.map(jnp.copy, state)
        return cls(graph, lambda: kept, mesh, rows=rows)

    @classmethod
    def without_adapter(cls, model: Any, mesh: Mesh, *, rows: int) -> "ReferenceModel":
        """A reference for a model of which only the LoRA adapter is trained: the adapter at zero. Takes no memory."""
        graph, _ = nnx.split(model)

        def state() -> Any:
            _, adapter, rest = nnx.split(model, nnx.LoRAParam, ...)
            return nnx.merge_state(jax.tree.map(jnp.zeros_like, adapter), rest)

        return cls(graph, state, mesh, rows=rows)

    def lowered(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
        """``jax.stages.Lowered`` of the program that ``of`` runs on the devices."""
        return self._known.lower(self._state(), batch)

    def of(self, batch: Batch) -> dict[str, np.ndarray]:
        """The batch with the reference's log-probabilities, on the host. Call inside the mesh and MaxText's rules."""
        values = self._known(self._state(), shard_batch(batch, self._mesh))
        return {**batch, **dict(zip(REFERENCE, map(np.asarray, values), strict=True))}
