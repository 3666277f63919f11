"""What JobSets and pods say, read off their plain objects."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from finetune_contract.base import MOST_CHIPS
from finetune_operator.api import WaitingReason
from finetune_operator.lifecycle.times import parse
from finetune_operator.rendering.pathways import WORKER

type Object = Mapping[str, Any]
type Place = tuple[str | None, str | None, str]
"""Replicated job, slice and index of a pod."""

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
SLICE_LABEL = "jobset.sigs.k8s.io/job-index"
GROUP_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
SLICE_KIND_LABELS = ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology")
_TERMINAL = ("Completed", "Failed")
_SUFFIXES = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m"), start=-3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(
    r"\+?([0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})([numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]{1,3})"
)
_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodBlocker:
    """Why a pod does not run yet."""

    pod: str
    reason: WaitingReason
    message: str
    since: datetime | None
    missing_reference: bool = False
    """A Secret or ConfigMap that the pod refers to is not there; the kubelet tries again by itself."""


def condition(child: Object, kind: str) -> Object | None:
    """The condition of that type where its status is True."""
    for each in child.get("status", {}).get("conditions", ()):
        if each["type"] == kind and each["status"] == "True":
            return dict(each)
    return None


def deleting(child: Object) -> bool:
    return "deletionTimestamp" in child["metadata"]


def jobset_ended(jobset: Object) -> bool:
    """Completed or failed. One that is merely being deleted has not ended: its pods may still be saving."""
    return any(condition(jobset, kind) for kind in _TERMINAL)


def jobset_end_time(jobset: Object) -> datetime | None:
    """When it ended, or None."""
    for kind in _TERMINAL:
        found = condition(jobset, kind)
        if found and "lastTransitionTime" in found:
            return parse(found["lastTransitionTime"])
    return None


def pods_expected(jobset: Object) -> int:
    """How many pods it makes."""
    return min(sum(_replicas(each) * _parallelism(each) for each in _replicated(jobset)), MOST_CHIPS)


def chips(jobset: Object) -> int | None:
    """How many TPU chips its pods hold; None where a limit is no quantity."""
    limits = [
        (_replicas(each) * _parallelism(each), _quantity(limit))
        for each in _replicated(jobset)
        for container in _pod_spec(each).get("containers", ())
        if (limit := container.get("resources", {}).get("limits", {}).get("google.com/tpu")) is not None
    ]
    if any(limit is None for _, limit in limits):
        return None
    return min(sum(pods * (limit or 0) for pods, limit in limits), MOST_CHIPS)


def hosts_per_slice(jobset: Object) -> int:
    """How many pods, each on a node of its own, make one slice."""
    return max(map(_parallelism, _replicated(jobset)), default=1)


def _replicated(jobset: Object) -> Iterable[Object]:
    found: Iterable[Object] = jobset["spec"].get("replicatedJobs", ())
    return found


def _replicas(replicated: Object) -> int:
    return int(replicated.get("replicas", 1))


def _parallelism(replicated: Object) -> int:
    return int(replicated.get("template", {}).get("spec", {}).get("parallelism", 1))


def _pod_spec(replicated: Object) -> Object:
    found: Object = replicated.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
    return found


def _quantity(value: object) -> int | None:
    """A Kubernetes quantity as a whole number, rounded up; None where it is none."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, suffix = match.groups()
    exponent = suffix[1:] if suffix[:1] in ("e", "E") and suffix != "E" else None
    amount = Decimal(number).scaleb(int(exponent)) if exponent else Decimal(number) * _SUFFIXES[suffix]
    return math.ceil(min(amount, Decimal(MOST_CHIPS)))


def suspended(jobset: Object) -> bool:
    """By Kueue or by hand: it may have no pods now."""
    return bool(jobset["spec"].get("suspend"))


def unsuspended_at(jobset: Object, *, queued: bool) -> datetime | None:
    """Since when it may make its pods. In a queue that is when its own controller let it go, a moment after Kueue."""
    resumed = resumed_at(jobset)
    if queued or resumed:
        return resumed
    return created_at(jobset)


def created_at(child: Object) -> datetime | None:
    """When the API server took it; None where it does not say."""
    created = child["metadata"].get("creationTimestamp")
    return parse(created) if created else None


def resumed_at(jobset: Object) -> datetime | None:
    """When it was let go after a suspension; None where it never was suspended, or is."""
    for each in jobset.get("status", {}).get("conditions", ()):
        if each["type"] == "Suspended" and each["status"] == "False" and "lastTransitionTime" in each:
            return parse(each["lastTransitionTime"])
    return None


def pod_live(pod: Object) -> bool:
    """Its processes may still run."""
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase not in ("Succeeded", "Failed")


def pod_started(pod: Object) -> bool:
    """Its container runs or has run."""
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase != "Pending"


