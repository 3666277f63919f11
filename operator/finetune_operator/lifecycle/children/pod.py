"""A pod as decisions read it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.container import (
    CLOCKS_DIFFER,
    ContainerStatus,
    ContainerTermination,
    NodeClock,
)
from finetune_operator.lifecycle.children.fields import items, number, section, text, texts, time
from finetune_operator.lifecycle.children.object_condition import ObjectCondition, parse_condition
from finetune_operator.objects import Object
from finetune_operator.rendering.pathways import WORKER, WORKER_CONTAINER
from finetune_operator.rendering.pod import CONTAINER

type PodIndex = tuple[str | None, str | None, str]
"""Replicated job, slice and index of a pod."""

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
SLICE_LABEL = "jobset.sigs.k8s.io/job-index"
GROUP_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"


type SliceKind = tuple[tuple[str, str], ...]
"""Node labels with their values, sorted; empty for pods on CPU, such as Pathways' head."""

#: A kubelet accepts a pod within seconds after it was scheduled, and one that is down for longer loses its pods. Any
#: other time is an error of the node's clock.
_ACCEPTANCE = timedelta(seconds=-CLOCKS_DIFFER), timedelta(minutes=5)
SLICE_KIND_LABELS = ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology")


def slice_kind(pod_spec: Object) -> SliceKind:
    """Returns the node labels that select the kind of slice."""
    selector = section(pod_spec, "nodeSelector")
    return tuple((key, value) for key in SLICE_KIND_LABELS if (value := text(selector, key)) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a JobSet."""

    name: str
    key: AttemptKey | None
    """The attempt; None: the labels name none."""
    creation_timestamp: datetime | None
    deletion_timestamp: datetime | None
    """When its grace period ends or has ended, if it is being deleted."""
    finalizers: tuple[str, ...]
    """They keep the object after its containers have ended."""
    replicated_job: str | None
    slice_index: str | None
    completion_index: str | None
    """The pod's number in its slice."""
    node_name: str | None
    """None: the pod is not scheduled."""
    slice_kind: SliceKind
    termination_grace_period_seconds: int
    phase: str
    start_time: datetime | None
    """When the kubelet accepted the pod."""
    clock_ahead: timedelta
    """See :class:`NodeClock`, by which ``start_time`` and the containers' times are corrected."""
    unscheduled: ObjectCondition | None
    """PodScheduled if it is False: the scheduler found no node."""
    disruption_target: ObjectCondition | None
    """DisruptionTarget if it is True: Kubernetes terminates the pod."""
    failure_reason: str | None
    """Why the kubelet has failed the pod, such as Evicted; None if its containers ended."""
    failure_message: str | None
    """The kubelet's message about it."""
    last_change: datetime | None
    """Of a failed pod: the latest time in its metadata and conditions. None for all others."""
    containers: tuple[ContainerStatus, ...]
    init_containers: tuple[ContainerStatus, ...]
    unlimited: frozenset[str]
    """Names of the containers without a memory limit."""

    @classmethod
    def parse(cls, found: Object) -> "Pod":
        """Never raises on an object that an API server may hold. See :meth:`settled`."""
        metadata, spec, status = section(found, "metadata"), section(found, "spec"), section(found, "status")
        labels = section(metadata, "labels")
        conditions = items(status, "conditions")
        created, deleted = time(metadata, "creationTimestamp"), time(metadata, "deletionTimestamp")
        phase = text(status, "phase") or "Pending"
        clock = _clock(status, conditions)
        containers, init_containers = (
            tuple(ContainerStatus.parse(each, clock) for each in items(status, key))
            for key in ("containerStatuses", "initContainerStatuses")
        )
        return cls(
            name=text(metadata, "name") or "",
            key=AttemptKey.of(found),
            creation_timestamp=created,
            deletion_timestamp=deleted,
            finalizers=texts(metadata, "finalizers"),
            replicated_job=text(labels, GROUP_LABEL),
            slice_index=text(labels, SLICE_LABEL),
            completion_index=text(labels, INDEX_LABEL),
            node_name=text(spec, "nodeName"),
            slice_kind=slice_kind(spec),
            termination_grace_period_seconds=number(spec, "terminationGracePeriodSeconds"),
            phase=phase,
            start_time=clock.placed,
            clock_ahead=clock.ahead,
            unscheduled=parse_condition(conditions, "PodScheduled", "False"),
            disruption_target=parse_condition(conditions, "DisruptionTarget", "True"),
            failure_reason=text(status, "reason") if phase == "Failed" else None,
            failure_message=text(status, "message") if phase == "Failed" else None,
            last_change=_latest(created, deleted, conditions) if phase == "Failed" else None,
            containers=containers,
            init_containers=init_containers,
            unlimited=frozenset(
                text(each, "name") or ""
                for each in items(spec, "containers")
                if text(section(section(each, "resources"), "limits"), "memory") is None
            ),
        )

    def settled(self, latest: datetime) -> "Pod":
        """Returns the pod with the ends of its containers by the control plane's clock.

        What has ended had ended by ``latest``, and when the pod was deleted.
        """
        if not self.clock_ahead:
            return self
        clock = NodeClock(ahead=self.clock_ahead, placed=self.start_time)
        last = min(latest, self.deletion_timestamp) if self.deletion_timestamp else latest
        return replace(
            self,
            containers=tuple(each.settled(clock, last) for each in self.containers),
            init_containers=tuple(each.settled(clock, last) for each in self.init_containers),
        )

    @property
    def live(self) -> bool:
        """The pod's processes may still run."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def started(self) -> bool:
        """The pod's own containers run or have run. One of others that does not start keeps the phase Pending."""
        return self.phase != "Pending" or any(each.state.started for each in self.own_containers)

    @property
    def placed(self) -> bool:
        """The pod has a node: if it waits, it does not wait for capacity."""
        return self.started or bool(self.containers or self.init_containers) or self.node_name is not None

    @property
    def runs_trainer(self) -> bool:
        """False for Pathways' workers: they have a server's exit codes, and their index is not that of a process."""
        return self.replicated_job != WORKER

    @property
    def own_containers(self) -> tuple[ContainerStatus, ...]:
        """Those that the operator has rendered: others may be added at admission, such as a proxy's."""
        name = CONTAINER if self.runs_trainer else WORKER_CONTAINER
        return tuple(each for each in self.containers if each.name == name) or self.containers

    @property
    def outlives_trainer(self) -> bool:
        """The trainer has ended, and containers that others have added keep the pod."""
        others = (each for each in self.containers if each not in self.own_containers)
        ended = self.live and self.runs_trainer and bool(self.terminations)
        return ended and any(each.state.terminated is None for each in others)

    @property
    def index(self) -> PodIndex:
        """Identifies the pod among those of a JobSet; a pod that replaces it has the same."""
        return self.replicated_job, self.slice_index, self.completion_index or self.name

    @property
    def containers_started_at(self) -> datetime | None:
        """When the first container started, before all restarts by the kubelet; None if none has started."""
        states = (state for each in self.own_containers for state in (each.state, each.last_state))
        return min((each.started_at for each in states if each.started_at), default=None)

    @property
    def finished_at(self) -> datetime | None:
        """When the last of its own containers ended; None if none has ended, or the time is unknown."""
        return max((each.finished_at for each in self.terminations if each.finished_at), default=None)

    @property
    def terminations(self) -> list[ContainerTermination]:
        """Of its own containers that have ended and were not restarted."""
        return [each.state.terminated for each in self.own_containers if each.state.terminated]

    def is_unlimited(self, end: ContainerTermination) -> bool:
        """Whether the container that ended so has no memory limit."""
        return any(each.name in self.unlimited for each in self.containers if each.state.terminated is end)


def _clock(status: Object, conditions: Iterable[Object]) -> NodeClock:
    """The API server writes when the pod was scheduled, the kubelet when it accepted it."""
    accepted, scheduled = time(status, "startTime"), parse_condition(conditions, "PodScheduled", "True")
    placed = scheduled.last_transition_time if scheduled else None
    ahead = accepted - placed if accepted and placed else timedelta()
    if placed is None or _ACCEPTANCE[0] <= ahead <= _ACCEPTANCE[1]:
        return NodeClock(ahead=timedelta(), placed=accepted)
    return NodeClock(ahead=ahead, placed=placed)


def _latest(
    created: datetime | None, deleted: datetime | None, conditions: Iterable[Object]
) -> datetime | None:
    known = (created, deleted, *(time(each, "lastTransitionTime") for each in conditions))
    return max((each for each in known if each), default=None)
