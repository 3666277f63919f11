"""What preflight is told so that it can prove the training's memory before a slice is claimed."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import MemoryCheck, MeshSpec, SliceShape
from finetune_operator.catalog import CatalogError, TpuShape, shape_by_topology
from finetune_operator.planning.topology import Placement

#: More than it could compile: a refusal names the first that fits.
_LARGER = 4


def resolve_memory(
    source: str,
    placement: Placement,
    mesh: MeshSpec,
    profile: Mapping[str, Any],
    resources: Mapping[str, Any],
) -> MemoryCheck | None:
    """``spec.preflight.memory`` for the slice that was chosen; None where it is Off."""
    if source == "Off":
        return None
    return MemoryCheck(
        source="Analytic" if source == "Analytic" else "Compile",
        slice=_slice(placement.shape, mesh.devices // mesh.slices),
        larger=list(_larger(placement.shape, profile["flavors"], resources["slices"])),
        choose_parallelism=not resources.get("parallelism"),
    )


def place_name(check: MemoryCheck, mesh: MeshSpec) -> str:
    """As the trainer tells what it has compiled for: ``2 x v6e-16``."""
    return f"{mesh.slices} x {check.slice.name}" if mesh.slices > 1 else check.slice.name


def _larger(shape: TpuShape, flavors: Sequence[Mapping[str, Any]], slices: int) -> Sequence[SliceShape]:
    """Slices of the profile with more memory in all, the smallest first."""
    offered: dict[tuple[str, str], SliceShape] = {}
    for flavor in flavors:
        for topology in flavor["topologies"] if flavor.get("maxSlices", 1) >= slices else ():
            try:
                each = shape_by_topology(
                    flavor["accelerator"], topology, chips_per_host=flavor.get("chipsPerHost")
                )
            except CatalogError:  # a name that means two machines; the flavor does not say which
                continue
            if each.devices_per_chip and _memory(each) > _memory(shape) and (slices == 1 or each.multi_host):
                offered.setdefault(
                    (each.accelerator, topology), _slice(each, each.chips * each.devices_per_chip)
                )
    ordered = sorted(offered.values(), key=lambda each: (each.chips * (each.hbm_gib or 0), each.chips))
    return ordered[:_LARGER]


def _memory(shape: TpuShape) -> int:
    return shape.chips * (shape.hbm_gib_per_chip or 0)


def _slice(shape: TpuShape, devices: int) -> SliceShape:
    return SliceShape(
        name=shape.name,
        family=shape.family,
        topology=shape.topology,
        hosts=shape.hosts,
        chips=shape.chips,
        devices=devices,
        hbm_gib=shape.hbm_gib_per_chip,
    )
