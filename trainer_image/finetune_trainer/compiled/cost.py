"""The cost of one step on a device, from the compiler's final program.

XLA's own cost analysis counts the body of a loop once, and MaxText's layers are a loop: here each body counts as often
as it runs. XLA's analysis also ignores what a kernel computes: attention and experts are counted by the sizes of their
operands.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jaxlib import _hlo, _jax  # type: ignore[attr-defined]  # what JAX's own analysis uses, untyped

from finetune_contract.tpu import Chip
from finetune_trainer.compiled.hlo_program import HloProgram

_SHAPE = re.compile(r"\b(pred|[a-z]+\d+)(?:e\d+m\d+\w*)?\[([\d,]*)\]")
_COLLECTIVE = re.compile(
    r" = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
#: JAX's flash attention: queries ``[..., heads, length, size]`` come before keys, which may have fewer heads.
_ATTENTION = re.compile(
    r"%splash_mha_(fwd|dq|dkv)\S* = .*? custom-call\(.*?operand_layout_constraints=\{(.*?\})\}"
)
#: Megablox' products by experts: rows ``[tokens, in]`` by ``[experts, in, out]``, in either order, and rows by rows,
#: which gives the gradient of the experts.
_EXPERTS = re.compile(r"%t?gmm\S* = .*? custom-call\(.*?operand_layout_constraints=\{(.*?\})\}")
_ROWS = re.compile(r"(?:bf16|f32)\[((?:\d+,)+\d+)\]")
_MATRICES = re.compile(r"(?:bf16|f32)\[((?:\d+,){2,}\d+)\]")
#: With a sliding window the attention kernel's first operand, ``[heads, blocks, blocks]``, is the grid of the blocks
#: that it visits, and the last, ``[masks, size, size]``, the masks of those that are visited in part. Without a window
#: the grid has all blocks, and the kernel computes the causal mask itself.
_GRID = re.compile(r"[su]\d+\[\d+,(\d+),(\d+)\]")
_PARTIAL = re.compile(r"(?:[su]\d+|pred)\[\d+,(\d+),(\d+)\]\{[\d,]*\}$")
#: Number of products of queries by keys, or of that size: forward, backward to queries, backward to keys and values.
_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Cost of one step on one device."""

    flops: float
    hbm_bytes: float
    """Bytes that the operations read and write, as if nothing stayed on the chip between them: an upper bound."""
    network_bytes: float
    """Bytes of the results of collective operations."""

    def __add__(self, other: "StepCost") -> "StepCost":
        return StepCost(
            flops=self.flops + other.flops,
            hbm_bytes=self.hbm_bytes + other.hbm_bytes,
            network_bytes=self.network_bytes + other.network_bytes,
        )

    def times(self, count: int) -> "StepCost":
        return StepCost(
            flops=self.flops * count,
            hbm_bytes=self.hbm_bytes * count,
            network_bytes=self.network_bytes * count,
        )


def cost_of(program: str) -> StepCost:
    """The cost of an optimized module, from its text (``Compiled.as_text()``)."""
    return _Counter(HloProgram(program)).cost()


class _Counter:
    def __init__(self, program: HloProgram) -> None:
        self._program = program

    @cached_property
    def _client(self) -> Any:
        return jax.local_devices(backend="cpu")[0].client

    def cost(self, name: str = "") -> StepCost:
        """The cost of one run of a computation, with loops inside it as often as they run."""
        name = name or self._program.entry
        total = self._once(name)
        for loop in self._program.loops(name):
            total += self.cost(loop.body).times(loop.trips)
            total += self._once(loop.body).times(-1)  # the analysis has counted it
        return total

    def _once(self, name: str) -> StepCost:
        counted: Mapping[str, float] = _jax.hlo_module_cost_analysis(
            self._client, _hlo.hlo_module_from_text(self._program.part(name))
        )
        lines = list(self._program.reached(name))
        return StepCost(
            flops=counted.get("flops", 0.0) + sum(map(_attention, lines)) + sum(map(_experts, lines)),
            hbm_bytes=counted.get("bytes accessed", 0.0),
            network_bytes=float(sum(map(_received, lines))),
        )


def _attention(line: str) -> float:
    """Operations of an attention kernel, which skips the half that a causal mask hides, and what is outside of a
    sliding window. 0 for any other line."""
    match = _ATTENTION.search(line)
    if match is None:
        return 0.0
    queries, keys, *_ = ([int(size) for size in sizes.split(",")] for sizes in _MATRICES.findall(match[2]))
    hidden = max(0.0, 1.0 - _visited(match[2]) / (queries[-2] * keys[-2]))
    return _PRODUCTS[match[1]] * math.prod(queries) * keys[-2] * (1.0 - hidden**2)


def _visited(operands: str) -> float:
    """Pairs of a query and a key in the blocks that an attention kernel visits for a head, those above the diagonal
    included. Infinite without a window."""
    grid, partial = _GRID.match(operands), _PARTIAL.search(operands)
    if grid is None or partial is None:
        return math.inf
    return math.prod(int(size) for found in (grid, partial) for size in found.groups())


def _experts(line: str) -> float:
    """Operations of a kernel that multiplies each row by its expert's matrix. 0 for any other line."""
    match = _EXPERTS.search(line)
    if match is None:
        return 0.0
    *_, rows, other = ([int(size) for size in sizes.split(",")] for sizes in _ROWS.findall(match[1]))
    matrix = other[1:] if len(other) > 2 else (rows[1], other[1])
    return 2.0 * rows[0] * math.prod(matrix)


def _received(line: str) -> int:
    """Bytes of a collective operation's result; 0 for any other line. Started ones list their input, too."""
    match = _COLLECTIVE.search(line)
    return max((_bytes(*shape) for shape in _SHAPE.findall(match[1])), default=0) if match else 0


def _bytes(kind: str, dimensions: str) -> int:
    bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
    return math.prod(int(size) for size in dimensions.split(",") if size) * bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineBounds:
    """Bounds on the duration of a step, in seconds."""

    low: float
    """Arithmetic at the published rate, or the state read and written once: no step is faster."""
    high: float
    """Arithmetic, memory and network in sequence, with each byte that the compiler counts moved through memory."""


def roofline(cost: StepCost, state_bytes: int, chip: Chip) -> RooflineBounds:
    """Roofline bounds of a step.

    Args:
        cost: of one step on one device.
        state_bytes: the least that a device reads and writes: its arguments and results.
    """
    compute = cost.flops * chip.devices / chip.bf16_flops
    memory = chip.devices / chip.hbm_bytes
    network = cost.network_bytes * chip.devices / chip.network_bytes
    return RooflineBounds(
        low=max(compute, state_bytes * memory), high=compute + cost.hbm_bytes * memory + network
    )
