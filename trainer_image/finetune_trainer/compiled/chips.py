"""What a JAX device of each TPU family can do, as its maker publishes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from finetune_trainer.compiled.cost import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Rates per chip and second."""

    bf16_flops: float
    hbm_bytes: float
    network_bytes: float
    """Between the chips of a slice, all links together, one way."""
    kind: str
    """JAX's name of a device; the compiler for a slice that is not there says the same."""
    usable_gib: float
    """Of memory that a program may use on one JAX device, as the compiler reports it."""
    devices: int = 1
    """JAX devices that share the rates."""


#: docs.cloud.google.com/tpu/docs: one page per family. Network: the published bits per second of all links, halved.
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(kind="TPU v4", bf16_flops=275e12, hbm_bytes=1228e9, network_bytes=150e9, usable_gib=31.24),
    "v5e": Chip(
        kind="TPU v5 lite", bf16_flops=197e12, hbm_bytes=819e9, network_bytes=100e9, usable_gib=15.75
    ),
    "v5p": Chip(kind="TPU v5", bf16_flops=459e12, hbm_bytes=2765e9, network_bytes=300e9, usable_gib=95.73),
    "v6e": Chip(
        kind="TPU v6 lite", bf16_flops=918e12, hbm_bytes=1638e9, network_bytes=224e9, usable_gib=31.24
    ),
    "tpu7x": Chip(
        kind="TPU7x", bf16_flops=2307e12, hbm_bytes=7380e9, network_bytes=600e9, usable_gib=94.74, devices=2
    ),
}


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BELOW_A_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
#: Topologies of slices by family. Where chips lie in three dimensions, larger slices are made of cubes of 4x4x4.
_TOPOLOGIES: Mapping[str, Sequence[str]] = {
    "v4": _BELOW_A_CUBE,
    "v5e": _FLAT,
    "v5p": _BELOW_A_CUBE,
    "v6e": _FLAT,
    "tpu7x": ("1x1x1", *_BELOW_A_CUBE),
}
#: Chips of a pod, for the families whose slices are made of cubes.
_POD = {"v4": 4096, "v5p": 8960, "tpu7x": 9216}


def is_slice(family: str, topology: str) -> bool:
    """``topology``: numbers above 0 with an x between them."""
    sides = [int(side) for side in topology.split("x")]
    of_cubes = len(sides) == 3 and all(side % 4 == 0 for side in sides) and prod(sides) <= _POD.get(family, 0)
    return topology in _TOPOLOGIES[family] or of_cubes


def topologies(family: str) -> str:
    """Those of a family, for people to read."""
    named = ", ".join(_TOPOLOGIES[family])
    if family not in _POD:
        return named
    return f"{named}, and three multiples of 4 with up to {_POD[family]} chips, for example 4x4x8"


def peak_flops(device_kind: str) -> float | None:
    """Of one JAX device, per second in bfloat16; None for one that is no TPU of the table."""
    return next((chip.bf16_flops / chip.devices for chip in CHIPS.values() if chip.kind == device_kind), None)


def usable_bytes(device_kind: str) -> int | None:
    """Memory of one JAX device that a program may use; None for one that is no TPU of the table."""
    found = next((chip.usable_gib for chip in CHIPS.values() if chip.kind == device_kind), None)
    return None if found is None else int(found * 2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineBounds:
    """Seconds of a step."""

    low: float
    """Arithmetic at the published rate, or the state read and written once: no step is faster."""
    high: float
    """Arithmetic, memory and network one after the other, each byte that the compiler counts moved through memory."""


def roofline(cost: StepCost, state_bytes: int, chip: Chip) -> RooflineBounds:
    """Args:
    cost: of one step on one device.
    state_bytes: what a device reads and writes at least: its arguments and results.
    """
    compute = cost.flops * chip.devices / chip.bf16_flops
    memory = chip.devices / chip.hbm_bytes
    network = cost.network_bytes * chip.devices / chip.network_bytes
    return RooflineBounds(
        low=max(compute, state_bytes * memory), high=compute + cost.hbm_bytes * memory + network
    )
