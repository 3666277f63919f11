"""The catalogue of TPUs: one row per generation (``tpu_families.csv``), one per slice that GKE sells
(``tpu_slices.csv``). Operator and trainer read it; neither has figures of its own.

Rates are as the maker publishes them, per chip; the network's are the published bits per second of all links, halved.
``usable_gib_per_device`` is what the TPU compiler reports. Each row of a generation names the sources of its figures
and of its slices.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What one chip has and can do, per second where it is a rate."""

    kind: str
    """JAX's name of a device; the compiler for a slice that is not there says the same."""
    devices: int
    """JAX devices that share the memory and the rates."""
    hbm_gib: int
    usable_gib: float
    """Of memory that a program may use on one JAX device, as the compiler reports it."""
    bf16_flops: float
    hbm_bytes: float
    network_bytes: float
    """Between the chips of a slice, all links together, one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuFamily:
    """One generation."""

    name: str
    """``v5e``; the prefix of slices that are named by topology."""
    type_prefix: str
    """In names that count chips or cores: ``v5litepod``."""
    chip: Chip | None
    """None where nothing is published."""
    cube_pod_chips: int | None
    """Chips of a pod whose larger slices are made of cubes of 4x4x4; None where slices are flat."""
    compiler_chip_config: str | None
    """What the TPU compiler must be given for devices as JAX has them on the machine itself; None: its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuShape:
    """One slice as GKE sells it."""

    name: str
    """As people write it: ``v6e-8``."""
    family: str
    accelerator: str
    """Value of the node label ``cloud.google.com/gke-tpu-accelerator``."""
    topology: str
    """Value of the node label ``cloud.google.com/gke-tpu-topology``: ``2x4``."""
    machine_type: str
    hosts: int
    chips_per_host: int
    devices_per_chip: int | None
    """JAX devices; None where nobody has published it."""
    hbm_gib_per_chip: int | None
    requires_placement_policy: bool
    pathways_instance_type: str | None
    """As Pathways' resource manager calls the slice (``tpuv6e:4x4``); None where it does not know it."""
    default_for_name: bool
    """Whether ``name`` alone means it, of all topologies that share the name."""

    @property
    def chips(self) -> int:
        return self.hosts * self.chips_per_host

    @property
    def multi_host(self) -> bool:
        return self.hosts > 1


@cache
def families() -> Mapping[str, TpuFamily]:
    """Every generation by name, in the order of the file."""
    return {
        row["family"]: TpuFamily(
            name=row["family"],
            type_prefix=row["type_prefix"],
            chip=_chip(row) if row["jax_device_kind"] else None,
            cube_pod_chips=int(row["cube_pod_chips"]) if row["cube_pod_chips"] else None,
            compiler_chip_config=row["compiler_chip_config"] or None,
        )
        for row in _rows("tpu_families.csv")
    }


@cache
def all_shapes() -> Sequence[TpuShape]:
    """Every slice, in the order of the file."""
    return tuple(_shape(row, families()[row["family"]].chip) for row in _rows("tpu_slices.csv"))


def chips_of_topology(topology: str) -> int:
    """``4x4`` -> 16."""
    return math.prod(int(side) for side in topology.split("x"))


def _chip(row: Mapping[str, str]) -> Chip:
    return Chip(
        kind=row["jax_device_kind"],
        devices=int(row["jax_devices_per_chip"]),
        hbm_gib=int(row["hbm_gib_per_chip"]),
        usable_gib=float(row["usable_gib_per_device"]),
        bf16_flops=float(row["bf16_tflops_per_chip"]) * 1e12,
        hbm_bytes=float(row["hbm_gb_per_second"]) * 1e9,
        network_bytes=float(row["network_gb_per_second"]) * 1e9,
    )


def _shape(row: Mapping[str, str], chip: Chip | None) -> TpuShape:
    return TpuShape(
        # The file tells namesakes apart by a suffix ("v6e-8/1host"); people do not write it.
        name=row["type_name"].partition("/")[0],
        family=row["family"],
        accelerator=row["accelerator_label"],
        topology=row["topology"],
        machine_type=row["machine_type"],
        hosts=int(row["hosts_per_slice"]),
        chips_per_host=int(row["chips_per_host"]),
        devices_per_chip=chip.devices if chip else None,
        hbm_gib_per_chip=chip.hbm_gib if chip else None,
        requires_placement_policy=row["requires_placement_policy"] == "true",
        pathways_instance_type=row["pathways_instance_type"] or None,
        default_for_name=row["default_for_name"] == "true",
    )


def _rows(name: str) -> csv.DictReader[str]:
    text = files("finetune_contract").joinpath(name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())
