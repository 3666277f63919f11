"""The FineTuneProfile object of a platform team: how and where jobs may run."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from finetune_operator.api.common import (
    API_VERSION,
    ApiModel,
    DnsName,
    Flag,
    ImageRef,
    LabelKey,
    LabelValue,
    NonNegative,
    ShortText,
    Whole,
    distinct,
    list_map,
)
from finetune_operator.api.conditions import Condition
from finetune_operator.api.meta import ObjectMeta
from finetune_operator.api.profile_nodes import CpuPool, Flavor, PathwaysNodes
from finetune_operator.api.profile_policy import AllowedModels, Constraints, ProfileDefaults
from finetune_operator.api.rules import ValidationRule
from finetune_operator.api.uris import StorageUri

#: Marks the profile that jobs without profileRef run under.
DEFAULT_PROFILE_ANNOTATION = "tpu-finetune.dev/is-default-profile"


QueueName = Annotated[DnsName, Field(max_length=63)]
"""Name of a Kueue object, short enough for a label's value."""


NamespaceName = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?|\*)$", max_length=63)]
"""A namespace, or ``*`` for all."""


class Owner(ApiModel):
    """Team that owns the profile."""

    team: ShortText
    """Name of the owning team."""
    contact: ShortText | None = None
    """Contact of the team, shown in every refusal. Default: none."""


class Images(ApiModel):
    """Container images of the stages."""

    trainer: ImageRef
    """Image of the trainer, preferably by digest."""
    cpu: ImageRef | None = None
    """Image of the same release without libtpu, preferably by digest, for Convert and Export, which need no TPU
    compiler. Preflight compiles with libtpu and runs images.trainer. Default: images.trainer."""
    pathways_server: ImageRef | None = None
    """Image of Pathways' resource manager and workers. The tag must name the trainer's JAX version (jax-0.11.0), or use
    a digest; needs pathwaysProxy. Default: the one for the trainer's JAX."""
    pathways_proxy: ImageRef | None = None
    """Image of Pathways' proxy, of the same release; needs pathwaysServer. Default: the one for the trainer's JAX."""


CacheScope = Literal["Namespace", "Profile"]


class Storage(ApiModel):
    """Folders in object storage."""

    rules: ClassVar = (
        ValidationRule(
            cel="has(self.cacheScope) && self.cacheScope == 'Profile' ? has(self.cache) : true",
            message="a cache that namespaces share needs a folder of its own: set cache",
            holds=lambda self: self.cache_scope != "Profile" or self.cache is not None,
            at=("cacheScope",),
        ),
    )

    artifacts: StorageUri
    """Parent folder of all run folders: <artifacts>/<namespace>/<job>-<uid>."""
    cache: StorageUri | None = None
    """Folder of converted models, prepared data and results of compiled train steps: <cache>/<namespace> unless
    cacheScope says otherwise. Default: <artifacts>/<namespace>/cache."""
    cache_scope: CacheScope | None = None
    """Who shares a cache. Namespace: the jobs of one namespace. Profile: the jobs of all namespaces that the profile
    serves, which then trust each other with weights, training rows and settings chosen by compiling; needs cache.
    Default: Namespace."""
    pathways_scratch: StorageUri | None = None
    """Folder in gs:// for Pathways' own files, including compiled programs: <pathwaysScratch>/<namespace>. Default:
    <artifacts>/<namespace>/pathways."""
    optimizer_state_ttl_seconds: Annotated[NonNegative | None, Field(alias="optimizerStateTTLSeconds")] = None
    """Seconds after the end of a job at which its optimizer state is deleted. Not supported yet: a profile that sets it
    is refused. Default: keep."""


class ServiceAccounts(ApiModel):
    """Kubernetes service accounts of the pods, in the job's namespace."""

    tpu: DnsName | None = None
    """Service account of stages on TPU. Default: default."""
    cpu: DnsName | None = None
    """Service account of stages on CPU. Default: default."""


class Queue(ApiModel):
    """Kueue queues; each is a LocalQueue in the job's namespace."""

    rules: ClassVar = (
        ValidationRule(
            cel=(
                "has(self.priorityClass) ? has(self.localQueue) || has(self.cpuLocalQueue) "
                "|| (has(self.allowJobLabels) && self.allowJobLabels) : true"
            ),
            message="a priority needs a queue: set localQueue or cpuLocalQueue",
            holds=lambda self: (
                self.priority_class is None
                or self.local_queue is not None
                or self.cpu_local_queue is not None
                or self.allow_job_labels is True
            ),
            at=("priorityClass",),
        ),
    )

    local_queue: QueueName | None = None
    """LocalQueue of stages on TPU. Default: none; Kueue then queues them by its own rules alone."""
    cpu_local_queue: QueueName | None = None
    """LocalQueue of stages on CPU. Default: none; Kueue then queues them by its own rules alone."""
    priority_class: QueueName | None = None
    """WorkloadPriorityClass of the queued stages. Default: the queue's own order."""
    allow_job_labels: Flag | None = None
    """Whether the job's labels kueue.x-k8s.io/queue-name (for stages on TPU) and kueue.x-k8s.io/priority-class override
    these fields. Default: false; a job that carries them is refused."""


