"""Which slice: the job's wish, the profile's flavors and the catalogue, brought together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.catalog import CatalogError, TpuShape, shape_by_name, shape_by_topology
from finetune_operator.planning.errors import Refused

#: Families whose single slices run today; others resolve in the catalogue and are refused by name.
PROVEN_FAMILIES = frozenset({"v6e"})
#: Flavors of other capacities are passed over where the job names none.
SUPPORTED_CAPACITY = ("OnDemand",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A slice and the flavor of the profile that it is taken from."""

    shape: TpuShape
    flavor: str
    capacity: str
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    chip_hour_price: str | None
    why: str


def place(resources: Mapping[str, Any], profile_name: str, flavors: Sequence[Mapping[str, Any]]) -> Placement:
    """The slice for merged ``resources``. Raises Refused."""
    capacity = resources.get("capacity", SUPPORTED_CAPACITY)
    offered = [
        flavor
        for flavor in flavors
        if flavor["capacity"] in capacity and flavor["capacity"] in SUPPORTED_CAPACITY
    ]
    named = "tpu" in resources or "accelerator" in resources or "topology" in resources
    if not named:
        return _cheapest(offered, profile_name)
    shape = _wanted(resources, offered)
    _refuse_unproven(shape)
    for flavor in offered:
        if _offers(flavor, shape):
            said = resources.get("tpu") or f"{resources['accelerator']} {resources['topology']}"
            return _placement(shape, flavor, f"spec.resources asks for {said}")
    listed = "; ".join(_describe(flavor) for flavor in flavors) or "none"
    raise Refused(
        Reason.NO_FLAVOR_FITS,
        f"spec.resources: {shape.accelerator} {shape.topology} ({shape.hosts} x {shape.chips_per_host} chips, "
        f'{"/".join(capacity)}) is not offered by profile "{profile_name}". It offers: {listed}.',
    )


def _wanted(resources: Mapping[str, Any], offered: Sequence[Mapping[str, Any]]) -> TpuShape:
    try:
        return _shape(resources, resources.get("chipsPerHost"))
    except CatalogError as error:
        if not error.ambiguous:
            where = "spec.resources.tpu" if "tpu" in resources else "spec.resources"
            raise Refused(Reason.UNKNOWN_TPU, f"{where}: {error}") from error
        fitting = {
            shape.chips_per_host: shape
            for flavor in offered
            if (chips := flavor.get("chipsPerHost")) and (shape := _try_shape(resources, chips))
            if _offers(flavor, shape)
        }
        if len(fitting) == 1:
            return next(iter(fitting.values()))
        raise Refused(
            Reason.AMBIGUOUS_TPU_SHAPE, f"spec.resources: {error} Say which with chipsPerHost."
        ) from error


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


def _cheapest(offered: Sequence[Mapping[str, Any]], profile_name: str) -> Placement:
    """The cheapest proven shape of the flavors; the flavors' own order decides between equals."""
    choices: list[tuple[Decimal, int, TpuShape, Mapping[str, Any]]] = []
    for order, flavor in enumerate(offered):
        for topology in flavor["topologies"]:
            try:
                shape = shape_by_topology(
                    flavor["accelerator"], topology, chips_per_host=flavor.get("chipsPerHost")
                )
            except CatalogError:
                continue
            if shape.family in PROVEN_FAMILIES:
                choices.append(
                    (Decimal(flavor.get("chipHourPrice") or 0) * shape.chips, order, shape, flavor)
                )
    if not choices:
        raise Refused(
            Reason.NO_FLAVOR_FITS,
            f'spec.resources names no TPU and profile "{profile_name}" has no flavor to choose from: '
            "set spec.resources.tpu.",
        )
    _, _, shape, flavor = min(choices, key=lambda choice: (choice[0], choice[2].chips, choice[1]))
    return _placement(shape, flavor, "the cheapest slice of the profile, since spec.resources names none")


def _placement(shape: TpuShape, flavor: Mapping[str, Any], why: str) -> Placement:
    return Placement(
        shape=shape,
        flavor=flavor["name"],
        capacity=flavor["capacity"],
        node_selector=flavor.get("nodeSelector", {}),
        tolerations=tuple(flavor.get("tolerations", ())),
        chip_hour_price=flavor.get("chipHourPrice"),
        why=f"{why}; flavor {flavor['name']}",
    )


def _refuse_unproven(shape: TpuShape) -> None:
    if shape.family not in PROVEN_FAMILIES:
        raise Refused(
            Reason.NOT_YET_SUPPORTED,
            f"spec.resources: {shape.accelerator} comes later; this version runs on tpu-v6e-slice.",
        )


def _describe(flavor: Mapping[str, Any]) -> str:
    chips = f", {flavor['chipsPerHost']} chips per host" if "chipsPerHost" in flavor else ""
    return f"{flavor['accelerator']} {', '.join(flavor['topologies'])} ({flavor['capacity']}{chips})"
