"""Selects the slice from the job's request, the profile's flavors and the catalog."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from finetune_operator.api import Reason, exact
from finetune_operator.catalog import (
    CatalogError,
    TpuShape,
    default_libtpu_args,
    shape_by_name,
    shape_by_topology,
)
from finetune_operator.planning import nodes
from finetune_operator.planning.errors import Refused

#: Price of a flavor without one: it is chosen only if no flavor has a price.
_UNPRICED = Decimal("Infinity")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorTerms:
    """Capacity type and price of one of the profile's flavors."""

    capacity: str
    chip_hour_price: float | None


def terms(flavors: Sequence[Mapping[str, Any]]) -> dict[str, FlavorTerms]:
    """Returns the terms of each flavor by name."""
    return {
        flavor["name"]: FlavorTerms(
            capacity=flavor["capacity"],
            chip_hour_price=_price(flavor),
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
    flags: Mapping[str, str]
    """XLA_FLAGS and LIBTPU_INIT_ARGS of the processes that hold chips; a variable without flags is absent."""
    avoided: Mapping[str, tuple[str, ...]]
    """Label values, by label, of nodes of other capacity types."""
    chip_hour_price: float | None
    why: str
    capacities: tuple[str, ...]
    """Capacity types that serve the job, starting with the chosen one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceOffer:
    """A slice that a flavor of the profile offers. Compares by identity."""

    shape: TpuShape
    flavor: Mapping[str, Any]

    @property
    def capacity(self) -> str:
        return str(self.flavor["capacity"])


def names_a_slice(resources: Mapping[str, Any]) -> bool:
    """Returns whether merged ``resources`` name a slice; if not, one of the profile's is chosen."""
    return "tpu" in resources or "accelerator" in resources or "topology" in resources


def named_slice(
    resources: Mapping[str, Any],
    profile_name: str,
    flavors: Sequence[Mapping[str, Any]],
    *,
    queued: bool,
    passed: Collection[str] = (),
) -> Placement:
    """Returns the slice that merged ``resources`` name.

    Args:
        resources: ``spec.resources`` over all defaults.
        profile_name: the profile's name, for messages.
        flavors: the profile's flavors.
        queued: whether a queue admits the job's slices.
        passed: capacity types that come last, since they provided no nodes in time.

    Raises:
        Refused: there is no such slice, or the profile does not offer it.
    """
    preferred = resources.get("capacity")
    slices = resources["slices"]
    offered = _in_order([f for f in flavors if f.get("maxSlices", 1) >= slices], preferred, passed)
    shape = _wanted(resources, offered, flavors)
    _refuse_slices(shape, slices)
    if serving := [flavor for flavor in offered if _offers(flavor, shape)]:
        said = resources.get("tpu") or f"{resources['accelerator']} {resources['topology']}"
        kinds = [flavor["capacity"] for flavor in serving]
        return placement(
            SliceOffer(shape=shape, flavor=serving[0]),
            f"spec.resources asks for {said}",
            kinds,
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
    flavors: Sequence[Mapping[str, Any]], preferred: Sequence[str] | None, slices: int, of: str = ""
) -> Iterator[str]:
    """Yields why none of ``flavors`` serves a job: its capacity or its number of slices.

    Args:
        flavors: the profile's flavors.
        preferred: capacity types that the job accepts; None: any.
        slices: requested number of slices.
        of: the slice that all of ``flavors`` offer, as part of the message, if the profile has further flavors.
    """
    kinds = list(dict.fromkeys(flavor["capacity"] for flavor in flavors))
    accepted = _in_order(flavors, preferred)
    if kinds and preferred and not accepted:
        yield (
            f"spec.resources.capacity: capacity {'/'.join(preferred)} is not offered{of}; the profile offers "
            f"{', '.join(kinds)}"
        )
    most = max((flavor.get("maxSlices", 1) for flavor in accepted), default=slices)
    if most < slices:
        yield (
            f"spec.resources.slices: {slices} slices are more than maxSlices of the flavors "
            f"{', '.join(flavor['name'] for flavor in accepted)} allows: use at most {most}"
        )


def _in_order(
    flavors: Sequence[Mapping[str, Any]], preferred: Sequence[str] | None, passed: Collection[str] = ()
) -> list[Mapping[str, Any]]:
    """Returns the flavors of accepted capacity, ``passed`` last, in the job's order and then the profile's."""
    accepted = [flavor for flavor in flavors if preferred is None or flavor["capacity"] in preferred]
    if preferred is not None:
        accepted.sort(key=lambda flavor: preferred.index(flavor["capacity"]))
    return sorted(accepted, key=lambda flavor: flavor["capacity"] in passed)


def _refuse_slices(shape: TpuShape, slices: int) -> None:
    """Raises Refused for several single-host slices: GKE connects only multi-host slices."""
    if slices > 1 and not shape.multi_host:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.resources.slices: {slices} slices of {shape.name} ({shape.topology}) cannot be connected, as each "
            "is a single host. Use one larger slice, or slices of several hosts.",
        )


def _wanted(
    resources: Mapping[str, Any], offered: Sequence[Mapping[str, Any]], flavors: Sequence[Mapping[str, Any]]
) -> TpuShape:
    """Returns the shape that the job names; if two machine types match, the one that the flavors specify."""
    try:
        return _shape(resources, resources.get("chipsPerHost"))
    except CatalogError as error:
        if not error.ambiguous:
            where = "spec.resources.tpu" if "tpu" in resources else "spec.resources"
            raise Refused(Reason.UNKNOWN_TPU, f"{where}: {error}") from error
        said = _said(resources, offered) or _said(resources, flavors)
        if len(said) == 1:
            return next(iter(said.values()))
        raise Refused(
            Reason.AMBIGUOUS_TPU_SHAPE, f"spec.resources: {error} Say which with chipsPerHost."
        ) from error


def _said(resources: Mapping[str, Any], flavors: Sequence[Mapping[str, Any]]) -> Mapping[int, TpuShape]:
    """Returns matching shapes by chips per host, of the flavors that specify chips per host."""
    return {
        shape.chips_per_host: shape
        for flavor in flavors
        if (chips := flavor.get("chipsPerHost")) and (shape := _try_shape(resources, chips))
        if _offers(flavor, shape)
    }


def _shape(resources: Mapping[str, Any], chips_per_host: int | None) -> TpuShape:
    if tpu := resources.get("tpu"):
        return shape_by_name(tpu, chips_per_host=chips_per_host)
    missing = [name for name in ("accelerator", "topology") if name not in resources]
    if missing:
        raise Refused(Reason.INVALID_SPEC, f"spec.resources.{missing[0]} is missing: set both or use tpu.")
    return shape_by_topology(resources["accelerator"], resources["topology"], chips_per_host=chips_per_host)


def _try_shape(resources: Mapping[str, Any], chips_per_host: int) -> TpuShape | None:
    try:
        return _shape(resources, chips_per_host)
    except CatalogError:
        return None


def _offers(flavor: Mapping[str, Any], shape: TpuShape) -> bool:
    return (
        flavor["accelerator"] == shape.accelerator
        and shape.topology in flavor["topologies"]
        and flavor.get("chipsPerHost", shape.chips_per_host) == shape.chips_per_host
    )


def by_price(
    resources: Mapping[str, Any],
    profile_name: str,
    flavors: Sequence[Mapping[str, Any]],
    passed: Collection[str] = (),
) -> Sequence[SliceOffer]:
    """Returns the profile's offers to a job that names no slice, the cheapest first. Never empty.

    If the job lists capacity types or some were ``passed``, they rank before the price. Between equal offers, the order
    of the flavors decides. Arguments and errors are those of :func:`named_slice`.
    """
    preferred, per_host = resources.get("capacity"), resources.get("chipsPerHost")
    slices = resources["slices"]
    if unmet := list(_unmet(flavors, preferred, slices)):
        raise Refused(Reason.NO_FLAVOR_FITS, f'profile "{profile_name}": {"; ".join(unmet)}.')
    offered = _in_order([f for f in flavors if f.get("maxSlices", 1) >= slices], preferred, passed)
    kinds = list(dict.fromkeys(flavor["capacity"] for flavor in offered))
    ranked = bool(preferred or passed)
    choices: list[tuple[int, Decimal, int, int, SliceOffer]] = []
    for order, flavor in enumerate(offered):
        price = exact(flavor["chipHourPrice"]) if "chipHourPrice" in flavor else _UNPRICED
        rank = kinds.index(flavor["capacity"]) if ranked else 0
        for topology in flavor["topologies"]:
            try:
                shape = shape_by_topology(
                    flavor["accelerator"], topology, chips_per_host=flavor.get("chipsPerHost", per_host)
                )
            except CatalogError:
                continue
            if (shape.multi_host or slices == 1) and per_host in (None, shape.chips_per_host):
                offer = SliceOffer(shape=shape, flavor=flavor)
                choices.append((rank, price * shape.chips, shape.chips, order, offer))
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
    return [offer for *_, offer in sorted(choices, key=lambda choice: choice[:4])]


def placement(offer: SliceOffer, why: str, capacities: Iterable[str], *, queued: bool) -> Placement:
    """Returns the offered slice with its node constraints and flags.

    ``capacities`` are the types that also serve the job. ``queued`` and errors are those of :func:`named_slice`.
    """
    shape, flavor = offer.shape, offer.flavor
    wanted = flavor.get("queuedProvisioning", queued)
    if wanted and not queued:
        raise Refused(
            Reason.NO_FLAVOR_FITS,
            f"flavor {flavor['name']} has queuedProvisioning: true, and no queue admits the job: set queue.localQueue "
            "in the profile.",
        )
    queued_provisioning = wanted and flavor["capacity"] == "FlexStart"
    return Placement(
        shape=shape,
        flavor=flavor["name"],
        capacity=flavor["capacity"],
        queued_provisioning=queued_provisioning,
        node_selector=nodes.node_selector(shape, flavor, queued_provisioning=queued_provisioning),
        tolerations=nodes.tolerations(flavor, queued_provisioning=queued_provisioning),
        flags=flags_of(offer),
        avoided=nodes.avoided(flavor, queued_provisioning=queued_provisioning),
        chip_hour_price=_price(flavor),
        why=f"{why}; flavor {flavor['name']}",
        capacities=tuple(dict.fromkeys([flavor["capacity"], *capacities])),
    )


def flags_of(offer: SliceOffer) -> Mapping[str, str]:
    """Returns the compiler variables of the processes that hold chips; a variable without flags is left out."""
    flags: Mapping[str, Sequence[str]] = {
        "XLA_FLAGS": offer.flavor.get("xlaFlags", ()),
        "LIBTPU_INIT_ARGS": offer.flavor.get("libtpuInitArgs", default_libtpu_args(offer.shape.family)),
    }
    return {variable: " ".join(given) for variable, given in flags.items() if given}


def _price(flavor: Mapping[str, Any]) -> float | None:
    return float(flavor["chipHourPrice"]) if "chipHourPrice" in flavor else None


def _describe(flavor: Mapping[str, Any]) -> str:
    chips = f", {flavor['chipsPerHost']} chips per host" if "chipsPerHost" in flavor else ""
    slices = f", up to {flavor['maxSlices']} slices" if flavor.get("maxSlices", 1) > 1 else ""
    return f"{flavor['accelerator']} {', '.join(flavor['topologies'])} ({flavor['capacity']}{chips}{slices})"
