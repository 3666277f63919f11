"""Mesh and precision of the Evaluate stage, and the number of rows that fit beside the model. Pure.

Training shards parameters by FSDP, which gathers each parameter at every use: once for thousands of tokens in training,
but once per token in decoding. Evaluation therefore uses tensor parallelism as far as heads and widths divide evenly,
replicates the weights per group of devices if memory allows, and holds them in the type used for multiplication.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from finetune_contract import MeshSpec, StageRequest
from finetune_contract.text_model import VALUE_BYTES
from finetune_trainer.families import ModelPlan

#: Maximum number of devices that share a matrix. Beyond it, decoding is bound by the network instead of by memory.
_MOST_SHARED = 8
#: Maximum fraction of a device's memory for the weights if they are replicated per group of devices.
_COPIES = 0.5
#: Fraction of a device's memory for weights, cache and activations together. The rest is left to the compiler and to
#: errors of the estimate.
_FILLED = 0.8
#: Maximum number of rows per group of devices; larger batches are hardly faster.
_MOST_ROWS = 64


def _placed(request: StageRequest, plan: ModelPlan, memory: int | None) -> StageRequest:
    """Returns the request with the mesh and precision of evaluation."""
    h = request.hyperparameters
    if h.compute_precision == "BF16":
        h = h.model_copy(update={"weight_precision": "BF16"})
    size = plan.parameters * VALUE_BYTES[h.weight_precision]
    return request.model_copy(update={"hyperparameters": h, "mesh": _mesh(request.mesh, plan, size, memory)})


def _mesh(mesh: MeshSpec, plan: ModelPlan, size: int, memory: int | None) -> MeshSpec:
    """Returns evaluation's mesh. ``size`` is the size of all weights in bytes.

    The rows of a batch divide evenly among the new mesh if they do so among ``mesh``.
    """
    inside = mesh.devices // mesh.slices
    sizes = [inside, *_shared_sizes(plan)]
    tensor = max(
        (
            shared
            for shared in (1, 2, 4, _MOST_SHARED)
            if shared % mesh.tensor == 0 and not any(each % shared for each in sizes)
        ),
        default=mesh.tensor,
    )
    groups = inside // tensor
    copies = memory is not None and size / tensor <= _COPIES * memory
    return mesh.model_copy(
        update={
            "tensor": tensor,
            "data": mesh.slices * groups if copies else mesh.slices,
            "fsdp": 1 if copies else groups,
        }
    )


def _shared_sizes(plan: ModelPlan) -> Iterator[int]:
    """Yields the sizes that the number of devices that share a matrix must divide."""
    yield from (plan.heads, plan.kv_heads, plan.head_dim, plan.hidden_size, plan.vocab_size)
    if plan.experts is None or plan.experts.dense_layers:
        yield plan.intermediate_size
    if plan.experts is not None:
        yield plan.experts.width
    if plan.latent is not None:
        yield from (plan.latent.rank, plan.latent.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRowCapacity:
    """Number of rows that fit on the devices beside the weights."""

    plan: ModelPlan
    request: StageRequest
    """Request with evaluation's mesh and precision."""
    memory: int | None
    """Bytes of a device's memory that a program may use; None if unknown."""

    @classmethod
    def of(cls, request: StageRequest, plan: ModelPlan, *, memory: int | None) -> Self:
        """Returns the capacity for a request with the mesh and precision of training."""
        return cls(plan=plan, request=_placed(request, plan, memory), memory=memory)

    @property
    def groups(self) -> int:
        """Number of groups of devices; each group has its own rows."""
        return self.request.mesh.data * self.request.mesh.fsdp

    def rows(self, *, tokens: int, logits: int) -> int:
        """Returns the number of rows that fit, a multiple of ``groups``.

        Each row has a cache or activations for ``tokens`` positions and logits for ``logits`` positions at once. If the
        memory is unknown, returns the microbatch size of training.
        """
        if self.memory is None:
            return self.request.hyperparameters.microbatch_size
        free = _FILLED * self.memory - self._weights
        fitting = int(free // self._row(tokens, logits))
        each = min(max(1, fitting), _MOST_ROWS)
        return self.groups << (each.bit_length() - 1)

    @property
    def _weights(self) -> float:
        mesh, precision = self.request.mesh, self.request.hyperparameters.weight_precision
        return self.plan.parameters * VALUE_BYTES[precision] / (mesh.tensor * mesh.fsdp)

    def _row(self, tokens: int, logits: int) -> float:
        """Returns an upper bound of a row's bytes on each device that shares it.

        Includes the cache, which is copied once when filled, one layer's activations, and logits in float32 with their
        log-probabilities.
        """
        plan, tensor = self.plan, self.request.mesh.tensor
        size = VALUE_BYTES[self.request.hyperparameters.compute_precision]
        values = plan.latent.value_dim if plan.latent is not None else plan.head_dim
        cache = 2 * plan.layers * plan.kv_heads * (plan.head_dim + values) * size / tensor
        inner = plan.intermediate_size
        if plan.experts is not None:
            inner = max(inner, plan.experts.chosen * (plan.experts.width + plan.hidden_size))
        layer = 8 * plan.hidden_size * size + 4 * (inner + plan.heads * plan.head_dim) * size / tensor
        return tokens * (cache + layer) + logits * 3 * plan.vocab_size * 4 / tensor
