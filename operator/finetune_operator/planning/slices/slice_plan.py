"""The parts of a job's plan that depend on its slice: the mesh, the batch that the mesh shares, and the budget."""

from dataclasses import dataclass

from finetune_contract import MeshSpec
from finetune_operator.api.placement import Parallelism
from finetune_operator.planning.budget import SpendingLimits, resolve_budget
from finetune_operator.planning.defaulted import DefaultedJobSpec
from finetune_operator.planning.slices.batch import resolve_global_batch, resolve_mesh, sharing_rows
from finetune_operator.planning.slices.pathways import Pathways, resolve_pathways
from finetune_operator.planning.slices.topology import Placement
from finetune_operator.planning.stored_plan import StoredPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """Parts of a plan that depend on the slice."""

    placement: Placement
    mesh: MeshSpec
    pathways: Pathways | None
    """None if the controller is McJAX."""
    global_batch: int
    budget: SpendingLimits


def slice_plan(
    spec: DefaultedJobSpec, stored: StoredPlan, placement: Placement, *, share_rows: bool = False
) -> SlicePlan:
    """Returns the job's plan on that slice. Raises Refused if its numbers do not fit the slice.

    Args:
        spec: the merged spec.
        stored: the job's stored plan, for the profile.
        placement: the slice.
        share_rows: whether devices may share rows, if the job sets no parallelism and its batch is too small for all
            devices.
    """
    resources, profile = spec.resources, stored.profile_spec
    mesh = resolve_mesh(placement.shape, resources.slices, resources.parallelism, resources.controller)
    if share_rows and resources.parallelism == Parallelism():
        mesh = sharing_rows(mesh, spec.hyperparameters)
    return SlicePlan(
        placement=placement,
        mesh=mesh,
        pathways=resolve_pathways(profile, stored.job.namespace, placement)
        if mesh.controller == "Pathways"
        else None,
        global_batch=resolve_global_batch(spec.hyperparameters, mesh),
        budget=resolve_budget(
            spec.budget, stored.profile_name, profile.constraints.max_chip_hours, placement.chip_hour_price
        ),
    )
