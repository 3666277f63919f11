"""How the Evaluate stage lays a model out on the devices, and how many rows they hold beside it. Pure.

Training shares parameters by FSDP, which gathers each of them at every use: once for thousands of tokens when it
trains, but once for every token when it decodes. So evaluation shares the matrices themselves (tensor parallelism) as
far as heads and widths divide, keeps a copy for each group of devices where memory allows it, and holds weights in the
type that they are multiplied in.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from finetune_contract import MeshSpec, StageRequest
from finetune_trainer.families import ModelPlan

#: Most devices that share a matrix: beyond it a token waits longer for the network than for memory.
_MOST_SHARED = 8
#: Share of a device's memory that the weights may take where every group of devices holds them all.
_COPIES = 0.5
#: Share that weights, cache and activations together may take; the rest is the compiler's and what estimates miss.
_FILLED = 0.8
#: Rows of a group of devices beyond which a larger batch is hardly faster.
_MOST_ROWS = 64
_BYTES = {"BF16": 2, "FP32": 4}


def _placed(request: StageRequest, plan: ModelPlan, memory: int | None) -> StageRequest:
    """With evaluation's mesh and precision."""
    h = request.hyperparameters
    if h.compute_precision == "BF16":
        h = h.model_copy(update={"weight_precision": "BF16"})
    size = plan.parameters * _BYTES[h.weight_precision]
    return request.model_copy(update={"hyperparameters": h, "mesh": _mesh(request.mesh, plan, size, memory)})


def _mesh(mesh: MeshSpec, plan: ModelPlan, size: int, memory: int | None) -> MeshSpec:
    """``size``: bytes of all weights. Rows of a batch divide among the new mesh as they do among ``mesh``."""
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
    """Sizes that devices which share a matrix must divide."""
    yield from (plan.heads, plan.kv_heads, plan.head_dim, plan.hidden_size, plan.vocab_size)
    if plan.experts is None or plan.experts.dense_layers:
        yield plan.intermediate_size
    if plan.experts is not None:
        yield plan.experts.width
    if plan.latent is not None:
        yield from (plan.latent.rank, plan.latent.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRowCapacity:
    """What the devices hold beside the weights."""

    plan: ModelPlan
    request: StageRequest
    """With evaluation's mesh and precision."""
    memory: int | None
    """Bytes that a program may use on a device; None where that is not known."""

    @classmethod
    def of(cls, request: StageRequest, plan: ModelPlan, *, memory: int | None) -> Self:
        """``request``: with the mesh and the precision of training."""
        return cls(plan=plan, request=_placed(request, plan, memory), memory=memory)

    @property
    def groups(self) -> int:
        """Of devices, each with rows of its own."""
        return self.request.mesh.data * self.request.mesh.fsdp

    def rows(self, *, tokens: int, logits: int) -> int:
        """How many rows go together, a multiple of ``groups``: each with a cache or activations for ``tokens``
        positions, and logits for ``logits`` of them at once. Where memory is not known, those of a training's forward
        pass."""
        if self.memory is None:
            return self.request.hyperparameters.microbatch_size
        free = _FILLED * self.memory - self._weights
        fitting = int(free // self._row(tokens, logits))
        each = min(max(1, fitting), _MOST_ROWS)
        return self.groups << (each.bit_length() - 1)

    @property
    def _weights(self) -> float:
        mesh, precision = self.request.mesh, self.request.hyperparameters.weight_precision
        return self.plan.parameters * _BYTES[precision] / (mesh.tensor * mesh.fsdp)

    def _row(self, tokens: int, logits: int) -> float:
        """Bytes of a row on each of the devices that share it, from above: a cache that is copied once when it is
        filled, a layer's activations, logits in float32 beside their logarithms."""
        plan, tensor = self.plan, self.request.mesh.tensor
        size = _BYTES[self.request.hyperparameters.compute_precision]
        values = plan.latent.value_dim if plan.latent is not None else plan.head_dim
        cache = 2 * plan.layers * plan.kv_heads * (plan.head_dim + values) * size / tensor
        inner = plan.intermediate_size
        if plan.experts is not None:
            inner = max(inner, plan.experts.chosen * (plan.experts.width + plan.hidden_size))
        layer = 8 * plan.hidden_size * size + 4 * (inner + plan.heads * plan.head_dim) * size / tensor
        return tokens * (cache + layer) + logits * 3 * plan.vocab_size * 4 / tensor
