"""The TPU catalog: one row per generation (``tpu_families.csv``), one per slice that GKE offers (``tpu_slices.csv``),
one per machine type of a host (``tpu_machines.csv``).

Operator and trainer both read it; neither has figures of its own. Rates are per chip, as the manufacturer publishes
them; network rates are half the published bits per second of all links. ``usable_gib_per_device`` is reported by the
TPU compiler. Each row names the sources of its figures; those that are not published are empty.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Resources and rates of one chip. Rates are per second."""

    kind: str
    """JAX's device kind; ahead-of-time compilation for an absent slice reports the same name."""
    devices: int
    """Number of JAX devices that share the chip's memory and rates."""
    hbm_gib: int
    usable_gib: float
    """GiB of memory that a program may use on one JAX device, as reported by the compiler."""
    bf16_flops: float
    hbm_bytes: float
    network_bytes: float
    """Bytes per second between the chips of a slice, over all links, in one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuFamily:
    """One TPU generation."""

    name: str
    """Name of the generation, ``v5e``; also the prefix of slices that are named by topology."""
    type_prefix: str
    """Prefix of slice names that count chips or cores: ``v5litepod``."""
    chip: Chip | None
    """None if no figures are published."""
    cube_pod_chips: int | None
    """Chips of a pod whose larger slices consist of 4x4x4 cubes. None if slices are flat."""
    compiler_chip_config: str | None
    """TPU compiler option that yields the devices that JAX reports on the machine itself. None for its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuShape:
    """One slice that GKE offers."""

    name: str
    """Name as users write it: ``v6e-8``."""
    family: str
    accelerator: str
    """Value of the node label ``cloud.google.com/gke-tpu-accelerator``."""
    topology: str
    """Value of the node label ``cloud.google.com/gke-tpu-topology``: ``2x4``."""
    machine_type: str
    hosts: int
    chips_per_host: int
    devices_per_chip: int | None
    """JAX devices per chip. None if not published."""
    hbm_gib_per_chip: int | None
    requires_placement_policy: bool
    pathways_instance_type: str | None
    """Name of the slice in Pathways' resource manager (``tpuv6e:4x4``). None if unsupported there."""
    default_for_name: bool
    """Whether ``name`` alone means this slice among all topologies that share the name."""

    @property
    def chips(self) -> int:
        return self.hosts * self.chips_per_host

    @property
    def multi_host(self) -> bool:
        return self.hosts > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuMachine:
    """The host of a slice: a machine type, as published. A node leaves less than this to its pods."""

    name: str
    vcpus: int
    memory_gb: int


@cache
def families() -> Mapping[str, TpuFamily]:
    """Returns every supported generation by name, in the order of the file."""
    return {
        row["family"]: TpuFamily(
            name=row["family"],
            type_prefix=row["type_prefix"],
            chip=_chip(row) if row["jax_device_kind"] else None,
            cube_pod_chips=int(row["cube_pod_chips"]) if row["cube_pod_chips"] else None,
            compiler_chip_config=row["compiler_chip_config"] or None,
        )
        for row in _rows("tpu_families.csv")
        if not row["refused"]
    }


@cache
def refused_families() -> Mapping[str, str]:
    """Returns why a generation is not supported, by name, for those that users may expect to be."""
    return {row["family"]: row["refused"] for row in _rows("tpu_families.csv") if row["refused"]}


@cache
def all_shapes() -> Sequence[TpuShape]:
    """Returns every slice, in the order of the file."""
    return tuple(_shape(row, families()[row["family"]].chip) for row in _rows("tpu_slices.csv"))


@cache
def machines() -> Mapping[str, TpuMachine]:
    """Returns the machine types whose figures are published, by name."""
    return {
        row["machine_type"]: TpuMachine(
            name=row["machine_type"], vcpus=int(row["vcpus"]), memory_gb=int(row["memory_gb"])
        )
        for row in _rows("tpu_machines.csv")
        if row["vcpus"]
    }


def chips_of_topology(topology: str) -> int:
    """Returns the number of chips of a topology: 16 for ``4x4``."""
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
        # A suffix in the file ("v6e-8/1host") distinguishes slices of the same name; users do not write it.
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
