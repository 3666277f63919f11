"""What a JAX device of each TPU family can do, and which slices a family has, from the catalogue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from finetune_contract.tpu import Chip, all_shapes, chips_of_topology, families
from finetune_trainer.compiled.cost import StepCost

#: By family, for those whose rates are published.
CHIPS: Mapping[str, Chip] = {name: each.chip for name, each in families().items() if each.chip is not None}


def is_slice(family: str, topology: str) -> bool:
    """``topology``: numbers above 0 with an x between them. Beyond the catalogue's slices, any that is made of whole
    cubes and no larger than a pod."""
    return topology in _named(family) or (
        _of_cubes(topology) and chips_of_topology(topology) <= (families()[family].cube_pod_chips or 0)
    )


def topologies(family: str) -> str:
    """Those of a family, for people to read."""
    named = ", ".join(_named(family))
    pod = families()[family].cube_pod_chips
    if pod is None:
        return named
    return f"{named}, and three multiples of 4 with up to {pod} chips, for example 4x4x8"


@cache
def _named(family: str) -> Sequence[str]:
    """Topologies that are not made of cubes, the smallest first."""
    found = {
        shape.topology for shape in all_shapes() if shape.family == family and not _of_cubes(shape.topology)
    }
    return sorted(found, key=chips_of_topology)


def _of_cubes(topology: str) -> bool:
    """Where chips lie in three dimensions, larger slices are made of cubes of 4x4x4."""
    sides = [int(side) for side in topology.split("x")]
    return len(sides) == 3 and all(side % 4 == 0 for side in sides)


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
