"""Runs one container of a pod: starts it, restarts it as its policy says, and ends it on request."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from devcluster.agent.container import build_launch, image_pull_state, termination_message
from devcluster.agent.environment import ConfigError, EnvSources
from devcluster.agent.process import (
    Launch,
    Process,
    StartError,
    forget,
    kill_process_group,
    remember,
    was_oom_killed,
)
from devcluster.agent.status import (
    ContainerRecord,
    ContainerRole,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ended,
)
from devcluster.kube import Kube
from finetune_operator.objects import Object

#: Seconds between attempts to start a container that can't start yet. A kubelet takes up to 10 s.
RETRY_SECONDS = 1.0
#: Seconds before a container that ended is restarted, as restartPolicy says; doubled up to the limit.
CRASH_PAUSE_SECONDS, CRASH_PAUSE_LIMIT = 10.0, 300.0


class Node(Protocol):
    """What a pod needs from the agent that runs it."""

    kube: Kube

    def image(self, reference: str) -> Path | None:
        """Folder of the image's programs; None if nodes don't have the image."""

    async def sources(self, namespace: str, container: Object) -> EnvSources:
        """Data of the Secrets and ConfigMaps that the container refers to."""

    async def platform(self, pod: Object, container: Object) -> dict[str, str]:
        """Environment variables from node and platform."""

    async def launch(self, launch: Launch) -> Process:
        """Starts a container's process. Raises StartError."""


class ContainerRunner:
    """Runs one container until it is not to be restarted.

    Args:
        pod: the container's pod.
        container: its spec.
        record: receives its states.
        node: the agent that runs it.
        folder: the pod's folder.
        report: reports the records to the API server.
    """

    def __init__(
        self,
        pod: Object,
        container: Object,
        record: ContainerRecord,
        *,
        node: Node,
        folder: Path,
        report: Callable[[], Awaitable[None]],
    ) -> None:
        self.record = record
        self.begun = asyncio.Event()
        """Set when its process has been started once, or when it was stopped before that."""
        self._pod = pod
        self._container = container
        self._node = node
        self._folder = folder
        self._report = report
        self._grace = 0.0
        self._stopping = asyncio.Event()

    def stop(self, grace: float) -> None:
        """Ends it: SIGTERM, and SIGKILL after ``grace`` seconds; with 0, SIGKILL at once."""
        if not self._stopping.is_set():
            self._grace = grace
            self._stopping.set()
            self.begun.set()

    def log(self, *, previous: bool = False) -> Path:
        """File with the output of the current (or previous) run."""
        number = self.record.restarts - (1 if previous else 0)
        return self._folder / f"{self.record.name}.{max(number, 0)}.log"

    async def run(self) -> None:
        """Runs the container, with restarts, to its final end."""
        record, pause = self.record, 0.0
        while not self._stopping.is_set():
            launch = await self._prepared()
            if launch is not None:
                record.state = await self._process(launch)
            if (
                self._stopping.is_set()
                or not isinstance(record.state, ContainerStateTerminated)
                or self._done()
            ):
                break
            record.last = record.state
            # the first restart is immediate, as with a kubelet
            if pause:
                text = f"back-off {pause:.0f}s restarting failed container={record.name}"
                record.state = ContainerStateWaiting(reason="CrashLoopBackOff", message=text)
                await self._report()
                await self._pause(pause)
                if self._stopping.is_set():
                    break
            record.restarts += 1
            pause = min(pause * 2 or CRASH_PAUSE_SECONDS, CRASH_PAUSE_LIMIT)
        if not isinstance(record.state, ContainerStateTerminated):
            never = ContainerStateTerminated(
                exit_code=137, reason="ContainerStatusUnknown", finished=datetime.now(UTC)
            )
            record.state = record.last or never

    def _done(self) -> bool:
        """Whether its end is final. A sidecar's never is."""
        policy = self._pod["spec"].get("restartPolicy", "Always")
        match self.record.role:
            case ContainerRole.SIDECAR:
                return False
            case ContainerRole.INIT:
                return policy == "Never" or self.record.succeeded
            case ContainerRole.MAIN:
                return policy == "Never" or (policy == "OnFailure" and self.record.succeeded)

    async def _prepared(self) -> Launch | None:
        """How to start it, once its image and configuration exist; None if stopped before."""
        failures = 0
        while not self._stopping.is_set():
            programs = self._node.image(self._container["image"])
            if programs is None:
                waiting = image_pull_state(self._container["image"], backing_off=failures > 0)
            else:
                try:
                    sources = await self._node.sources(self._pod["metadata"]["namespace"], self._container)
                    platform = await self._node.platform(self._pod, self._container)
                    return build_launch(
                        self._pod,
                        self._container,
                        programs=programs,
                        folder=self._folder,
                        log=self.log(),
                        sources=sources,
                        platform=platform,
                    )
                except ConfigError as error:
                    waiting = ContainerStateWaiting(reason="CreateContainerConfigError", message=str(error))
            failures += 1
            if self.record.state != waiting:
                self.record.state = waiting
                await self._report()
            await self._pause(RETRY_SECONDS)
        return None

    async def _process(self, launch: Launch) -> ContainerStateTerminated:
        """Runs its process once, to the end."""
        record, started = self.record, datetime.now(UTC)
        try:
            process = await self._node.launch(launch)
        except StartError as error:
            text = f"failed to start container {record.name}: {error}"
            return ContainerStateTerminated(
                exit_code=128, reason="StartError", message=text, started=started, finished=started
            )
        remember(self._folder, record.name, process.pid)
        record.state = ContainerStateRunning(since=started)
        self.begun.set()
        ending = asyncio.create_task(self._stop_on_request(process))
        try:
            await self._report()
            code = await process.wait()
        finally:
            ending.cancel()
        kill_process_group(process.pid)
        forget(self._folder, record.name)
        text = termination_message(self._container, launch, failed=code != 0)
        return ended(
            code,
            text,
            started=started,
            finished=datetime.now(UTC),
            out_of_memory=was_oom_killed(self._folder, record.name),
        )

    async def _stop_on_request(self, process: Process) -> None:
        await self._stopping.wait()
        if self._grace > 0:
            process.signal(signal.SIGTERM)
            await asyncio.sleep(self._grace)
        process.signal(signal.SIGKILL)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
