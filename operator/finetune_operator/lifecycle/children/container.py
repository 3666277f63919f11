"""The status of a pod's container as decisions read it."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from finetune_contract.log_line import readable
from finetune_operator.api.timestamps import after
from finetune_operator.lifecycle.children.fields import message, number, section, text, time
from finetune_operator.objects import Object

#: Seconds: two clocks that are right differ by less.
CLOCKS_DIFFER = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """The clock of a pod's node. It was wrong when the kubelet accepted the pod, and may have been set right since."""

    ahead: timedelta
    """How far it was ahead. Negative: it was behind. 0: no error is evident."""
    placed: datetime | None
    """When it accepted the pod, by the control plane's clock."""

    def start(self, written: datetime | None) -> datetime | None:
        """Returns when a container started: the first possible time after the pod was accepted. It is never later than
        the true one, and earlier by no more than the container took to start."""
        if written is None or self.placed is None or not self.ahead:
            return written
        times = (each for each in self._possible(written) if each >= after(self.placed, -CLOCKS_DIFFER))
        return min(times, default=self.placed)

    def end(self, written: datetime | None, begun: datetime | None, latest: datetime) -> datetime | None:
        """Returns when a container ended that started at ``begun``: the last possible time before ``latest``."""
        if written is None or not self.ahead:
            return written
        first, last = begun or self.placed or written, after(latest, CLOCKS_DIFFER)
        times = (each for each in self._possible(written) if first <= each <= last)
        return max(times, default=min(latest, self._possible(written)[1]))

    def _possible(self, written: datetime) -> tuple[datetime, datetime]:
        return written, after(written, -self.ahead.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerTermination:
    """How a container's process ended."""

    exit_code: int
    reason: str | None
    message: str
    finished_at: datetime | None
    """By the node's clock; of a pod of an observation, by the control plane's (:meth:`.pod.Pod.settled`)."""

    @classmethod
    def parse(cls, found: Object) -> "ContainerTermination":
        return cls(
            exit_code=number(found, "exitCode"),
            reason=text(found, "reason"),
            # Without a termination message it is the end of the log.
            message=readable(message(found) or ""),
            finished_at=time(found, "finishedAt"),
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
        if not found:
            return _UNREPORTED
        waiting, terminated = section(found, "waiting"), section(found, "terminated")
        running = section(found, "running")
        return cls(
            waiting_reason=text(waiting, "reason"),
            waiting_message=message(waiting) or "",
            running="running" in found,
            started_at=clock.start(time(running or terminated, "startedAt")),
            terminated=ContainerTermination.parse(terminated) if "terminated" in found else None,
        )

    def settled(self, clock: NodeClock, latest: datetime) -> "ContainerState":
        """Returns the state with the end by the control plane's clock, which was not after ``latest``."""
        if self.terminated is None:
            return self
        ended = clock.end(self.terminated.finished_at, self.started_at, latest)
        return replace(self, terminated=replace(self.terminated, finished_at=ended))

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
            state=ContainerState.parse(section(found, "state"), clock),
            last_state=ContainerState.parse(section(found, "lastState"), clock),
        )

    def settled(self, clock: NodeClock, latest: datetime) -> "ContainerStatus":
        """Returns the status with its ends by the control plane's clock, which were not after ``latest``."""
        return replace(
            self, state=self.state.settled(clock, latest), last_state=self.last_state.settled(clock, latest)
        )
