"""Memory check of preflight: proves that the training fits the memory before a slice is claimed."""

from collections.abc import Mapping, Sequence

from finetune_contract import MemoryCheckSpec, MeshSpec, SliceCandidate, SliceShape
from finetune_contract.request import SLICE_VARIABLES
from finetune_operator.api.placement import Controller, Parallelism
from finetune_operator.api.policies import MemoryCheck
from finetune_operator.api.profile import EnvVar
from finetune_operator.catalog import CatalogError, TpuShape, shape_by_topology
from finetune_operator.planning.defaulted import DefaultedProfileSpec, DefaultedResources
from finetune_operator.planning.slices.choice import slice_label
from finetune_operator.planning.slices.slice_plan import SlicePlan
from finetune_operator.planning.slices.topology import SliceOffer, flags_of

#: Larger slices to report; more than preflight could compile for, so that a refusal can name the first that fits.
_LARGER = 4


def resolve_memory(
    source: MemoryCheck,
    site: SlicePlan,
    candidates: Sequence[SlicePlan],
    profile: DefaultedProfileSpec,
    resources: DefaultedResources,
) -> MemoryCheckSpec | None:
    """Resolves ``spec.preflight.memory`` for the job at ``site``; None if it is Off.

    ``candidates`` are the slices that preflight may choose instead.
    """
    if source is MemoryCheck.OFF:
        return None
    devices = site.mesh.devices // site.mesh.slices
    return MemoryCheckSpec(
        source=source,
        slice=_slice(site.placement.shape, devices),
        candidates=[_candidate(each, profile) for each in candidates],
        larger=list(_larger(site.placement.shape, profile, resources)),
        choose_parallelism=resources.parallelism == Parallelism(),
    )


def compiler_flags(flags: Mapping[str, str], env: Sequence[EnvVar], *, pathways: bool) -> Mapping[str, str]:
    """Returns the compiler variables of the processes on a slice; empty under Pathways, whose servers compile.

    ``flags`` are the flavor's, and ``env`` holds the profile's additions to every pod, which come before them.
    """
    added = {each.name: each.value for each in env if each.name in SLICE_VARIABLES}
    return {} if pathways else {**flags, **added}


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


def _candidate(site: SlicePlan, profile: DefaultedProfileSpec) -> SliceCandidate:
    shape = _slice(site.placement.shape, site.mesh.devices // site.mesh.slices)
    flags = compiler_flags(site.placement.flags, profile.pod.env, pathways=site.pathways is not None)
    return SliceCandidate(slice=shape.model_copy(update={"flags": flags}), mesh=site.mesh)


def _larger(
    shape: TpuShape, profile: DefaultedProfileSpec, resources: DefaultedResources
) -> Sequence[SliceShape]:
    """Returns slices of the profile with more total memory, in ascending order of size."""
    offered: dict[tuple[str, str], SliceShape] = {}
    slices, pathways = resources.slices, resources.controller is Controller.PATHWAYS
    for flavor in profile.flavors:
        for topology in flavor.topologies if flavor.max_slices >= slices else ():
            try:
                each = shape_by_topology(flavor.accelerator, topology, chips_per_host=flavor.chips_per_host)
            except CatalogError:  # a name that means two machines; the flavor does not say which
                continue
            if each.devices_per_chip and _memory(each) > _memory(shape) and (slices == 1 or each.multi_host):
                own = flags_of(SliceOffer(shape=each, flavor=flavor))
                flags = compiler_flags(own, profile.pod.env, pathways=pathways)
                larger = _slice(each, each.chips * each.devices_per_chip)
                larger = larger.model_copy(update={"flags": flags})
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
