"""The status of a pod's container as decisions read it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from finetune_contract.log_line import readable
from finetune_operator.api.timestamps import after
from finetune_operator.lifecycle.children.fields import Object, items, number, section, text, time


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerTermination:
    """How a container's process ended."""

    exit_code: int
    reason: str | None
    message: str
    finished_at: datetime | None

    @classmethod
    def parse(cls, found: Object, ahead: timedelta) -> "ContainerTermination":
        begun, finished = time(found, "startedAt"), time(found, "finishedAt")
        if begun and finished and begun > finished:
            # The node's clock was set right in between.
            ahead = timedelta()
        return cls(
            exit_code=number(found, "exitCode"),
            reason=text(found, "reason"),
            # Without a termination message it is the end of the log.
            message=readable(text(found, "message") or ""),
            finished_at=_earlier(finished, ahead),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """Waiting, running or terminated; none of these if the kubelet has reported nothing."""

    waiting_reason: str | None = None
    waiting_message: str = ""
    running: bool = False
    started_at: datetime | None = None
    terminated: ContainerTermination | None = None

    @classmethod
    def parse(cls, found: Object, ahead: timedelta) -> "ContainerState":
        waiting, terminated = section(found, "waiting"), section(found, "terminated")
        running = section(found, "running")
        return cls(
            waiting_reason=text(waiting, "reason"),
            waiting_message=text(waiting, "message") or "",
            running="running" in found,
            started_at=_earlier(time(running or terminated, "startedAt"), ahead),
            terminated=ContainerTermination.parse(terminated, ahead) if "terminated" in found else None,
        )

    @property
    def started(self) -> bool:
        """The process runs or has run."""
        return self.running or self.terminated is not None


_UNREPORTED = ContainerState()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """An entry of ``containerStatuses`` or ``initContainerStatuses``."""

    name: str
    image: str
    image_id: str
    """What the image's name stood for on the node; empty until the container has started."""
    restart_count: int
    state: ContainerState
    last_state: ContainerState
    """The state before the kubelet restarted the container."""

    @classmethod
    def parse(cls, found: Object, ahead: timedelta) -> "ContainerStatus":
        return cls(
            name=text(found, "name") or "",
            image=text(found, "image") or "",
            image_id=text(found, "imageID") or "",
            restart_count=number(found, "restartCount"),
            state=_parse_state(section(found, "state"), ahead),
            last_state=_parse_state(section(found, "lastState"), ahead),
        )


def _earlier(time: datetime | None, ahead: timedelta) -> datetime | None:
    return after(time, -ahead.total_seconds()) if time and ahead else time


def _parse_state(found: Object, ahead: timedelta) -> ContainerState:
    return ContainerState.parse(found, ahead) if found else _UNREPORTED


def parse_containers(status: Object, key: str, ahead: timedelta) -> tuple[ContainerStatus, ...]:
    """Returns the statuses of a pod's containers (``containerStatuses``) or init containers. ``ahead``: how far the
    node's clock is ahead, by which their times are corrected."""
    return tuple(ContainerStatus.parse(each, ahead) for each in items(status, key))
