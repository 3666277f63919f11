"""Of a profile: the nodes that stages run on, and what they cost."""

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
"""Its parts become values of node labels."""
CompilerFlag = Annotated[
    str, Field(pattern=r"^--[A-Za-z0-9_]+(=[A-Za-z0-9_.,:;/+@%-]*)?$", min_length=3, max_length=256)
]
"""A flag of XLA, with = before its value."""
CompilerFlags = Annotated[tuple[CompilerFlag, ...], Field(max_length=40), *distinct()]
NodeSelector = Annotated[Mapping[LabelKey, LabelValue], Field(max_length=16)]


class TolerationOperator(StrEnum):
    """As in Kubernetes."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """As in Kubernetes."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(ApiModel):
    """A toleration, as in a pod."""

    key: LabelKey | None = None
    """Key of the taint. Default: any, with operator: Exists."""
    operator: TolerationOperator | None = None
    """Exists or Equal. Default: Equal."""
    value: LabelValue | None = None
    """Value of the taint, with operator: Equal."""
    effect: TaintEffect | None = None
    """Effect of the taint. Default: any."""
    toleration_seconds: NonNegative | None = None
    """How long a NoExecute taint is tolerated. Default: for ever."""


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=16)]


class Flavor(ApiModel):
    """TPU slices that a job may get, and what they cost."""

    rules: ClassVar = (
        ValidationRule(
            cel="(self.capacity == 'Reservation') == has(self.reservation)",
            message="reservation names the reservation of capacity: Reservation: set both or neither",
            holds=lambda self: (self.capacity is Capacity.RESERVATION) == (self.reservation is not None),
        ),
        ValidationRule(
            cel="!has(self.queuedProvisioning) || self.capacity == 'FlexStart'",
            message="queuedProvisioning is for capacity: FlexStart: remove it",
            holds=lambda self: self.queued_provisioning is None or self.capacity is Capacity.FLEX_START,
            at=("queuedProvisioning",),
        ),
    )

    name: DnsLabel
    """Name, for example spot."""
    capacity: Capacity
    """Kind of capacity."""
    accelerator: ShortText
    """GKE's accelerator label, for example tpu-v6e-slice."""
    topologies: Annotated[tuple[Topology, ...], Field(min_length=1, max_length=32), *distinct()]
    """GKE's topology labels that are allowed."""
    chips_per_host: Annotated[Positive, Field(le=8)] | None = None
    """Where a shape comes with different hosts: which one."""
    max_slices: Annotated[Positive, Field(le=256)] | None = None
    """Most slices per job. Default: 1."""
    # The bound of the contract's prices: a job's cost stays a number that its status holds.
    chip_hour_price: Annotated[NonNegativeNumber, Field(le=10**12)] | None = None
    """Price of a chip hour, in the profile's currency. Default: unknown, so no cost is shown."""
    reservation: Reservation | None = None
    """For capacity: Reservation: its name, or projects/PROJECT/reservations/NAME for one of another project; of a part
    of it with /reservationBlocks/BLOCK, and /reservationSubBlocks/SUBBLOCK after that."""
    queued_provisioning: Flag | None = None
    """For capacity: FlexStart: Kueue asks for all nodes at once, by an admission check of the queue, and node pools are
    made with --enable-queued-provisioning. false: pods select flex-start nodes by their label, queued or not. Default:
    true where a queue admits the job's stages on TPU, else false."""
    libtpu_init_args: CompilerFlags | None = None
    """Flags of the TPU compiler and runtime: LIBTPU_INIT_ARGS of the pods that hold chips, and of preflight's compiler.
    Not with controller: Pathways, whose servers have flags of their own. Default: those that MaxText sets for every
    dense model of the family; [] for none."""
    xla_flags: CompilerFlags | None = None
    """The same for XLA_FLAGS, which takes flags of XLA that are not libtpu's. Default: none."""
    node_selector: NodeSelector | None = None
    """Further node labels that are asked for. A label that the operator sets itself is replaced, and with the value ""
    removed."""
    tolerations: Tolerations | None = None
    """Further tolerations."""


class CpuPool(ApiModel):
    """Nodes for the stages on CPU."""

    node_selector: NodeSelector | None = None
    """Node labels that are asked for."""
    tolerations: Tolerations | None = None
    """Tolerations."""
    max_memory: Quantity | None = None
    """Most memory that a stage may request: what a node leaves for pods, not the size of the node. GKE leaves about
    118 GiB of 128, and DaemonSets take some of it: 115Gi. A value between what a node of a common size leaves and that
    size is lowered to the former. Default: no limit, so that a large model may wait for a node that no pool has."""
    max_ephemeral_storage: Quantity | None = None
    """Most scratch space that a stage may request: what a node leaves of its disk for pods. GKE leaves about 45 GiB of
    a disk of 100 GB, 151 GiB of 300 GB. Default: no limit, so that a large model may wait for a node that no pool
    has."""


class PathwaysNodes(ApiModel):
    """Nodes for Pathways' head, which holds no TPU."""

    head_node_selector: NodeSelector | None = None
    """Node labels that are asked for. Default: any node that has 48 cores and 232 GB free."""
