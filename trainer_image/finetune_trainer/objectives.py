"""What each method minimises: pure functions of a MaxText model and a batch.

SFT is MaxText's own loss. DPO (https://arxiv.org/abs/2305.18290) computes what Tunix's trainer does, with the sums that
weighting and evaluation need. ORPO (https://arxiv.org/abs/2403.07691) is here because Tunix's takes the odds of whole
answers, not the length-normalised ones of the paper's equation 1: their log1p(-exp(log p)) is zero beyond a few tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from maxtext.trainers.pre_train.train import loss_fn
from tunix.rl.common import selective_log_softmax
from tunix.sft.utils import build_positions_from_mask

from finetune_contract import MethodSpec
from finetune_trainer.data.layout import Batch
from finetune_trainer.sharding import shard_batch
from finetune_trainer.training.accumulation import microbatches

type Arrays = Mapping[str, jax.Array]

#: Rows of a batch whose reference is known carry it under these names.
REFERENCE = ("reference_chosen", "reference_rejected")


class Objective(Protocol):
    """``(model, batch) -> (mean loss, sums)``. Of the sums, ``nats`` over ``total_weights`` is the mean without what an
    architecture adds in training (the balance of experts); others are metrics, summed over the same."""

    metrics: ClassVar[tuple[str, ...]]
    """Names of those others."""
    per_token: ClassVar[bool]
    """Whether the loss is a mean over tokens, and its exponential a perplexity."""
    relative: ClassVar[bool]
    """Whether the batch must carry log-probabilities of the model that training began with."""

    def __call__(self, model: Any, batch: Arrays, *, train: bool) -> tuple[jax.Array, Arrays]: ...

    @staticmethod
    def tokens(batch: Batch) -> int:
        """Tokens of the batch whose probability counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftLoss:
    """SFT: MaxText's cross-entropy, over all trained tokens of the batch."""

    config: Any
    metrics: ClassVar[tuple[str, ...]] = ()
    per_token: ClassVar[bool] = True
    relative: ClassVar[bool] = False

    def __call__(self, model: Any, batch: Arrays, *, train: bool) -> tuple[jax.Array, Arrays]:
        loss, aux = loss_fn(model, self.config, dict(batch), dropout_rng=None, params=None, is_train=train)
        return loss, {"nats": aux["xent_sum"], "total_weights": aux["total_weights"]}

    @staticmethod
    def tokens(batch: Batch) -> int:
        return int(np.count_nonzero(batch["targets_segmentation"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreferenceLoss:
    """Over pairs of answers; a row without answers has no weight."""

    metrics: ClassVar[tuple[str, ...]] = ("reward_accuracy", "reward_margin")
    per_token: ClassVar[bool] = False
    relative: ClassVar[bool] = False

    def __call__(self, model: Any, batch: Arrays, *, train: bool) -> tuple[jax.Array, Arrays]:  # noqa: ARG002
        losses, better, worse = self.pairs(*log_probabilities(model, batch), batch)
        there = (batch["chosen_mask"][:, 0] != 0).astype(jnp.float32)
        weight = there.sum()
        sums = {
            "nats": (losses * there).sum(),
            "total_weights": weight,
            "reward_accuracy": ((better > worse) * there).sum(),
            "reward_margin": ((better - worse) * there).sum(),
        }
        return sums["nats"] / jnp.maximum(weight, 1.0), sums

    def pairs(
        self, chosen: jax.Array, rejected: jax.Array, batch: Arrays
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of each pair: loss, reward of the chosen answer, reward of the other."""
        raise NotImplementedError

    @staticmethod
    def tokens(batch: Batch) -> int:
        return int(np.count_nonzero(batch["chosen_mask"]) + np.count_nonzero(batch["rejected_mask"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoLoss(_PreferenceLoss):
    """Prefer the chosen answer more than the reference does; ``label_smoothing`` is the share of wrong labels."""

    beta: float
    label_smoothing: float
    relative: ClassVar[bool] = True

    def pairs(
        self, chosen: jax.Array, rejected: jax.Array, batch: Arrays
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        better, worse = (chosen - batch[REFERENCE[0]]), (rejected - batch[REFERENCE[1]])
        delta = better - worse
        losses = -(
            jax.nn.log_sigmoid(self.beta * delta) * (1 - self.label_smoothing)
            + jax.nn.log_sigmoid(-self.beta * delta) * self.label_smoothing
        )
        return losses, self.beta * better, self.beta * worse


@dataclass(frozen=True, slots=True, kw_only=True)
class OrpoLoss(_PreferenceLoss):
    """Imitate the chosen answer, and raise its odds over the other's with ``weight`` (the paper's lambda)."""

    weight: float

    def pairs(
        self, chosen: jax.Array, rejected: jax.Array, batch: Arrays
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        better, worse = (
            nats / jnp.maximum(batch[mask].sum(axis=-1), 1)
            for nats, mask in ((chosen, "chosen_mask"), (rejected, "rejected_mask"))
        )
        odds = (better - worse) - (_log_of_other(better) - _log_of_other(worse))
        return -better - self.weight * jax.nn.log_sigmoid(odds), self.weight * better, self.weight * worse


def _log_of_other(nats: jax.Array) -> jax.Array:
    """log(1 - exp(nats)). A token that is certain to float32 would be infinitely odd: it counts as all but certain."""
    return jnp.log(-jnp.expm1(jnp.minimum(nats, -1e-6)))


def objective_of(method: MethodSpec, config: Any) -> Objective:
    """``config`` is MaxText's."""
    if method.dpo is not None:
        return DpoLoss(beta=method.dpo.beta, label_smoothing=method.dpo.label_smoothing)
    if method.orpo is not None:
        return OrpoLoss(weight=method.orpo.weight)
    return SftLoss(config=config)


def log_probabilities(model: Any, batch: Arrays) -> tuple[jax.Array, jax.Array]:
    """Of the chosen and the rejected answers ``[pairs]``, each summed over its tokens, in one forward pass.

    Prompts stand at the right end of their columns, answers at the left of theirs, as Tunix lays them out.
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
        """``state`` gives the parameters at every use. ``rows``: of one forward pass, a divisor of those of each batch;
        None: whole batches."""
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
        """A model that is not trained."""
        graph, state = nnx.split(model)
        return cls(graph, lambda: state, mesh, rows=rows)

    @classmethod
    def copied(cls, model: Any, mesh: Mesh, *, rows: int) -> "ReferenceModel":
        """What ``model`` is now, whatever training makes of it."""
        graph, state = nnx.split(model)
        kept = jax.tree.map(jnp.copy, state)
        return cls(graph, lambda: kept, mesh, rows=rows)

    @classmethod
    def without_adapter(cls, model: Any, mesh: Mesh, *, rows: int) -> "ReferenceModel":
        """A model whose LoRA adapter alone is trained, with that at zero: costs no memory."""
        graph, _ = nnx.split(model)

        def state() -> Any:
            _, adapter, rest = nnx.split(model, nnx.LoRAParam, ...)
            return nnx.merge_state(jax.tree.map(jnp.zeros_like, adapter), rest)

        return cls(graph, state, mesh, rows=rows)

    def lowered(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
        """``jax.stages.Lowered`` of what ``of`` runs on the devices."""
        return self._known.lower(self._state(), batch)

    def of(self, batch: Batch) -> dict[str, np.ndarray]:
        """The batch with the reference's log-probabilities, on the host. Call inside the mesh and MaxText's rules."""
        values = self._known(self._state(), shard_batch(batch, self._mesh))
        return {**batch, **dict(zip(REFERENCE, map(np.asarray, values), strict=True))}
