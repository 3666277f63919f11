"""The status of a pod's container as decisions read it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from finetune_contract.log_line import readable
from finetune_operator.api.timestamps import after
from finetune_operator.lifecycle.children.fields import Object, items, number, section, text, time

#: Seconds: two clocks that are right differ by less.
CLOCKS_DIFFER = 10.0
UNKNOWN = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """The clock of a pod's node. It was wrong when the kubelet accepted the pod, and may have been set right since."""

    ahead: timedelta
    """How far it was ahead. Negative: it was behind. 0: no error is evident."""
    placed: datetime | None
    """When it accepted the pod, by the control plane's clock."""
    latest: datetime
    """What has ended had ended by then, by the control plane's clock."""

    def start(self, written: datetime | None) -> datetime | None:
        """Returns when a container started: the first possible time after the pod was accepted. It is never later than
        the true one, and earlier by no more than the container took to start."""
        if written is None or self.placed is None or not self.ahead:
            return written
        times = (each for each in self._possible(written) if each >= after(self.placed, -CLOCKS_DIFFER))
        return min(times, default=self.placed)

    def end(self, written: datetime | None, begun: datetime | None) -> datetime | None:
        """Returns when a container ended that started at ``begun``: the last possible time that has passed."""
        if written is None or not self.ahead:
            return written
        first, last = begun or self.placed or written, after(self.latest, CLOCKS_DIFFER)
        times = (each for each in self._possible(written) if first <= each <= last)
        return max(times, default=min(self.latest, self._possible(written)[1]))

    def _possible(self, written: datetime) -> tuple[datetime, datetime]:
        return written, after(written, -self.ahead.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerTermination:
    """How a container's process ended."""

    exit_code: int
    reason: str | None
    message: str
    finished_at: datetime | None

    @classmethod
    def parse(cls, found: Object, clock: NodeClock) -> "ContainerTermination":
        return cls(
            exit_code=number(found, "exitCode"),
            reason=text(found, "reason"),
            # Without a termination message it is the end of the log.
            message=readable(text(found, "message") or ""),
            finished_at=clock.end(time(found, "finishedAt"), clock.start(time(found, "startedAt"))),
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
    def parse(cls, found: Object, clock: NodeClock) -> "ContainerState":
        waiting, terminated = section(found, "waiting"), section(found, "terminated")
        running = section(found, "running")
        return cls(
            waiting_reason=text(waiting, "reason"),
            waiting_message=text(waiting, "message") or "",
            running="running" in found,
            started_at=clock.start(time(running or terminated, "startedAt")),
            terminated=ContainerTermination.parse(terminated, clock) if "terminated" in found else None,
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
    def parse(cls, found: Object, clock: NodeClock) -> "ContainerStatus":
        return cls(
            name=text(found, "name") or "",
            image=text(found, "image") or "",
            image_id=text(found, "imageID") or "",
            restart_count=number(found, "restartCount"),
            state=_parse_state(section(found, "state"), clock),
            last_state=_parse_state(section(found, "lastState"), clock),
        )


def _parse_state(found: Object, clock: NodeClock) -> ContainerState:
    return ContainerState.parse(found, clock) if found else _UNREPORTED


def parse_containers(status: Object, key: str, clock: NodeClock) -> tuple[ContainerStatus, ...]:
    """Returns the statuses of a pod's containers (``containerStatuses``) or init containers."""
    return tuple(ContainerStatus.parse(each, clock) for each in items(status, key))
