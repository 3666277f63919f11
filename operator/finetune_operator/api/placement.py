"""TPU slices to train on: ``spec.resources``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import ApiModel, Positive, ShortText, Topology, TpuName, distinct
from finetune_operator.api.rules import ValidationRule, all_or_none


class Controller(StrEnum):
    """How the hosts of a training run work together."""

    MCJAX = "McJAX"
    """One JAX process per host."""
    PATHWAYS = "Pathways"
    """One JAX process, on a CPU node, for all slices."""


class Capacity(StrEnum):
    """Kind of TPU capacity."""

    SPOT = "Spot"
    """Spot VMs, which can be preempted."""
    ON_DEMAND = "OnDemand"
    """On-demand VMs."""
    RESERVATION = "Reservation"
    """VMs of a reservation."""
    FLEX_START = "FlexStart"
    """Flex-start VMs, granted for a limited time."""


class Parallelism(ApiModel):
    """Axes of the device mesh; their product is the number of JAX devices over all slices."""

    data: Positive | None = None
    """Replicas of the whole model. Default: 1."""
    fsdp: Positive | None = None
    """Shards of weights and optimizer state, gathered by each device as needed. Default: the devices that data and
    tensor leave."""
    tensor: Positive | None = None
    """Shards of every matrix product. Default: 1."""


class Resources(ApiModel):
    """TPU slices to train on. An edit applies to the next attempt and keeps the resolved global batch size."""

    rules: ClassVar = (
        all_or_none("accelerator", "topology"),
        ValidationRule(
            cel="!(has(self.tpu) && has(self.accelerator))",
            message="tpu is a shorthand for accelerator and topology: remove tpu, or remove the other two",
            holds=lambda self: self.tpu is None or self.accelerator is None,
        ),
    )

    controller: Controller | None = None
    """How the hosts work together. Immutable once the job is admitted. Default: McJAX."""
    tpu: TpuName | None = None
    """Shorthand for accelerator and topology: family and size as Google names them, for example v6e-16, or family and
    topology, v6e-4x4 or v5p-2x2x4. Default: if accelerator is absent too, the cheapest slice of the profile's flavors
    on which the training fits, which preflight finds by compiling; with preflight.memory Off, the cheapest."""
    accelerator: ShortText | None = None
    """GKE's accelerator label, for example tpu-v6e-slice; needs topology."""
    topology: Topology | None = None
    """GKE's topology label, for example 4x4; needs accelerator."""
    chips_per_host: Annotated[Positive, Field(le=8)] | None = None
    """TPU chips per host, 1 to 8. Needed only where a topology exists with different hosts and the profile's flavor
    does not choose."""
    slices: Annotated[Positive, Field(le=256)] | None = None
    """Number of TPU slices, at most 256. Default: 1."""
    capacity: Annotated[tuple[Capacity, ...], Field(min_length=1, max_length=4), distinct()] | None = None
    """Kinds of capacity in order of preference, within the profile. Default: the profile's flavors in order."""
    parallelism: Parallelism | None = None
    """Axes of the device mesh. Default: fsdp over all devices."""
