"""One pod's life on a local node: from being bound to being deleted, told to the API server at each step."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import aiohttp

from devcluster.agent.container import build_launch, no_image, termination_message
from devcluster.agent.environment import ConfigError, Sources
from devcluster.agent.process import (
    POD_FOLDERS,
    Launch,
    Process,
    StartError,
    clear_volumes,
    end_group,
    forget,
    out_of_memory,
    remember,
)
from devcluster.agent.status import (
    ContainerRecord,
    Ending,
    Running,
    Terminated,
    Waiting,
    ended,
    pod_status,
)
from devcluster.agent.unsupported import unsupported
from devcluster.kube import STRATEGIC, Kube, KubeError, Object

#: How often a container that can't start yet is tried again. A kubelet takes up to 10 s.
RETRY_SECONDS = 1.0
#: Pauses before a container that ended is started again, as restartPolicy asks; doubled up to the limit.
CRASH_PAUSE_SECONDS, CRASH_PAUSE_LIMIT = 10.0, 300.0
DEFAULT_GRACE_SECONDS = 30


class Node(Protocol):
    """What a pod needs of the agent that runs it."""

    kube: Kube

    def image(self, reference: str) -> Path | None:
        """Folder of the image's programs, None where nodes don't have the image."""

    async def sources(self, namespace: str, container: Object) -> Sources:
        """Data of the Secrets and ConfigMaps that the container refers to."""

    async def platform(self, pod: Object, container: Object) -> dict[str, str]:
        """Environment that node and platform give."""

    async def launch(self, launch: Launch) -> Process:
        """Starts a container's process. Raises StartError."""


@dataclass(slots=True)
class _Stop:
    """The order to end: by when, and why."""

    grace: float
    ending: Ending | None


