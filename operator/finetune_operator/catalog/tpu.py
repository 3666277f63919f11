"""Looks up slices of the catalog (:mod:`finetune_contract.tpu`) by name or by a pair of node labels.

The names are not unique: ``v6e-8`` is two hosts of four chips for some tools and one host of eight for others, with the
same labels. A lookup that matches both raises an error unless it is given the chips per host.
"""

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache

from finetune_contract.tpu import TpuShape, all_shapes, chips_of_topology, families, refused_families

#: Number of alternatives that an error names.
_NEAR = 4


class CatalogError(ValueError):
    """No shape, or more than one, matches the lookup."""

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


@cache
def _accelerator_of_family() -> dict[str, str]:
    """Maps ``v6e`` to ``tpu-v6e-slice``: the slice label, where a family also has a device label."""
    return {
        shape.family: shape.accelerator
        for shape in reversed(all_shapes())
        if "device" not in shape.accelerator
    }


@cache
def _default_topologies() -> dict[str, str]:
    """Maps a bare name to its topology, for names that several topologies share (``v4-384``)."""
    return {shape.name: shape.topology for shape in all_shapes() if shape.default_for_name}


@lru_cache(maxsize=256)  # bounded: tenants choose the names
def shape_by_name(name: str, *, chips_per_host: int | None = None) -> TpuShape:
    """Returns the slice of a shorthand: ``v6e-4`` (Google's number) or ``v6e-2x4``, ``v5p-2x2x4`` (topology).

    Raises CatalogError if it is unknown (with the nearest names) or ambiguous without ``chips_per_host``.
    """
    prefix, _, rest = name.partition("-")
    # gcloud's names of v5e slices have another prefix than MaxText's; both are accepted.
    family = next((each.name for each in families().values() if each.type_prefix == prefix), prefix)
    accelerator = _accelerator_of_family().get(family)
    if accelerator is None:
        _check_refused(prefix)
        known = ", ".join(sorted(_accelerator_of_family()))
        raise CatalogError(f'there is no TPU family "{prefix}" (in "{name}"). Expected one of {known}.')
    if re.fullmatch(r"\d+(x\d+)+", rest):
        return shape_by_topology(accelerator, rest, chips_per_host=chips_per_host)
    google = families()[family].type_prefix
    wanted = f"{google}-{rest}"
    topology = _default_topologies().get(wanted)
    found = [shape for shape in all_shapes() if shape.name == wanted and shape.topology == topology]
    if not found:
        raise CatalogError(f'there is no TPU type "{name}".{_near_numbers(google, rest)}')
    return _one(found, f'"{name}"', chips_per_host)


@lru_cache(maxsize=256)
def shape_by_topology(accelerator: str, topology: str, *, chips_per_host: int | None = None) -> TpuShape:
    """Returns the slice with these two node labels. Raises CatalogError like :func:`shape_by_name`."""
    of_accelerator = [shape for shape in all_shapes() if shape.accelerator == accelerator]
    if not of_accelerator:
        _check_refused(accelerator)
        known = ", ".join(sorted({shape.accelerator for shape in all_shapes()}))
        raise CatalogError(f'there is no TPU accelerator "{accelerator}". Expected one of {known}.')
    found = [shape for shape in of_accelerator if shape.topology == topology]
    if not found:
        near = _near_topologies(topology, of_accelerator)
        raise CatalogError(f'{accelerator} has no topology "{topology}". Similar: {", ".join(near)}.')
    return _one(found, f"{accelerator} {topology}", chips_per_host)


def _check_refused(name: str) -> None:
    """Raises CatalogError if the name is one that a refused generation may have; GKE's names of them are not known."""
    for family, reason in refused_families().items():
        if re.match(rf"(tpu-?)?v?{family.removeprefix('tpu')}(?![0-9a-z])", name):
            raise CatalogError(
                f'{family} (from "{name}") is not supported: {reason}. Expected one of '
                f"{', '.join(sorted(_accelerator_of_family()))}."
            )


def shares_labels(shape: TpuShape) -> bool:
    """Returns whether GKE gives nodes of another machine type the same accelerator and topology labels."""
    return _machines()[shape.accelerator, shape.topology] > 1


@cache
def _machines() -> Counter[tuple[str, str]]:
    """Counts machine types by accelerator and topology."""
    return Counter((shape.accelerator, shape.topology) for shape in all_shapes())


def _near_numbers(family: str, number: str) -> str:
    """Returns a hint with the family's names whose numbers of chips or cores are nearest; empty if there are none."""
    numbers = {
        int(rest)
        for name in _default_topologies()
        for start, _, rest in [name.rpartition("-")]
        if start == family and rest.isdecimal()
    }
    if not number.isdecimal() or not numbers:
        return ""
    near = sorted(sorted(numbers, key=lambda each: (_factor(each, int(number)), each))[:_NEAR])
    return f" Similar: {', '.join(f'{family}-{each}' for each in near)}."


def _near_topologies(topology: str, shapes: Sequence[TpuShape]) -> list[str]:
    """Returns the topologies with the nearest number of chips; among equals, the most similar spelling."""
    wanted = chips_of_topology(topology)

    def distance(shape: TpuShape) -> tuple[float, float]:
        alike = difflib.SequenceMatcher(None, shape.topology, topology).ratio()
        return _factor(shape.chips, wanted), -alike

    nearest = dict.fromkeys(shape.topology for shape in sorted(shapes, key=distance))
    return sorted(list(nearest)[:_NEAR], key=chips_of_topology)


def _factor(one: int, other: int) -> float:
    """Returns the ratio of the larger number to the smaller one."""
    return max(one, other) / max(1, min(one, other))


def _one(found: list[TpuShape], requested: str, chips_per_host: int | None) -> TpuShape:
    choices = " or ".join(f"{s.chips_per_host} ({s.hosts} x {s.machine_type})" for s in found)
    if chips_per_host is not None:
        matching = [shape for shape in found if shape.chips_per_host == chips_per_host]
        if not matching:
            raise CatalogError(f"{requested} has {choices} chips per host, not {chips_per_host}.")
        return matching[0]
    if len(found) > 1:
        raise CatalogError(
            f"{requested} matches several machine types: chips per host {choices}.", ambiguous=True
        )
    return found[0]
