"""What a JAX device of each TPU family can do, as its maker publishes it."""

from collections.abc import Mapping
from dataclasses import dataclass

from finetune_trainer.compiled.cost import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Rates per chip and second."""

    bf16_flops: float
    hbm_bytes: float
    network_bytes: float
    """Between the chips of a slice, all links together, one way."""
    kind: str
    """JAX's name of a device; the compiler for a slice that is not there says the same."""
    devices: int = 1
    """JAX devices that share the rates."""


#: docs.cloud.google.com/tpu/docs: one page per family. Network: the published bits per second of all links, halved.
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(kind="TPU v4", bf16_flops=275e12, hbm_bytes=1228e9, network_bytes=150e9),
    "v5e": Chip(kind="TPU v5 lite", bf16_flops=197e12, hbm_bytes=819e9, network_bytes=100e9),
    "v5p": Chip(kind="TPU v5", bf16_flops=459e12, hbm_bytes=2765e9, network_bytes=300e9),
    "v6e": Chip(kind="TPU v6 lite", bf16_flops=918e12, hbm_bytes=1638e9, network_bytes=224e9),
    "tpu7x": Chip(kind="TPU7x", bf16_flops=2307e12, hbm_bytes=7380e9, network_bytes=600e9, devices=2),
}


def peak_flops(device_kind: str) -> float | None:
    """Of one JAX device, per second in bfloat16; None for one that is no TPU of the table."""
    return next((chip.bf16_flops / chip.devices for chip in CHIPS.values() if chip.kind == device_kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Seconds of a step."""

    low: float
    """Arithmetic at the published rate, or the state read and written once: no step is faster."""
    high: float
    """Arithmetic, memory and network one after the other, each byte that the compiler counts moved through memory."""


def roofline(cost: Cost, state_bytes: int, chip: Chip) -> Interval:
    """Args:
    cost: of one step on one device.
    state_bytes: what a device reads and writes at least: its arguments and results.
    """
    compute = cost.flops * chip.devices / chip.bf16_flops
    memory = chip.devices / chip.hbm_bytes
    network = cost.network_bytes * chip.devices / chip.network_bytes
    return Interval(low=max(compute, state_bytes * memory), high=compute + cost.hbm_bytes * memory + network)
