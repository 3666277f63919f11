"""The slices that a profile offers to a job, each with the reason why it is used, tried next, or left out. Pure.

For people and ``finetune plan``: the choice itself is made in :mod:`.slices.choice`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from finetune_operator.api import exact
from finetune_operator.catalog import TpuShape
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import DefaultedFlavor, DefaultedResources
from finetune_operator.planning.plan import Plan
from finetune_operator.planning.plan_builder import Draft, slice_faults
from finetune_operator.planning.slices.choice import MOST_CANDIDATES, slice_key
from finetune_operator.planning.slices.topology import SliceOffer, by_price
from finetune_operator.planning.stored_plan import StoredPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsideredSlice:
    """A slice of one of the profile's flavors."""

    shape: TpuShape | None
    """None if the flavor has no slice for the job."""
    flavor: str
    capacity: str
    hourly_price: Decimal | None
    """Of all slices of the job, in the profile's currency. None if the profile states no price."""
    chosen: bool = False
    next: int | None = None
    """Place among the slices that preflight tries if the training does not fit, from 1."""
    why: str


def considered_slices(job: Object, stored: StoredPlan, plan: Plan) -> Sequence[ConsideredSlice]:
    """Returns what the profile offers, the cheapest first, then the flavors without a slice for the job.

    Of a job that names its slice, only that one is considered. ``plan`` is the job's plan before anything has run.
    """
    draft = Draft.of(job, stored)
    resources, flavors = draft.spec.resources, draft.profile.flavors
    if resources.names_a_slice:
        return [_named(plan)]
    offers = by_price(resources, stored.profile_name, flavors)
    fault = slice_faults(draft, draft.site)
    candidates = [each.slice for each in plan.memory.candidates] if plan.memory else []
    tried = {slice_key(each): number for number, each in enumerate(candidates, 1)}
    taken, found = slice_key(plan.placement.shape), list[ConsideredSlice]()
    for offer in offers:
        key, own = slice_key(offer.shape), offer.flavor.name == plan.placement.flavor
        if key == taken:
            why = "chosen" if own else _same(offer, plan)
        elif (said := fault(offer)) is not None:
            why = said
        elif key in tried:
            why = f"tried next ({tried[key]}), if the training does not fit"
        elif plan.memory is None:
            why = "dearer, and not tried with preflight.memory Off"
        else:
            why = f"not tried: Preflight compiles for at most {MOST_CANDIDATES + 1} slices"
        found.append(
            ConsideredSlice(
                shape=offer.shape,
                flavor=offer.flavor.name,
                capacity=offer.capacity,
                hourly_price=_price(offer.flavor.chip_hour_price, offer.shape.chips * resources.slices),
                chosen=key == taken and own,
                next=tried.get(key) if fault(offer) is None else None,
                why=why,
            )
        )
    offered = {offer.flavor.name for offer in offers}
    return found + [_without_slice(each, resources) for each in flavors if each.name not in offered]


def _named(plan: Plan) -> ConsideredSlice:
    return ConsideredSlice(
        shape=plan.placement.shape,
        flavor=plan.placement.flavor,
        capacity=plan.placement.capacity,
        hourly_price=_price(plan.placement.chip_hour_price, plan.chips),
        chosen=True,
        why="named in spec.resources: no other slice is considered",
    )


def _same(offer: SliceOffer, plan: Plan) -> str:
    if offer.capacity == plan.placement.capacity:
        return "the same slice of another flavor"
    return f"the same slice, if {plan.placement.capacity} provides no nodes in time"


def _without_slice(flavor: DefaultedFlavor, resources: DefaultedResources) -> ConsideredSlice:
    if resources.capacity is not None and flavor.capacity not in resources.capacity:
        why = f"{flavor.capacity} is not in spec.resources.capacity"
    elif flavor.max_slices < resources.slices:
        why = f"has at most {flavor.max_slices} of the {resources.slices} slices"
    elif resources.slices > 1:
        why = "has no slices of several hosts, which alone can be connected"
    else:
        why = "has no slice of such hosts"
    return ConsideredSlice(
        shape=None, flavor=flavor.name, capacity=flavor.capacity.value, hourly_price=None, why=why
    )


def _price(chip_hour: float | None, chips: int) -> Decimal | None:
    return None if chip_hour is None else exact(chip_hour) * chips
