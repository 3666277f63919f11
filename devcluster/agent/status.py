"""A pod's status as a kubelet writes it, from the states of its containers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Any

from devcluster.agent.nodes import ADDRESS, timestamp
from finetune_operator.objects import Object

#: Bytes of a termination message that a kubelet keeps.
TERMINATION_MESSAGE_BYTES = 4096
#: Bytes of the log that it keeps instead, for FallbackToLogsOnError.
FALLBACK_BYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStateWaiting:
    """Not started, or about to be restarted."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStateRunning:
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStateTerminated:
    """Ended. ``exit_code`` is 128 + n after signal n."""

    exit_code: int
    reason: str
    message: str = ""
    started: datetime | None = None
    finished: datetime


type ContainerState = ContainerStateWaiting | ContainerStateRunning | ContainerStateTerminated


class ContainerRole(Enum):
    """The role of a container in its pod."""

    MAIN = auto()
    """Does the pod's work; the pod ends when it does."""
    INIT = auto()
    """Ends before the containers after it start."""
    SIDECAR = auto()
    """Starts in order with the init containers, and runs until the pod's work has ended."""


@dataclass(slots=True, kw_only=True)
class ContainerRecord:
    """One container's current and previous state."""

    name: str
    image: str
    role: ContainerRole = ContainerRole.MAIN
    state: ContainerState = field(default_factory=lambda: ContainerStateWaiting(reason="ContainerCreating"))
    last: ContainerStateTerminated | None = None
    restarts: int = 0

    @property
    def succeeded(self) -> bool:
        return isinstance(self.state, ContainerStateTerminated) and self.state.exit_code == 0

    @property
    def begun(self) -> bool:
        """Whether it has run at least once."""
        return self.last is not None or not isinstance(self.state, ContainerStateWaiting)

    @property
    def ready(self) -> bool:
        """Whether it is ready: running, or for an init container succeeded. There are no probes."""
        return (
            self.succeeded
            if self.role is ContainerRole.INIT
            else isinstance(self.state, ContainerStateRunning)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTermination:
    """Why the pod ended, if not by its containers alone; ``disrupted`` if the node ended it."""

    reason: str
    message: str
    disrupted: bool = False


def ended(
    exit_code: int, message: str, *, started: datetime, finished: datetime, out_of_memory: bool = False
) -> ContainerStateTerminated:
    """The state after the container ended by itself, with the reason that a kubelet gives."""
    reason = "OOMKilled" if out_of_memory else "Error"
    return ContainerStateTerminated(
        exit_code=exit_code,
        reason="Completed" if exit_code == 0 else reason,
        message=message[-TERMINATION_MESSAGE_BYTES:],
        started=started,
        finished=finished,
    )


def phase(inits: Sequence[ContainerRecord], containers: Sequence[ContainerRecord], *, over: bool) -> str:
    """Pending, Running, Succeeded or Failed.

    ``over``: nothing of the pod will run again. How sidecars ended does not count.
    """
    if over:
        work = (c for c in (*inits, *containers) if c.role is not ContainerRole.SIDECAR)
        return "Succeeded" if all(c.succeeded for c in work) else "Failed"
    return "Running" if all(c.begun for c in containers) else "Pending"


def pod_status(
    pod: Object,
    inits: Sequence[ContainerRecord],
    containers: Sequence[ContainerRecord],
    *,
    over: bool,
    ending: PodTermination | None,
    started: datetime,
    now: datetime,
) -> Object:
    """A strategic merge patch of the pod's status. Its uid limits it to this pod."""
    serving = (*containers, *(c for c in inits if c.role is ContainerRole.SIDECAR))
    ready = not over and all(c.ready for c in serving)
    status: dict[str, Any] = {
        "phase": phase(inits, containers, over=over),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "startTime": timestamp(started),
        "conditions": _conditions(pod, inits, containers, ready=ready, over=over, ending=ending, now=now),
        "containerStatuses": [container_status(record) for record in containers],
    }
    if inits:
        status["initContainerStatuses"] = [container_status(record) for record in inits]
    if ending is not None and status["phase"] == "Failed":
        status |= {"reason": ending.reason, "message": ending.message}
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}


def container_status(record: ContainerRecord) -> Object:
    """One entry of containerStatuses. Absent states are null: a merge patch would keep the old ones."""
    return {
        "name": record.name,
        "image": record.image,
        "imageID": record.image if record.begun else "",
        "ready": record.ready,
        "started": isinstance(record.state, ContainerStateRunning) and record.role is not ContainerRole.INIT,
        "restartCount": record.restarts,
        "state": _state(record.state),
        "lastState": _state(record.last),
    }


def _state(state: ContainerState | None) -> Object:
    empty: dict[str, Object | None] = {"waiting": None, "running": None, "terminated": None}
    match state:
        case ContainerStateWaiting():
            return {**empty, "waiting": {"reason": state.reason, "message": state.message or None}}
        case ContainerStateRunning():
            return {**empty, "running": {"startedAt": timestamp(state.since)}}
        case ContainerStateTerminated():
            terminated = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "message": state.message or None,
                "startedAt": timestamp(state.started) if state.started else None,
                "finishedAt": timestamp(state.finished),
            }
            return {**empty, "terminated": terminated}
        case None:
            return {**empty}


def _conditions(
    pod: Object,
    inits: Sequence[ContainerRecord],
    containers: Sequence[ContainerRecord],
    *,
    ready: bool,
    over: bool,
    ending: PodTermination | None,
    now: datetime,
) -> list[Object]:
    # a sidecar's later restart does not undo it
    initialized = any(record.begun for record in containers) or all(
        record.begun if record.role is ContainerRole.SIDECAR else record.succeeded for record in inits
    )
    reason = ""
    if over:
        reason = "PodCompleted" if phase(inits, containers, over=True) == "Succeeded" else "PodFailed"
    elif not ready:
        reason = "ContainersNotReady"
    rows: list[tuple[str, bool, str, str]] = [
        ("Initialized", initialized, "" if initialized else "ContainersNotInitialized", ""),
        ("ContainersReady", ready, reason, ""),
        ("Ready", ready, reason, ""),
    ]
    if ending is not None and ending.disrupted:
        rows.append(("DisruptionTarget", True, "TerminationByKubelet", ending.message))
    old = {condition["type"]: condition for condition in pod.get("status", {}).get("conditions", ())}
    return [_condition(row, old.get(row[0]), now) for row in rows]


def _condition(row: tuple[str, bool, str, str], old: Mapping[str, str] | None, now: datetime) -> Object:
    kind, holds, reason, message = row
    state = "True" if holds else "False"
    changed = old["lastTransitionTime"] if old and old["status"] == state else timestamp(now)
    return {
        "type": kind,
        "status": state,
        "reason": reason or None,
        "message": message or None,
        "lastTransitionTime": changed,
    }