class PodRunner:
    """Runs one pod. ``run`` returns when the pod is gone from the API server."""

    def __init__(self, pod: Object, node: Node, folder: Path) -> None:
        self.pod = pod
        self.folder = folder
        self._node = node
        self._inits = _records(pod["spec"].get("initContainers", ()))
        self._containers = _records(pod["spec"]["containers"])
        self._started = datetime.now(UTC)
        self._processes: dict[str, Process] = {}
        self._stop: _Stop | None = None
        self._stopping = asyncio.Event()
        self._deletion = asyncio.Event()
        self._gone = asyncio.Event()
        self._over = False
        self.told = asyncio.Event()
        """Its end stands in the pod's status."""
        self._reporting = asyncio.Lock()
        self._ending: Ending | None = None

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    # --- what the agent tells it ------------------------------------------------------------------------------

    def updated(self, pod: Object) -> None:
        """A newer version of the pod was seen."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
            self._deletion.set()
            self.stop(float(grace))

    def removed(self) -> None:
        """The pod is gone from the API server; what still runs of it is ended."""
        self._gone.set()
        self._deletion.set()
        self.stop(float(self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)))

    def stop(self, grace: float, ending: Ending | None = None) -> None:
        """Ends the pod's processes: SIGTERM, and SIGKILL after ``grace`` seconds."""
        if self._stop is None:
            self._stop = _Stop(grace, ending)
            self._stopping.set()

    def log(self, container: str, *, previous: bool = False) -> Path:
        """File with the output of a container's present (or previous) run. Raises KeyError for a strange name."""
        record = next((r for r in (*self._inits, *self._containers) if r.name == container), None)
        if record is None:
            raise KeyError(container)
        return self._log(record, record.restarts - (1 if previous else 0))

    @property
    def over(self) -> bool:
        """Nothing of it will write to a log again."""
        return self._over

    # --- its life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole life."""
        await self._work()
        await self._finish()

    async def settle_lost(self) -> None:
        """For a pod that an earlier agent ran and whose processes are gone: says so, and awaits its deletion."""
        now = datetime.now(UTC)
        self._ending = Ending(
            reason="NodeAgentRestarted",
            message="the node agent was restarted, and the pod's processes ended with the old one",
            disrupted=True,
        )
        for record in (*self._inits, *self._containers):
            record.state = Terminated(
                exit_code=137,
                reason="ContainerStatusUnknown",
                message="The container could not be located when the pod was terminated",
                finished=now,
            )
        await self._finish()

    async def await_deletion(self) -> None:
        """For a pod that had ended before this agent began: nothing but its deletion is left to do."""
        self._over = True
        self.told.set()
        await self._finish()

    async def _finish(self) -> None:
        self._over = True
        if not self.told.is_set():
            await self._report()
            self.told.set()
        await self._deletion.wait()
        await self._delete()
        # the object may stay for a while, held by a finalizer
        await self._gone.wait()
        await asyncio.to_thread(clear_volumes, self.folder)

    async def _work(self) -> None:
        if reason := unsupported(self.pod):
            self._ending = Ending(reason="UnsupportedPod", message=reason)
            self._fail_waiting("UnsupportedPod", reason)
            return
        for folder in POD_FOLDERS:
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        await self._report()
        for record, container in zip(self._inits, self.pod["spec"].get("initContainers", ()), strict=True):
            await self._run_container(record, container, init=True)
            if not record.succeeded:
                self._fail_waiting("PodInitializing", "an init container failed")
                return
        runs = [
            self._run_container(record, container, init=False)
            for record, container in zip(self._containers, self.pod["spec"]["containers"], strict=True)
        ]
        await asyncio.gather(*runs)

    async def _run_container(self, record: ContainerRecord, container: Object, *, init: bool) -> None:
        """Runs one container until it is not to be started again."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        pause = 0.0
        while not self._stopping.is_set():
            launch = await self._prepared(record, container)
            if launch is not None:
                record.state = await self._process(record, container, launch)
            if self._stopping.is_set() or not isinstance(record.state, Terminated):
                break
            if policy == "Never" or (record.succeeded and (init or policy == "OnFailure")):
                return
            record.last, record.restarts = record.state, record.restarts + 1
            # the first restart comes at once, as on a kubelet
            if pause:
                text = f"back-off {pause:.0f}s restarting failed container={record.name}"
                record.state = Waiting(reason="CrashLoopBackOff", message=text)
                await self._report()
                await self._pause(pause)
            pause = min(pause * 2 or CRASH_PAUSE_SECONDS, CRASH_PAUSE_LIMIT)
        if self._stop is not None and self._ending is None:
            self._ending = self._stop.ending
        if not isinstance(record.state, Terminated):
            now = datetime.now(UTC)
            record.state = Terminated(exit_code=137, reason="ContainerStatusUnknown", finished=now)

    async def _prepared(self, record: ContainerRecord, container: Object) -> Launch | None:
        """How to start the container, once its image and configuration are there; None when ordered to stop."""
        failures = 0
        while not self._stopping.is_set():
            programs = self._node.image(container["image"])
            if programs is None:
                waiting = no_image(container["image"], backing_off=failures > 0)
            else:
                try:
                    sources = await self._node.sources(self.pod["metadata"]["namespace"], container)
                    given = await self._node.platform(self.pod, container)
                    return build_launch(
                        self.pod,
                        container,
                        programs=programs,
                        folder=self.folder,
                        log=self._log(record, record.restarts),
                        sources=sources,
                        given=given,
                    )
                except ConfigError as error:
                    waiting = Waiting(reason="CreateContainerConfigError", message=str(error))
            failures += 1
            if record.state != waiting:
                record.state = waiting
                await self._report()
            await self._pause(RETRY_SECONDS)
        return None

    async def _process(self, record: ContainerRecord, container: Object, launch: Launch) -> Terminated:
        """One run of the container's process, to its end."""
        started = datetime.now(UTC)
        try:
            process = await self._node.launch(launch)
        except StartError as error:
            text = f"failed to start container {record.name}: {error}"
            return Terminated(
                exit_code=128, reason="StartError", message=text, started=started, finished=started
            )
        remember(self.folder, record.name, process.pid)
        self._processes[record.name] = process
        record.state = Running(since=started)
        ending = asyncio.create_task(self._end_when_told(process))
        try:
            await self._report()
            code = await process.wait()
        finally:
            ending.cancel()
            self._processes.pop(record.name, None)
        end_group(process.pid)
        forget(self.folder, record.name)
        text = termination_message(container, launch, failed=code != 0)
        return ended(
            code,
            text,
            started=started,
            finished=datetime.now(UTC),
            out_of_memory=out_of_memory(self.folder, record.name),
        )

    async def _end_when_told(self, process: Process) -> None:
        await self._stopping.wait()
        assert self._stop is not None
        if self._stop.grace > 0:
            process.signal(signal.SIGTERM)
            await asyncio.sleep(self._stop.grace)
        process.signal(signal.SIGKILL)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _fail_waiting(self, reason: str, message: str) -> None:
        """Containers that will never run count as failed, so that the pod does."""
        now = datetime.now(UTC)
        for record in self._containers:
            record.state = Terminated(exit_code=1, reason=reason, message=message, finished=now)

    # --- telling ----------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Writes the status, for as long as it takes; a pod that is gone needs none."""
        # one at a time: a later call must not be overtaken by an earlier one
        async with self._reporting:
            await self._insistently(self._patch)

    async def _patch(self) -> None:
        meta = self.pod["metadata"]
        body = pod_status(
            self.pod,
            self._inits,
            self._containers,
            over=self._over,
            ending=self._ending,
            started=self._started,
            now=datetime.now(UTC),
        )
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        await self._node.kube.patch(path, body, STRATEGIC)

    async def _delete(self) -> None:
        """The last word of a kubelet: the object goes, if it is still this very pod."""
        await self._insistently(self._delete_now)

    async def _delete_now(self) -> None:
        meta = self.pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        await self._node.kube.delete(
            f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", options=options
        )

    async def _insistently(self, act: Callable[[], Awaitable[None]]) -> None:
        while not self._gone.is_set():
            try:
                await act()
            except KubeError as error:
                if error.status in {404, 409}:  # gone, or another pod of that name: its uid differs
                    return
                print(f"pod {self.pod['metadata']['name']}: {error}", flush=True)
            except (aiohttp.ClientError, TimeoutError) as error:
                print(f"pod {self.pod['metadata']['name']}: {error!r}", flush=True)
            else:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), RETRY_SECONDS)

    # --- files ------------------------------------------------------------------------------------------------

    def _log(self, record: ContainerRecord, number: int) -> Path:
        return self.folder / f"{record.name}.{max(number, 0)}.log"


def _records(containers: Sequence[Object]) -> list[ContainerRecord]:
    return [ContainerRecord(name=container["name"], image=container["image"]) for container in containers]


def pod_folder(root: Path, pod: Object) -> Path:
    """Where the pod's logs, volumes and process records lie."""
    meta = pod["metadata"]
    return root / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
