"""A pod's status as a kubelet writes it, from the states of its containers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from devcluster.agent.nodes import timestamp
from devcluster.kube import Object

#: A kubelet keeps this much of a termination message.
TERMINATION_MESSAGE_BYTES = 4096
#: …and this much of the log in its place, for FallbackToLogsOnError.
FALLBACK_BYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not started, or about to be started again."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """Ended. ``exit_code`` is 128 + n after signal n."""

    exit_code: int
    reason: str
    message: str = ""
    started: datetime | None = None
    finished: datetime


type ContainerState = Waiting | Running | Terminated


@dataclass(slots=True, kw_only=True)
class ContainerRecord:
    """One container's present and previous state."""

    name: str
    image: str
    state: ContainerState = field(default_factory=lambda: Waiting(reason="ContainerCreating"))
    last: Terminated | None = None
    restarts: int = 0

    @property
    def succeeded(self) -> bool:
        return isinstance(self.state, Terminated) and self.state.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why the pod as a whole ended other than by its containers alone; ``disrupted`` for a node's own doing."""

    reason: str
    message: str
    disrupted: bool = False


def ended(
    exit_code: int, message: str, *, started: datetime, finished: datetime, out_of_memory: bool = False
) -> Terminated:
    """An end of the container's own, with the reason that a kubelet gives it."""
    reason = "OOMKilled" if out_of_memory else "Error"
    return Terminated(
        exit_code=exit_code,
        reason="Completed" if exit_code == 0 else reason,
        message=message[-TERMINATION_MESSAGE_BYTES:],
        started=started,
        finished=finished,
    )


def phase(inits: Sequence[ContainerRecord], containers: Sequence[ContainerRecord], *, over: bool) -> str:
    """Pending, Running, Succeeded or Failed. ``over``: nothing of the pod will run again."""
    if over:
        return "Succeeded" if all(c.succeeded for c in (*inits, *containers)) else "Failed"
    if all(isinstance(c.state, Waiting) and c.restarts == 0 for c in containers):
        return "Pending"
    return "Running"


def pod_status(
    pod: Object,
    inits: Sequence[ContainerRecord],
    containers: Sequence[ContainerRecord],
    *,
    over: bool,
    ending: Ending | None,
    started: datetime,
    now: datetime,
) -> Object:
    """A strategic merge patch of the pod's status; it applies to this very pod only (its uid is in it)."""
    ready = not over and all(isinstance(c.state, Running) for c in containers)
    status: Object = {
        "phase": phase(inits, containers, over=over),
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
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
    running = isinstance(record.state, Running)
    return {
        "name": record.name,
        "image": record.image,
        "imageID": "" if isinstance(record.state, Waiting) and record.restarts == 0 else record.image,
        "ready": running,
        "started": running,
        "restartCount": record.restarts,
        "state": _state(record.state),
        "lastState": _state(record.last),
    }


def _state(state: ContainerState | None) -> Object:
    empty: dict[str, Object | None] = {"waiting": None, "running": None, "terminated": None}
    match state:
        case Waiting():
            return {**empty, "waiting": {"reason": state.reason, "message": state.message or None}}
        case Running():
            return {**empty, "running": {"startedAt": timestamp(state.since)}}
        case Terminated():
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
    ending: Ending | None,
    now: datetime,
) -> list[Object]:
    initialized = all(record.succeeded for record in inits)
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