def pod_placed(pod: Object) -> bool:
    """It has a node: what it still waits for is no capacity."""
    status = pod.get("status", {})
    told = status.get("containerStatuses") or status.get("initContainerStatuses")
    return pod_started(pod) or bool(told) or "nodeName" in pod.get("spec", {})


def waiting_since(pods: Iterable[Object]) -> datetime | None:
    """Since when the oldest of pods that wait has been there; None where none of them says."""
    return min((since for pod in pods if (since := _made_at(pod))), default=None)


def _made_at(pod: Object) -> datetime | None:
    unscheduled = (
        each.get("lastTransitionTime")
        for each in pod.get("status", {}).get("conditions", ())
        if each["type"] == "PodScheduled" and each["status"] == "False"
    )
    told = next((each for each in unscheduled if each), None)
    return created_at(pod) or (parse(told) if told else None)


def pod_blocker(pods: Iterable[Object]) -> PodBlocker | None:
    """The first reason, in the order of what stands in the way longest, that a pod does not run."""
    found = [each for pod in pods if pod_live(pod) if (each := _hindrance(pod))]
    order = (
        WaitingReason.CAPACITY,
        WaitingReason.INPUT,
        WaitingReason.IMAGE,
        WaitingReason.RETRY,
        WaitingReason.POD,
    )
    return min(found, key=lambda each: order.index(each.reason), default=None)


def lacks_input(pod: Object) -> bool:
    """It has a node, and lacks an image, a Secret or a ConfigMap: it starts when that appears."""
    found = _hindrance(pod)
    return found is not None and (found.missing_reference or found.reason is WaitingReason.IMAGE)


def _hindrance(pod: Object) -> PodBlocker | None:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    # The kubelet puts no time on a waiting container; it has had the pod since then.
    taken = status.get("startTime")
    since = parse(taken) if taken else created_at(pod)
    for each in status.get("conditions", ()):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            told = each.get("lastTransitionTime")
            return PodBlocker(
                pod=name,
                reason=WaitingReason.CAPACITY,
                message=f"no node has room for pod {name}: {each.get('message', 'not said why')}",
                since=parse(told) if told else None,
            )
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        reason, message = waiting.get("reason"), waiting.get("message", "")
        if reason == "CreateContainerConfigError":
            return PodBlocker(
                pod=name, reason=WaitingReason.INPUT, message=message, since=since, missing_reference=True
            )
        if reason in _IMAGE_REASONS:
            return PodBlocker(
                pod=name,
                reason=WaitingReason.IMAGE,
                message=f"image {container.get('image', '')}: {reason}{f': {message}' if message else ''}",
                since=since,
            )
        if reason == "CrashLoopBackOff":
            last = container.get("lastState", {}).get("terminated", {})
            said = f": {last['message'].strip()}" if last.get("message") else ""
            return PodBlocker(
                pod=name,
                reason=WaitingReason.RETRY,
                message=f"container {container['name']} keeps ending (exit code {last.get('exitCode')}){said}"[
                    :1024
                ],
                since=since,
            )
    return _not_started(pod, since)


def _not_started(pod: Object, since: datetime | None) -> PodBlocker | None:
    """Its node makes no container of it: a volume, an address, a device; the kubelet tells which in Events alone."""
    if pod_started(pod) or not pod_placed(pod):
        return None
    status = pod.get("status", {})
    told = (
        container.get("state", {}).get("waiting", {}).get("reason")
        for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    )
    name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "its node")
    reason = next((each for each in told if each), "no container yet")
    return PodBlocker(
        pod=name,
        reason=WaitingReason.POD,
        message=f"pod {name} does not start on {node}: {reason}",
        since=since,
    )


def running_span(pods: Iterable[Object]) -> tuple[datetime, datetime | None] | None:
    """From the moment that each place of the slice had its process to the end of the last one, None while one runs;
    None where none has started. A pod or a container that takes the place of another begins nothing anew."""
    every = list(pods)
    states = _states(every)
    first: dict[Place, datetime] = {}
    for pod in every:
        if begun := _starts(_states([pod], last=True)):
            place = _place(pod)
            first[place] = min([*begun, *([first[place]] if place in first else ())])
    if not first:
        return None
    begin = max(first.values())
    if any("running" in state for state in states):
        return begin, None
    return begin, max([begin, *_ends(states)])


def all_on_nodes_at(pods: Iterable[Object]) -> datetime | None:
    """When the last of the pods came to its node, whose kubelet then fetches its image; None where one has not."""
    came = [pod.get("status", {}).get("startTime") for pod in pods]
    return max((parse(each) for each in came), default=None) if all(came) else None


def pod_ended_at(pod: Object) -> datetime | None:
    """When its last container ended; None where it does not say."""
    return max(_ends(_states([pod])), default=None)


