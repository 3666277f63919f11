"""Plans with the controller Pathways for any slice, also those that no profile of the tests offers."""

from dataclasses import replace
from functools import cache

from finetune_contract import Stage
from finetune_operator.api.placement import Capacity, Controller, Parallelism
from finetune_operator.catalog import TpuShape, shape_by_name
from finetune_operator.planning import Findings, Plan, admit
from finetune_operator.planning.defaulted import DefaultedFlavor
from finetune_operator.planning.slices.batch import resolve_mesh
from finetune_operator.planning.slices.nodes import node_selector
from finetune_operator.rendering import render_jobset
from tests.unit.lifecycle.world import Object, job, profile

#: Name of the golden file, shape, slices.
SHAPES = (
    ("pathways-v6e-16", shape_by_name("v6e-16"), 1),
    ("pathways-2-v5e-16", shape_by_name("v5e-16"), 2),
    ("pathways-v5p-128", shape_by_name("v5p-128"), 1),
)


@cache
def _admitted(name: str) -> Plan:
    wanted = job(resources={"tpu": "v6e-4", "controller": "Pathways"})
    wanted["metadata"] = wanted["metadata"] | {"name": name}
    head = {"headNodeSelector": {"cloud.google.com/gke-nodepool": "pathways-head"}}
    return admit(wanted, [profile(pathways=head)]).plan


def plan(shape: TpuShape, slices: int = 1, *, name: str = "support-bot") -> Plan:
    """As admission would make it if the profile offered the shape."""
    made = _admitted(name)
    assert made.pathways is not None
    assert shape.pathways_instance_type is not None
    return replace(
        made,
        placement=replace(
            made.placement,
            shape=shape,
            node_selector=node_selector(shape, _flavor(shape), queued_provisioning=False),
        ),
        mesh=resolve_mesh(shape, slices, _parallelism(shape, slices), Controller.PATHWAYS),
        pathways=replace(made.pathways, instance_type=shape.pathways_instance_type),
    )


def _flavor(shape: TpuShape) -> DefaultedFlavor:
    return DefaultedFlavor(
        name="on-demand",
        capacity=Capacity.ON_DEMAND,
        accelerator=shape.accelerator,
        topologies=(shape.topology,),
    )


def _parallelism(shape: TpuShape, slices: int) -> Parallelism:
    """Returns all axes where the number of devices of a chip is not known."""
    return Parallelism() if shape.devices_per_chip else Parallelism(data=slices, fsdp=shape.chips, tensor=1)


def train(made: Plan, attempt: int = 1) -> Object:
    """The training's JobSet."""
    return render_jobset(made, Stage.TRAIN, attempt, Findings())
