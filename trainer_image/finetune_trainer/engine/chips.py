"""Performance of a JAX device of each TPU family, and the slices of a family, from the catalogue."""

from collections.abc import Mapping, Sequence
from functools import cache

from finetune_contract.tpu import Chip, all_shapes, chips_of_topology, families

#: Chips by family, for those whose rates are published.
CHIPS: Mapping[str, Chip] = {name: each.chip for name, each in families().items() if each.chip is not None}


def is_slice(family: str, topology: str) -> bool:
    """Whether the family has a slice of this topology.

    ``topology``: numbers above 0 joined with x. Beyond the catalogue's slices, any topology that is made of whole cubes
    and no larger than a pod.
    """
    return topology in _named(family) or (
        _of_cubes(topology) and chips_of_topology(topology) <= (families()[family].cube_pod_chips or 0)
    )


def topologies(family: str) -> str:
    """A family's topologies, for messages."""
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
    """Whether slices of this topology are made of cubes of 4x4x4, as larger ones with three dimensions are."""
    sides = [int(side) for side in topology.split("x")]
    return len(sides) == 3 and all(side % 4 == 0 for side in sides)


def peak_flops(device_kind: str) -> float | None:
    """Operations per second of one JAX device in bfloat16; None if the device is not a TPU of the table."""
    return next((chip.bf16_flops / chip.devices for chip in CHIPS.values() if chip.kind == device_kind), None)


def usable_bytes(device_kind: str) -> int | None:
    """Bytes of one JAX device's memory that a program may use; None if the device is not a TPU of the table."""
    found = next((chip.usable_gib for chip in CHIPS.values() if chip.kind == device_kind), None)
    return None if found is None else int(found * 2**30)
