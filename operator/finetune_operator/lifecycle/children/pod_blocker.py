"""Why pods do not run yet."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from finetune_operator.api import WaitingReason
from finetune_operator.lifecycle.children.container import ContainerStatus
from finetune_operator.lifecycle.children.pod import Pod

_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
#: The reason that usually lasts longest comes first.
_ORDER = (
    WaitingReason.CAPACITY,
    WaitingReason.INPUT,
    WaitingReason.IMAGE,
    WaitingReason.RETRY,
    WaitingReason.POD,
)
#: What the kubelet says of a container whose environment refers to a Secret or ConfigMap, or to a key, that is missing.
_MISSING = re.compile(
    r'(secret|configmap)s? "([^"]+)"|find key (\S+) in (Secret|ConfigMap) (?:[^/\s]+/)?(\S+)', re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodBlocker:
    """Why a pod does not run yet."""

    pod: str
    reason: WaitingReason
    message: str
    since: datetime | None

    @property
    def missing_reference(self) -> bool:
        """A Secret or ConfigMap that the pod refers to does not exist; the kubelet retries by itself."""
        return self.reason is WaitingReason.INPUT


def missing_reference(message: str) -> tuple[str, str, str | None] | None:
    """Returns kind, name and key of what the kubelet does not find; without a key, all of the object is missing. None
    if the message names neither a Secret nor a ConfigMap."""
    found = _MISSING.search(message)
    if found is None:
        return None
    kind = "Secret" if (found[1] or found[4]).lower() == "secret" else "ConfigMap"
    return kind, found[2] or found[5], found[3]


def pod_blocker(pods: Iterable[Pod]) -> PodBlocker | None:
    """Returns the first reason, by the order of ``_ORDER``, that a live pod does not run; None if all run."""
    found = (each for pod in pods if pod.live if (each := _blocker(pod)))
    return min(found, key=lambda each: _ORDER.index(each.reason), default=None)


def lacks_input(pod: Pod) -> bool:
    """Whether the pod has a node and starts when an image, a Secret or a ConfigMap appears."""
    found = _blocker(pod)
    return found is not None and found.reason in (WaitingReason.INPUT, WaitingReason.IMAGE)


def _blocker(pod: Pod) -> PodBlocker | None:
    # The kubelet writes no time on a waiting container.
    since = pod.start_time or pod.creation_timestamp
    if unscheduled := pod.unscheduled:
        message = "no reason reported" if unscheduled.message is None else unscheduled.message
        found: tuple[WaitingReason, str] | None = (
            WaitingReason.CAPACITY,
            f"no node has room for pod {pod.name}: {message}",
        )
        since = unscheduled.last_transition_time
    else:
        found = next(filter(None, map(_container_blocker, _containers(pod))), None) or _not_started(pod)
    return found and PodBlocker(pod=pod.name, reason=found[0], message=found[1], since=since)


def _container_blocker(container: ContainerStatus) -> tuple[WaitingReason, str] | None:
    reason, message = container.state.waiting_reason, container.state.waiting_message
    if reason == "CreateContainerConfigError" and missing_reference(message):
        return WaitingReason.INPUT, message
    if reason in _IMAGE_REASONS:
        return WaitingReason.IMAGE, f"image {container.image}: {reason}{f': {message}' if message else ''}"
    if reason == "CrashLoopBackOff":
        last = container.last_state.terminated
        code = last.exit_code if last else None
        said = f": {last.message.strip()}" if last and last.message else ""
        return WaitingReason.RETRY, f"container {container.name} keeps exiting (exit code {code}){said}"[
            :1024
        ]
    return None


def _not_started(pod: Pod) -> tuple[WaitingReason, str] | None:
    """The node creates no container: because of a volume, an address or a device, which only Events name."""
    if pod.started or not pod.placed:
        return None
    states = ((each.state.waiting_reason, each.state.waiting_message) for each in _containers(pod))
    reason = next(
        (": ".join(filter(None, each)) for each in states if each[0]), "no container was created yet"
    )
    node = "its node" if pod.node_name is None else pod.node_name
    return WaitingReason.POD, f"pod {pod.name} does not start on {node}: {reason}"


def _containers(pod: Pod) -> Iterator[ContainerStatus]:
    yield from pod.init_containers
    yield from pod.containers
