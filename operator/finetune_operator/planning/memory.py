"""Memory check of preflight: proves that the training fits the memory before a slice is claimed."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune_contract import MemoryCheckSpec, MeshSpec, SliceCandidate, SliceShape
from finetune_contract.request import SLICE_VARIABLES
from finetune_operator.catalog import CatalogError, TpuShape, shape_by_topology
from finetune_operator.planning.choice import slice_label
from finetune_operator.planning.slice_plan import SlicePlan
from finetune_operator.planning.topology import Placement, SliceOffer, flags_of

type Object = Mapping[str, Any]

#: Larger slices to report; more than preflight could compile for, so that a refusal can name the first that fits.
_LARGER = 4


def resolve_memory(
    source: str, site: SlicePlan, candidates: Sequence[SlicePlan], profile: Object, resources: Object
) -> MemoryCheckSpec | None:
    """Resolves ``spec.preflight.memory`` for the job at ``site``; None if it is Off.

    ``candidates`` are the slices that preflight may choose instead.
    """
    if source == "Off":
        return None
    devices = site.mesh.devices // site.mesh.slices
    return MemoryCheckSpec(
        source="Analytic" if source == "Analytic" else "Compile",
        slice=_slice(site.placement.shape, devices),
        candidates=[_candidate(each, profile) for each in candidates],
        larger=list(_larger(site.placement.shape, profile, resources)),
        choose_parallelism=not resources.get("parallelism"),
    )


def without_choice(check: MemoryCheckSpec) -> MemoryCheckSpec:
    """Returns the check without candidates and slice flags, for a trainer image that does not support them."""
    larger = [each.model_copy(update={"flags": None}) for each in check.larger]
    return check.model_copy(update={"candidates": [], "larger": larger})


def compiler_flags(placement: Placement, env: Sequence[Object], *, pathways: bool) -> Mapping[str, str]:
    """Returns the compiler variables of the processes on that slice; empty under Pathways, whose servers compile.

    ``env`` holds the profile's additions to every pod.
    """
    return {} if pathways else _with_added(placement.flags, env)


def _with_added(flags: Mapping[str, str], env: Sequence[Object]) -> Mapping[str, str]:
    added = {each["name"]: each["value"] for each in env if each["name"] in SLICE_VARIABLES}
    return {**flags, **added}


def place_name(check: MemoryCheckSpec, mesh: MeshSpec) -> str:
    """Returns the name under which the trainer reports what it has compiled for: ``2 x v6e-16``."""
    return slice_label(check.slice.name, mesh.slices)


def chosen_mesh(planned: MeshSpec, found: MeshSpec | None) -> MeshSpec:
    """Returns ``planned`` with the axes that preflight may choose.

    The job's own account can write preflight's record, so a mesh that does not cover the slice is ignored.
    """
    if found is None or found.fsdp < 1 or found.tensor < 1:
        return planned
    chosen = planned.model_copy(update={"fsdp": found.fsdp, "tensor": found.tensor})
    return chosen if chosen.devices == planned.devices else planned


def _candidate(site: SlicePlan, profile: Object) -> SliceCandidate:
    shape = _slice(site.placement.shape, site.mesh.devices // site.mesh.slices)
    flags = compiler_flags(site.placement, _env(profile), pathways=site.pathways is not None)
    return SliceCandidate(slice=shape.model_copy(update={"flags": dict(flags)}), mesh=site.mesh)


def _env(profile: Object) -> Sequence[Object]:
    return tuple(profile.get("pod", {}).get("env", ()))


def _larger(shape: TpuShape, profile: Object, resources: Object) -> Sequence[SliceShape]:
    """Returns slices of the profile with more total memory, in ascending order of size."""
    offered: dict[tuple[str, str], SliceShape] = {}
    slices, pathways = resources["slices"], resources["controller"] == "Pathways"
    for flavor in profile["flavors"]:
        for topology in flavor["topologies"] if flavor.get("maxSlices", 1) >= slices else ():
            try:
                each = shape_by_topology(
                    flavor["accelerator"], topology, chips_per_host=flavor.get("chipsPerHost")
                )
            except CatalogError:  # a name that means two machines; the flavor does not say which
                continue
            if each.devices_per_chip and _memory(each) > _memory(shape) and (slices == 1 or each.multi_host):
                flags = _with_added(flags_of(SliceOffer(shape=each, flavor=flavor)), _env(profile))
                larger = _slice(each, each.chips * each.devices_per_chip)
                larger = larger.model_copy(update={"flags": {} if pathways else dict(flags)})
                offered.setdefault((each.accelerator, topology), larger)
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