class EnvVar(ApiModel):
    """An environment variable of the trainer."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)]
    """Name of the environment variable."""
    value: Annotated[str, Field(max_length=4096)]
    """Value of the environment variable."""


class PodSettings(ApiModel):
    """Additions to every pod, and privileges of pods that hold chips."""

    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), list_map("name")] | None = None
    """Environment variables of the trainer. Default: none."""
    labels: Annotated[Mapping[LabelKey, LabelValue], Field(max_length=32)] | None = None
    """Labels of every pod, and of JobSets and Jobs unless the key is of *.k8s.io or tpu-finetune.dev, where controllers
    would read them. Default: none."""
    annotations: (
        Annotated[Mapping[LabelKey, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] | None
    ) = None
    """Annotations of every pod, and of JobSets and Jobs as for labels. Default: none."""
    job_labels: Annotated[tuple[LabelKey, ...], Field(max_length=16), distinct()] | None = None
    """Keys of labels of the job that its JobSets, Jobs and pods get as well, in place of those in labels, with the
    values at admission. Keys of *.k8s.io (with *.x-k8s.io) and tpu-finetune.dev are refused. Default: none."""
    priority_class_name: DnsName | None = None
    """PriorityClass of every pod, for the scheduler; the queue's order is queue.priorityClass. Default: the cluster's
    own."""
    scheduler_name: DnsName | None = None
    """Scheduler of every pod. Default: Kubernetes' own."""
    runtime_class_name: DnsName | None = None
    """RuntimeClass of every pod. Default: the nodes' own runtime."""
    cpu_limits: Flag | None = None
    """Whether every container that requests CPU is limited to what it requests, as a ResourceQuota of limits.cpu
    demands; it then never uses idle CPU of its node. Default: false."""
    host_network: Flag | None = None
    """Whether pods that hold chips use the node's network and thereby the node's Google identity. Default: false."""
    privileged: Flag | None = None
    """Whether containers that hold chips run as root with all privileges on their node, which some host setups need.
    Default: false."""


class FineTuneProfileSpec(ApiModel):
    """How and where jobs may run, and what they may use."""

    rules: ClassVar = (
        ValidationRule(
            cel=("!has(self.currency) ? !self.flavors.exists(f, has(f.chipHourPrice)) : true"),
            message="a price needs a currency: set currency, for example USD",
            holds=lambda self: (
                self.currency is not None or all(flavor.chip_hour_price is None for flavor in self.flavors)
            ),
        ),
        ValidationRule(
            cel=(
                "has(self.pod) && has(self.pod.hostNetwork) && self.pod.hostNetwork "
                "? !has(self.serviceAccounts) || !has(self.serviceAccounts.tpu) : true"
            ),
            message=(
                "on the node's network a pod has the node's Google identity, never that of serviceAccounts.tpu: "
                "remove serviceAccounts.tpu or pod.hostNetwork"
            ),
            holds=lambda self: (
                self.pod is None
                or self.pod.host_network is not True
                or self.service_accounts is None
                or self.service_accounts.tpu is None
            ),
            at=("pod", "hostNetwork"),
        ),
    )

    display_name: ShortText | None = None
    """Name of the profile for people. Default: metadata.name."""
    owner: Owner | None = None
    """Team that owns the profile. Default: none."""
    namespaces: Annotated[tuple[NamespaceName, ...], Field(max_length=256), distinct()] | None = None
    """Namespaces that may use the profile; "*" means all. Default, and when empty: none, but all in constraints.mode
    Open."""
    images: Images
    """Container images of the stages."""
    storage: Storage
    """Folders in object storage."""
    service_accounts: ServiceAccounts | None = None
    """Service accounts of the pods."""
    queue: Queue | None = None
    """Kueue queues of the stages. Default: not queued."""
    flavors: Annotated[tuple[Flavor, ...], Field(min_length=1, max_length=32), list_map("name")]
    """TPU slices in order of preference."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", max_length=3)] | None = None
    """Currency of all prices and budgets, for example USD. Required if a flavor has a price."""
    cpu_pool: CpuPool | None = None
    """Nodes for the stages on CPU. Default: any."""
    pathways: PathwaysNodes | None = None
    """Nodes for the head of Pathways. Default: any."""
    models: AllowedModels | None = None
    """Models that may be fine-tuned. Default: what constraints.uris.read allows."""
    defaults: ProfileDefaults | None = None
    """Values for fields that a job leaves out. Default: the built-in ones."""
    constraints: Constraints | None = None
    """Limits on what jobs may use and change."""
    pod: PodSettings | None = None
    """Additions to every pod, and privileges of pods that hold chips."""


class FineTuneProfileStatus(ApiModel):
    """Observed state of the profile."""

    observed_generation: Whole
    """metadata.generation that this status describes; -1: not processed yet."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8), list_map("type")] | None = None
    """Valid: all paths, keys and topologies of the spec are known. Stalled: the opposite, for kstatus. NamespaceLost:
    only while the operator may not watch a namespace that it serves and that may use the profile."""
    lost_namespaces: Annotated[tuple[NamespaceName, ...], Field(max_length=256)] | None = None
    """The namespaces that NamespaceLost is about, at most 256."""
    used_by: NonNegative | None = None
    """Number of unfinished jobs that run under the profile. Absent if the operator serves only some namespaces."""


class FineTuneProfile(ApiModel):
    """How and where fine-tuning jobs may run; owned by the platform team."""

    api_version: Literal["tpu-finetune.dev/v1alpha1"] = API_VERSION
    kind: Literal["FineTuneProfile"] = "FineTuneProfile"
    metadata: ObjectMeta
    spec: FineTuneProfileSpec
    """How and where jobs may run, and what they may use."""
    status: FineTuneProfileStatus | None = None
    """Observed state of the profile; written by the operator alone."""
