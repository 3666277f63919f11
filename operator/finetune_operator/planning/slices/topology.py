"""Selects the slice from the job's request, the profile's flavors and the catalog."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from finetune_operator.api import Reason, exact
from finetune_operator.api.placement import Capacity
from finetune_operator.catalog import (
    CatalogError,
    TpuShape,
    all_shapes,
    default_libtpu_args,
    shape_by_name,
    shape_by_topology,
)
from finetune_operator.planning.defaulted import DefaultedFlavor, DefaultedResources
from finetune_operator.planning.errors import Refused, invalid_spec
from finetune_operator.planning.slices import nodes

#: Price of a flavor without one: it is chosen only if no flavor has a price.
_UNPRICED = Decimal("Infinity")
#: No flavor was tried without success.
NONE_TRIED: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorTerms:
    """Capacity type and price of one of the profile's flavors."""

    capacity: str
    chip_hour_price: float | None


def terms(flavors: Sequence[Mapping[str, Any]]) -> dict[str, FlavorTerms]:
    """Returns the terms of each flavor by name, from a profile's spec in JSON that need not be valid."""
    return {
        flavor["name"]: FlavorTerms(
            capacity=flavor["capacity"],
            chip_hour_price=float(flavor["chipHourPrice"]) if "chipHourPrice" in flavor else None,
        )
        for flavor in flavors
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A slice and the flavor of the profile that provides it."""

    shape: TpuShape
    flavor: str
    capacity: str
    queued_provisioning: bool
    """Whether all nodes are requested at once, through the queue; the job starts once they exist."""
    node_selector: Mapping[str, str]
    """Node labels for every pod on the slice."""
    tolerations: tuple[Mapping[str, Any], ...]
    host_resources: Mapping[str, str]
    """CPU and memory that a pod on a host requests besides its chips."""
    flags: Mapping[str, str]
    """XLA_FLAGS and LIBTPU_INIT_ARGS of the processes that hold chips; a variable without flags is absent."""
    avoided: Mapping[str, tuple[str, ...]]
    """Label values, by label, of nodes of other capacity types."""
    chip_hour_price: float | None
    why: str
    flavors: tuple[str, ...]
    """Flavors that serve the job, starting with the chosen one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceOffer:
    """A slice that a flavor of the profile offers. Compares by identity."""

    shape: TpuShape
    flavor: DefaultedFlavor

    @property
    def capacity(self) -> str:
        return self.flavor.capacity.value


def named_slice(
    resources: DefaultedResources,
    profile_name: str,
    flavors: Sequence[DefaultedFlavor],
    *,
    queued: bool,
    tried: Mapping[str, int] = NONE_TRIED,
) -> Placement:
    """Returns the slice that merged ``resources`` name.

    Args:
        resources: ``spec.resources`` over all defaults.
        profile_name: the profile's name, for messages.
        flavors: the profile's flavors.
        queued: whether a queue admits the job's slices.
        tried: how often each flavor was tried without success; those come last.

    Raises:
        Refused: there is no such slice, or the profile does not offer it.
    """
    preferred, slices = resources.capacity, resources.slices
    offered = _in_order([f for f in flavors if f.max_slices >= slices], preferred, tried)
    shape = _wanted(resources, offered, flavors)
    _refuse_slices(shape, slices)
    if serving := [flavor for flavor in offered if _offers(flavor, shape)]:
        said = resources.tpu or f"{resources.accelerator} {resources.topology}"
        return placement(
            SliceOffer(shape=shape, flavor=serving[0]),
            f"spec.resources requests {said}",
            [flavor.name for flavor in serving],
            queued=queued,
        )
    many = f"{slices} slices of " if slices > 1 else ""
    capacity = f", {'/'.join(preferred)}" if preferred else ""
    listed = "; ".join(_describe(flavor) for flavor in flavors) or "none"
    fitting = [flavor for flavor in flavors if _offers(flavor, shape)]
    of = f" for {shape.accelerator} {shape.topology}" if fitting else ""
    raise Refused(
        Reason.NO_FLAVOR_FITS,
        f"spec.resources: {many}{shape.accelerator} {shape.topology} ({shape.hosts} x {shape.chips_per_host} chips"
        f'{capacity}) is not offered by profile "{profile_name}". It offers: {listed}.'
        + "".join(f" {fault}." for fault in _unmet(fitting or flavors, preferred, slices, of)),
    )


def _unmet(
    flavors: Sequence[DefaultedFlavor], preferred: Sequence[Capacity] | None, slices: int, of: str = ""
) -> Iterator[str]:
    """Yields why none of ``flavors`` serves a job: its capacity or its number of slices.

    Args:
        flavors: the profile's flavors.
        preferred: capacity types that the job accepts; None: any.
        slices: requested number of slices.
        of: the slice that all of ``flavors`` offer, as part of the message, if the profile has further flavors.
    """
    kinds = list(dict.fromkeys(flavor.capacity for flavor in flavors))
    accepted = _in_order(flavors, preferred)
    if kinds and preferred and not accepted:
        yield (
            f"spec.resources.capacity: capacity {'/'.join(preferred)} is not offered{of}; the profile offers "
            f"{', '.join(kinds)}"
        )
    most = max((flavor.max_slices for flavor in accepted), default=slices)
    if most < slices:
        yield (
            f"spec.resources.slices: {slices} slices are more than maxSlices of the flavors "
            f"{', '.join(flavor.name for flavor in accepted)} allows: use at most {most}"
        )


def _in_order(
    flavors: Sequence[DefaultedFlavor],
    preferred: Sequence[Capacity] | None,
    tried: Mapping[str, int] = NONE_TRIED,
) -> list[DefaultedFlavor]:
    """Returns the flavors of accepted capacity in the job's order and then the profile's, those last that were tried
    without success."""
    accepted = [flavor for flavor in flavors if preferred is None or flavor.capacity in preferred]
    if preferred is not None:
        accepted.sort(key=lambda flavor: preferred.index(flavor.capacity))
    return sorted(accepted, key=lambda flavor: tried.get(flavor.name, 0))


def _refuse_slices(shape: TpuShape, slices: int) -> None:
    """Raises Refused for several single-host slices: GKE connects only multi-host slices."""
    if slices > 1 and not shape.multi_host:
        raise invalid_spec(
            f"spec.resources.slices: {slices} slices of {shape.name} ({shape.topology}) cannot be connected, as each "
            "is a single host. Use one larger slice, or slices of several hosts.",
        )


def _wanted(
    resources: DefaultedResources, offered: Sequence[DefaultedFlavor], flavors: Sequence[DefaultedFlavor]
) -> TpuShape:
    """Returns the shape that the job names; if two machine types match, the one that the flavors specify."""
    try:
        return _shape(resources, resources.chips_per_host)
    except CatalogError as error:
        if not error.ambiguous:
            where = "spec.resources.tpu" if resources.tpu else "spec.resources"
            raise Refused(Reason.UNKNOWN_TPU, f"{where}: {error}") from error
        said = _said(resources, offered) or _said(resources, flavors)
        if len(said) == 1:
            return next(iter(said.values()))
        raise Refused(Reason.AMBIGUOUS_TPU_SHAPE, f"spec.resources: {error} Set chipsPerHost.") from error


def _said(resources: DefaultedResources, flavors: Sequence[DefaultedFlavor]) -> Mapping[int, TpuShape]:
    """Returns matching shapes by chips per host, of the flavors that specify chips per host."""
    shapes: dict[int, TpuShape] = {}
    for flavor in flavors:
        with suppress(CatalogError):
            shape = _shape(resources, flavor.chips_per_host) if flavor.chips_per_host else None
            if shape is not None and _offers(flavor, shape):
                shapes[shape.chips_per_host] = shape
    return shapes


def _shape(resources: DefaultedResources, chips_per_host: int | None) -> TpuShape:
    if resources.tpu:
        return shape_by_name(resources.tpu, chips_per_host=chips_per_host)
    if resources.accelerator is None or resources.topology is None:
        missing = "topology" if resources.accelerator else "accelerator"
        raise invalid_spec(f"spec.resources.{missing} is missing: set both or use tpu.")
    return shape_by_topology(resources.accelerator, resources.topology, chips_per_host=chips_per_host)


def _offers(flavor: DefaultedFlavor, shape: TpuShape) -> bool:
    return (
        flavor.accelerator == shape.accelerator
        and shape.topology in flavor.topologies
        and flavor.chips_per_host in (None, shape.chips_per_host)
    )


def offered_shapes(flavor: DefaultedFlavor) -> Sequence[TpuShape]:
    """Returns the slices of the flavor: of each topology several if it leaves chips per host open."""
    return [shape for shape in all_shapes() if _offers(flavor, shape)]


def by_price(
    resources: DefaultedResources,
    profile_name: str,
    flavors: Sequence[DefaultedFlavor],
    tried: Mapping[str, int] = NONE_TRIED,
) -> Sequence[SliceOffer]:
    """Returns the profile's offers to a job that names no slice, the cheapest first. Never empty.

    If the job lists capacity types or flavors were tried without success, those rank before the price. Between equal
    offers, the order of the flavors decides. Arguments and errors are those of :func:`named_slice`.
    """
    preferred, per_host, slices = resources.capacity, resources.chips_per_host, resources.slices
    if unmet := list(_unmet(flavors, preferred, slices)):
        raise Refused(Reason.NO_FLAVOR_FITS, f'profile "{profile_name}": {"; ".join(unmet)}.')
    offered = _in_order([f for f in flavors if f.max_slices >= slices], preferred, tried)
    kinds = list(dict.fromkeys(flavor.capacity for flavor in offered))
    ranked = bool(preferred or tried)
    choices: list[tuple[int, int, Decimal, int, int, SliceOffer]] = []
    for order, flavor in enumerate(offered):
        price = _UNPRICED if flavor.chip_hour_price is None else exact(flavor.chip_hour_price)
        vain, rank = tried.get(flavor.name, 0), kinds.index(flavor.capacity) if ranked else 0
        for topology in flavor.topologies:
            try:
                shape = shape_by_topology(
                    flavor.accelerator, topology, chips_per_host=flavor.chips_per_host or per_host
                )
            except CatalogError:
                continue
            if (shape.multi_host or slices == 1) and per_host in (None, shape.chips_per_host):
                offer = SliceOffer(shape=shape, flavor=flavor)
                choices.append((vain, rank, price * shape.chips, shape.chips, order, offer))
    if not choices and per_host is not None:
        raise Refused(
            Reason.NO_FLAVOR_FITS,
            f'spec.resources.chipsPerHost: profile "{profile_name}" has no slice with {per_host} chips per host to '
            f"choose from. It offers: {'; '.join(_describe(flavor) for flavor in flavors)}.",
        )
    if not choices and slices > 1:
        raise Refused(
            Reason.NO_FLAVOR_FITS,
            f'spec.resources.slices: profile "{profile_name}" has no flavor for {slices} slices of several hosts each, '
            "and others cannot be connected: set spec.resources.slices to 1.",
        )
    if not choices:
        raise Refused(
            Reason.NO_FLAVOR_FITS,
            f'spec.resources names no TPU and profile "{profile_name}" has no flavor to choose from: '
            "set spec.resources.tpu.",
        )
    return [offer for *_, offer in sorted(choices, key=lambda choice: choice[:5])]


def placement(offer: SliceOffer, why: str, flavors: Iterable[str], *, queued: bool) -> Placement:
    """Returns the offered slice with its node constraints and flags.

    ``flavors`` are those that also serve the job. The other arguments and errors are those of
    :func:`named_slice`.
    """
    shape, flavor = offer.shape, offer.flavor
    wanted = queued if flavor.queued_provisioning is None else flavor.queued_provisioning
    if wanted and not queued:
        raise Refused(
            Reason.NO_FLAVOR_FITS,
            f"flavor {flavor.name} has queuedProvisioning: true, and no queue admits the job: set queue.localQueue "
            "in the profile.",
        )
    queued_provisioning = wanted and flavor.capacity is Capacity.FLEX_START
    return Placement(
        shape=shape,
        flavor=flavor.name,
        capacity=offer.capacity,
        queued_provisioning=queued_provisioning,
        node_selector=nodes.node_selector(shape, flavor, queued_provisioning=queued_provisioning),
        tolerations=tuple(
            each.to_document() for each in nodes.tolerations(flavor, queued_provisioning=queued_provisioning)
        ),
        # A ClusterQueue need not cover cpu and memory, and Kueue admits nothing that requests what it does not cover.
        host_resources=nodes.host_resources(shape, flavor, default=not queued),
        flags=flags_of(offer),
        avoided=nodes.avoided(flavor, queued_provisioning=queued_provisioning),
        chip_hour_price=flavor.chip_hour_price,
        why=f"{why}; flavor {flavor.name}",
        flavors=tuple(dict.fromkeys([flavor.name, *flavors])),
    )


def flags_of(offer: SliceOffer) -> Mapping[str, str]:
    """Returns the compiler variables of the processes that hold chips; a variable without flags is left out."""
    xla, libtpu = offer.flavor.xla_flags, offer.flavor.libtpu_init_args
    flags: Mapping[str, Sequence[str]] = {
        "XLA_FLAGS": xla or (),
        "LIBTPU_INIT_ARGS": default_libtpu_args(offer.shape.family) if libtpu is None else libtpu,
    }
    return {variable: " ".join(given) for variable, given in flags.items() if given}


def _describe(flavor: DefaultedFlavor) -> str:
    chips = f", {flavor.chips_per_host} chips per host" if flavor.chips_per_host else ""
    slices = f", up to {flavor.max_slices} slices" if flavor.max_slices > 1 else ""
    return f"{flavor.accelerator} {', '.join(flavor.topologies)} ({flavor.capacity}{chips}{slices})"
