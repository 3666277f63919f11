"""Nodes of a profile that stages run on, and their prices."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from finetune_operator.api.common import (
    ApiModel,
    DnsLabel,
    Flag,
    LabelKey,
    LabelValue,
    NonNegative,
    NonNegativeNumber,
    Positive,
    Quantity,
    ShortText,
    Topology,
    distinct,
)
from finetune_operator.api.placement import Capacity
from finetune_operator.api.rules import ValidationRule

_GOOGLE_NAME = "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
Reservation = Annotated[
    str,
    Field(
        pattern=(
            f"^(projects/{_GOOGLE_NAME}/reservations/)?{_GOOGLE_NAME}"
            f"(/reservationBlocks/{_GOOGLE_NAME}(/reservationSubBlocks/{_GOOGLE_NAME})?)?$"
        ),
        max_length=320,
    ),
]
"""A reservation, whose parts become values of node labels."""
CompilerFlag = Annotated[
    str, Field(pattern=r"^--[A-Za-z0-9_]+(=[A-Za-z0-9_.,:;/+@%-]*)?$", min_length=3, max_length=256)
]
"""An XLA flag, with ``=`` before its value."""
CompilerFlags = Annotated[tuple[CompilerFlag, ...], Field(max_length=40), distinct()]
NodeSelector = Annotated[Mapping[LabelKey, LabelValue], Field(max_length=16)]


class TolerationOperator(StrEnum):
    """Comparison with the taint's value, as in Kubernetes."""

    EXISTS = "Exists"
    """Matches every value."""
    EQUAL = "Equal"
    """Matches an equal value."""


class TaintEffect(StrEnum):
    """Effect of the taint, as in Kubernetes."""

    NO_SCHEDULE = "NoSchedule"
    """Pods are not scheduled."""
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    """Pods are scheduled elsewhere if possible."""
    NO_EXECUTE = "NoExecute"
    """Running pods are evicted, too."""


class Toleration(ApiModel):
    """A toleration, as in a pod's spec."""

    key: LabelKey | None = None
    """Key of the taint. Default: any, with operator: Exists."""
    operator: TolerationOperator | None = None
    """Comparison with the taint's value. Default: Equal."""
    value: LabelValue | None = None
    """Value of the taint, with operator: Equal."""
    effect: TaintEffect | None = None
    """Effect of the taint. Default: any."""
    toleration_seconds: NonNegative | None = None
    """Seconds for which a NoExecute taint is tolerated; 0 evicts at once. Default: without limit."""


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=16)]


class HostResources(ApiModel):
    """What a pod that holds a host's chips requests besides them."""

    cpu: Quantity | None = None
    """Cores of the request; the pod may use more. Default: none requested."""
    memory: Quantity | None = None
    """Memory of the request, which is also the limit: including shared memory and the files in emptyDir volumes of
    medium Memory. Default: neither."""


class Flavor(ApiModel):
    """TPU slices that a job may use, and their price."""

    rules: ClassVar = (
        ValidationRule(
            cel="(self.capacity == 'Reservation') == has(self.reservation)",
            message="reservation names the reservation of capacity: Reservation: set both or neither",
            holds=lambda self: (self.capacity == Capacity.RESERVATION) == (self.reservation is not None),
        ),
        ValidationRule(
            cel="!has(self.queuedProvisioning) || self.capacity == 'FlexStart'",
            message="queuedProvisioning is for capacity: FlexStart: remove it",
            holds=lambda self: self.queued_provisioning is None or self.capacity == Capacity.FLEX_START,
            at=("queuedProvisioning",),
        ),
    )

    name: DnsLabel
    """Name of the flavor, for example spot."""
    capacity: Capacity
    """Kind of TPU capacity."""
    accelerator: ShortText
    """GKE's accelerator label, for example tpu-v6e-slice."""
    topologies: Annotated[tuple[Topology, ...], Field(min_length=1, max_length=32), distinct()]
    """Allowed topologies, as in GKE's topology label."""
    chips_per_host: Annotated[Positive, Field(le=8)] | None = None
    """TPU chips per host, 1 to 8, where a topology exists with different hosts."""
    max_slices: Annotated[Positive, Field(le=256)] | None = None
    """Most slices per job, at most 256. Default: 1."""
    # The bound of the contract's prices, so that a job's cost is a number that the status can hold.
    chip_hour_price: Annotated[NonNegativeNumber, Field(le=10**12)] | None = None
    """Price of a TPU chip hour in the profile's currency; 0 means free. Default: unknown, so no cost is shown."""
    reservation: Reservation | None = None
    """For capacity: Reservation: its name, or projects/PROJECT/reservations/NAME for one of another project; followed
    by /reservationBlocks/BLOCK for a block of it, and by /reservationSubBlocks/SUBBLOCK for a sub-block."""
    queued_provisioning: Flag | None = None
    """For capacity: FlexStart: true if Kueue requests all nodes at once by an admission check of the queue, and node
    pools are created with --enable-queued-provisioning; false if pods select flex-start nodes by their label, queued or
    not. Default: true where a queue admits the job's stages on TPU, else false."""
    libtpu_init_args: CompilerFlags | None = None
    """Flags of the TPU compiler and runtime: LIBTPU_INIT_ARGS of the pods that hold chips, and of preflight's compiler.
    Not with controller: Pathways, whose servers have their own flags. Default: those that MaxText sets for every dense
    model of the family; [] for none."""
    xla_flags: CompilerFlags | None = None
    """XLA_FLAGS of the same pods and compiler, for XLA flags that are not libtpu's. Default: none."""
    node_selector: NodeSelector | None = None
    """Further node labels to select. A label that the operator sets itself is replaced, and with the value "" removed.
    Default: none."""
    tolerations: Tolerations | None = None
    """Further tolerations of pods that hold chips. Default: none."""
    host_resources: HostResources | None = None
    """CPU and memory that each pod that holds chips requests besides them; {} for none. What a node cannot provide next
    to its DaemonSets keeps the pod waiting. Default: what the machine type leaves to one pod, where its size is
    published and no queue admits the job's stages on TPU, whose ClusterQueue would have to cover cpu and memory; else
    none."""


class CpuPool(ApiModel):
    """Nodes for the stages on CPU."""

    node_selector: NodeSelector | None = None
    """Node labels to select. Default: none."""
    tolerations: Tolerations | None = None
    """Tolerations of the stages on CPU. Default: none."""
    max_memory: Quantity | None = None
    """Most memory that a stage may request: what a node leaves for pods, not the size of the node. GKE leaves about 118
    GiB of 128, and DaemonSets use part of it: 115Gi. A value between a common node size and what such a node leaves is
    lowered to the latter. Default: no limit, so that a large model may wait for a node that no pool has."""
    max_ephemeral_storage: Quantity | None = None
    """Most ephemeral storage that a stage may request: what a node leaves of its disk for pods. GKE leaves about 45 GiB
    of a disk of 100 GB, 151 GiB of 300 GB. Default: no limit, so that a large model may wait for a node that no pool
    has."""


class PathwaysNodes(ApiModel):
    """Nodes for the head of Pathways, which holds no TPU."""

    head_node_selector: NodeSelector | None = None
    """Node labels to select. Default: any node that has 48 cores and 232 GB free."""
