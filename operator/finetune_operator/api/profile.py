"""The FineTuneProfile that a platform team writes: how and where jobs may run."""

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
"""Name of an object of Kueue, as a label's value holds it."""


NamespaceName = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?|\*)$", max_length=63)]
"""A namespace, or all."""


class Owner(ApiModel):
    """Whom to ask."""

    team: ShortText
    """Name of the team."""
    contact: ShortText | None = None
    """How to reach them; stands in every refusal."""


class Images(ApiModel):
    """Container images."""

    trainer: ImageRef
    """The trainer's, best by digest."""
    cpu: ImageRef | None = None
    """The same release without libtpu, best by digest: of Convert and Export, which need no TPU compiler. Preflight
    compiles with libtpu and runs images.trainer. Default: images.trainer."""
    pathways_server: ImageRef | None = None
    """Of Pathways' resource manager and workers. The tag must name the JAX that the trainer has (jax-0.11.0), or give a
    digest; needs pathwaysProxy. Default: the one for the trainer's JAX."""
    pathways_proxy: ImageRef | None = None
    """Of Pathways' proxy, of the same release; needs pathwaysServer. Default: the one for the trainer's JAX."""


CacheScope = Literal["Namespace", "Profile"]


class Storage(ApiModel):
    """Where things are kept."""

    rules: ClassVar = (
        ValidationRule(
            cel="has(self.cacheScope) && self.cacheScope == 'Profile' ? has(self.cache) : true",
            message="a cache that namespaces share needs a folder of its own: set cache",
            holds=lambda self: self.cache_scope != "Profile" or self.cache is not None,
            at=("cacheScope",),
        ),
    )

    artifacts: StorageUri
    """Folder of all run folders: <artifacts>/<namespace>/<job>-<uid>."""
    cache: StorageUri | None = None
    """Folder of converted models, prepared data and what the compiler said of train steps: <cache>/<namespace> unless
    cacheScope says otherwise. Default: <artifacts>/<namespace>/cache."""
    cache_scope: CacheScope | None = None
    """Who shares a cache. Namespace: the jobs of one namespace. Profile: the jobs of all namespaces that the profile
    serves, which then trust each other with weights, training rows and settings chosen by compiling; needs cache.
    Default: Namespace."""
    pathways_scratch: StorageUri | None = None
    """Folder in gs:// for Pathways' own files, compiled programs among them: <pathwaysScratch>/<namespace>. Default:
    <artifacts>/<namespace>/pathways."""
    optimizer_state_ttl_seconds: Annotated[NonNegative | None, Field(alias="optimizerStateTTLSeconds")] = None
    """Drop optimizer state so long after the end of a job. Default: keep."""


class ServiceAccounts(ApiModel):
    """Kubernetes service accounts of the pods, in the job's namespace."""

    tpu: DnsName | None = None
    """Of stages on TPU. Default: default."""
    cpu: DnsName | None = None
    """Of stages on CPU. Default: default."""


class Queue(ApiModel):
    """Kueue queues, each a LocalQueue in the job's namespace."""

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
    """Queue of stages on TPU. Default: not queued."""
    cpu_local_queue: QueueName | None = None
    """Queue of stages on CPU. Default: not queued."""
    priority_class: QueueName | None = None
    """WorkloadPriorityClass of the stages that are queued. Default: the queue's own order."""
    allow_job_labels: Flag | None = None
    """Let the job's own labels kueue.x-k8s.io/queue-name (for stages on TPU) and kueue.x-k8s.io/priority-class win.
    Default: false; a job that carries them is refused."""


class EnvVar(ApiModel):
    """An environment variable of the trainer."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)]
    """Its name."""
    value: Annotated[str, Field(max_length=4096)]
    """Its value."""


class PodSettings(ApiModel):
    """Additions to every pod, and rights of those that hold chips."""

    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), *list_map("name")] | None = None
    """Environment variables."""
    labels: Annotated[Mapping[LabelKey, LabelValue], Field(max_length=32)] | None = None
    """Labels."""
    annotations: (
        Annotated[Mapping[LabelKey, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] | None
    ) = None
    """Annotations."""
    host_network: Flag | None = None
    """Pods that hold chips use the node's network; they then have the node's Google identity. Default: false."""
    privileged: Flag | None = None
    """Containers that hold chips are root with all rights on their node; some host set-ups need it. Default: false."""


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
    """Name for people. Default: metadata.name."""
    owner: Owner | None = None
    """Whom to ask."""
    namespaces: Annotated[tuple[NamespaceName, ...], Field(max_length=256), *distinct()] | None = None
    """Namespaces that may use the profile; "*" stands for all. Default, and when empty: none, and all in
    constraints.mode Open."""
    images: Images
    """Container images."""
    storage: Storage
    """Where things are kept."""
    service_accounts: ServiceAccounts | None = None
    """Service accounts of the pods."""
    queue: Queue | None = None
    """Kueue queues. Default: not queued."""
    flavors: Annotated[tuple[Flavor, ...], Field(min_length=1, max_length=32), *list_map("name")]
    """TPU slices in order of preference."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", max_length=3)] | None = None
    """Of all prices and budgets, for example USD."""
    cpu_pool: CpuPool | None = None
    """Nodes for the stages on CPU. Default: any."""
    pathways: PathwaysNodes | None = None
    """Nodes for Pathways' head."""
    models: AllowedModels | None = None
    """Models that may be tuned. Default: what constraints.uris.read allows."""
    defaults: ProfileDefaults | None = None
    """Values for what a job leaves out."""
    constraints: Constraints | None = None
    """What jobs may not exceed or change."""
    pod: PodSettings | None = None
    """Additions to every pod, and rights of those that hold chips."""


class FineTuneProfileStatus(ApiModel):
    """What the operator saw of the profile."""

    observed_generation: Whole
    """The generation of the spec that this status speaks of; -1: not looked at yet."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8), *list_map("type")] | None = None
    """Valid: its paths, keys and shapes are known ones. Stalled: the opposite, for kstatus."""
    used_by: NonNegative | None = None
    """Number of jobs that run under it and have not finished. Left out where an operator serves some namespaces."""


class FineTuneProfile(ApiModel):
    """How and where fine-tuning jobs may run; belongs to the platform team."""

    api_version: Literal["tpu-finetune.dev/v1alpha1"] = API_VERSION
    kind: Literal["FineTuneProfile"] = "FineTuneProfile"
    metadata: ObjectMeta
    spec: FineTuneProfileSpec
    """How and where jobs may run, and what they may use."""
    status: FineTuneProfileStatus | None = None
    """What was seen of it; written by the operator alone."""