def _place(pod: Object) -> Place:
    """Which of a JobSet's pods it is, or stands in for."""
    labels = pod["metadata"].get("labels", {})
    index = labels.get(INDEX_LABEL)
    # Without an index it is a place of its own.
    return labels.get(GROUP_LABEL), labels.get(SLICE_LABEL), index or pod["metadata"]["name"]


def slice_kind(pod: Object) -> tuple[tuple[str, str], ...]:
    """The node labels that select the pod's kind of slice; empty for a pod on CPU, as Pathways' head is one."""
    selector = pod.get("spec", {}).get("nodeSelector", {})
    return tuple(sorted((key, value) for key, value in selector.items() if key in SLICE_KIND_LABELS))


def slice_kinds(jobset: Object) -> set[tuple[tuple[str, str], ...]]:
    """Those of the pods that a JobSet makes."""
    groups = jobset.get("spec", {}).get("replicatedJobs", ())
    return {slice_kind(each["template"]["spec"]["template"]) for each in groups}


def first_start(pods: Iterable[Object]) -> datetime | None:
    """Of the first container that has started; None where none has."""
    return min(_starts(_states(pods)), default=None)


def last_start(pods: Iterable[Object]) -> datetime | None:
    """When the last of these pods began to run; None where none has. A container that the kubelet starts again begins
    nothing anew, a pod that takes the place of another does."""
    return max((min(begun) for pod in pods if (begun := _starts(_states([pod], last=True)))), default=None)


def _states(pods: Iterable[Object], *, last: bool = False) -> list[Object]:
    """Of the containers that have started; ``last``: with what the same container was before the kubelet started it
    again."""
    kinds = ("state", "lastState") if last else ("state",)
    return [
        container[kind]
        for pod in pods
        for container in pod.get("status", {}).get("containerStatuses", ())
        for kind in kinds
        if container.get(kind, {}).keys() & {"running", "terminated"}
    ]


def _ends(states: Iterable[Object]) -> list[datetime]:
    return [
        parse(told["finishedAt"])
        for state in states
        if (told := state.get("terminated")) and told.get("finishedAt")
    ]


def _starts(states: Iterable[Object]) -> list[datetime]:
    return [
        parse(told["startedAt"])
        for state in states
        if (told := state.get("running") or state.get("terminated")) and told.get("startedAt")
    ]


def pod_of(pods: Iterable[Object], host: int, per_slice: int) -> Object | None:
    """The pod of the process of that number; they are counted slice by slice."""
    place = tuple(str(each) for each in divmod(host, per_slice))
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        if (labels.get(SLICE_LABEL, "0"), labels.get(INDEX_LABEL)) == place and _runs_trainer(pod):
            return pod
    return None


def node_of(pods: Iterable[Object], host: int, per_slice: int) -> str | None:
    """The node of the process of that number; of any pod where none is called that."""
    placed = [pod for pod in pods if pod.get("spec", {}).get("nodeName") and _runs_trainer(pod)]
    pod = pod_of(placed, host, per_slice) or next(iter(placed), None)
    return pod["spec"]["nodeName"] if pod else None


def _runs_trainer(pod: Object) -> bool:
    """Pathways' workers do not: their server's exit codes are its own, and their index is not that of a process."""
    return bool(pod["metadata"].get("labels", {}).get(GROUP_LABEL) != WORKER)


def terminated(pods: Iterable[Object]) -> list[tuple[Object, Object]]:
    """(pod, state.terminated of its container) of every pod of the trainer that tells how its process ended."""
    return [
        (pod, container["state"]["terminated"])
        for pod in pods
        if _runs_trainer(pod)
        for container in pod.get("status", {}).get("containerStatuses", ())
        if "terminated" in container.get("state", {})
    ]


def worker_restarts(pods: Iterable[Object]) -> int:
    """How often Pathways' workers have been started again on their nodes, as far as their pods are there to tell."""
    return sum(int(each.get("restartCount", 0)) for each in _worker_containers(pods))


def workers_given_up(jobset: Object) -> bool:
    """A worker's Job has failed: it had to be started again more often than its backoffLimit lets it."""
    return any(
        each["name"] == WORKER and each.get("failed", 0) > 0
        for each in jobset.get("status", {}).get("replicatedJobsStatus", ())
    )


def workers_last_words(pods: Iterable[Object]) -> str:
    """How a worker ended, of those that tell it; empty where none does."""
    ends = (
        (each.get("state", {}).get("terminated") or each.get("lastState", {}).get("terminated"))
        for each in _worker_containers(pods)
    )
    return next((f"exit code {end['exitCode']}: {end.get('message', '')}" for end in ends if end), "")


def _worker_containers(pods: Iterable[Object]) -> Iterator[Object]:
    for pod in pods:
        if not _runs_trainer(pod):
            yield from pod.get("status", {}).get("containerStatuses", ())
