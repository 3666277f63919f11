"""Runs one pod on a local node: from being bound to being deleted, with each step reported to the API server."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from devcluster.agent.process import POD_FOLDERS, clear_volumes
from devcluster.agent.runner import RETRY_SECONDS, ContainerRunner, Node
from devcluster.agent.status import (
    ContainerRecord,
    ContainerRole,
    ContainerStateTerminated,
    PodTermination,
    pod_status,
)
from devcluster.agent.unsupported import unsupported
from devcluster.kube import STRATEGIC, Kube
from finetune_operator.cluster.port import ClusterError, Conflict, NotFound
from finetune_operator.objects import Object

DEFAULT_GRACE_SECONDS = 30
#: Least seconds that a kubelet gives each sidecar, however long the others took.
LEAST_GRACE_SECONDS = 2.0


@dataclass(slots=True)
class _Stop:
    """A request to end the pod: the deadline on the event loop's clock (None: at once), and the reason."""

    deadline: float | None
    ending: PodTermination | None


class PodRunner:
    """Runs one pod. ``run`` returns when the pod is gone from the API server."""

    def __init__(self, pod: Object, node: Node, folder: Path) -> None:
        self.pod = pod
        self.folder = folder
        self._kube: Kube = node.kube
        self._inits = [
            self._runner(node, each, _role(each)) for each in pod["spec"].get("initContainers", ())
        ]
        self._mains = [self._runner(node, each, ContainerRole.MAIN) for each in pod["spec"]["containers"]]
        self._started = datetime.now(UTC)
        self._stop: _Stop | None = None
        self._deletion = asyncio.Event()
        self._gone = asyncio.Event()
        self._over = False
        self.stopping = asyncio.Event()
        """Set when the pod's status shows its end."""
        self._reporting = asyncio.Lock()
        self._ending: PodTermination | None = None

    def _runner(self, node: Node, container: Object, role: ContainerRole) -> ContainerRunner:
        record = ContainerRecord(name=container["name"], image=container["image"], role=role)
        return ContainerRunner(
            self.pod, container, record, node=node, folder=self.folder, report=self._report
        )

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    # --- notifications by the agent -----------------------------------------------------------------------------

    def updated(self, pod: Object) -> None:
        """Takes a newer version of the pod; starts its deletion if that is requested."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
            self._deletion.set()
            self.stop(float(grace))

    def removed(self) -> None:
        """Ends what still runs of a pod that is gone from the API server."""
        self._gone.set()
        self._deletion.set()
        self.stop(self._wished_grace())

    def stop(self, grace: float, ending: PodTermination | None = None) -> None:
        """Ends the pod's processes: SIGTERM, and SIGKILL after ``grace`` seconds. Sidecars end last."""
        if self._stop is None:
            deadline = asyncio.get_running_loop().time() + grace if grace > 0 else None
            self._stop = _Stop(deadline, ending)
            for runner in (*self._inits, *self._mains):
                if runner.record.role is not ContainerRole.SIDECAR or deadline is None:
                    runner.stop(grace)
                else:
                    # unblocks its start: no container after it will wait for it
                    runner.begun.set()

    def log(self, container: str, *, previous: bool = False) -> Path:
        """File with the output of a container's current (or previous) run. Raises KeyError for an unknown name."""
        runner = next((r for r in (*self._inits, *self._mains) if r.record.name == container), None)
        if runner is None:
            raise KeyError(container)
        return runner.log(previous=previous)

    @property
    def over(self) -> bool:
        """Whether the pod will write nothing more to a log."""
        return self._over

    # --- lifecycle ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the pod from start to deletion."""
        await self._work()
        await self._finish()

    async def settle_lost(self) -> None:
        """Fails a pod that an earlier agent ran and whose processes are gone, and awaits its deletion."""
        now = datetime.now(UTC)
        self._ending = PodTermination(
            reason="NodeAgentRestarted",
            message="the node agent was restarted, and the pod's processes ended with the old one",
            disrupted=True,
        )
        for runner in (*self._inits, *self._mains):
            runner.record.state = ContainerStateTerminated(
                exit_code=137,
                reason="ContainerStatusUnknown",
                message="The container could not be located when the pod was terminated",
                finished=now,
            )
        await self._finish()

    async def await_deletion(self) -> None:
        """Awaits the deletion of a pod that had ended before this agent began."""
        self._over = True
        self.stopping.set()
        await self._finish()

    async def _finish(self) -> None:
        self._over = True
        if not self.stopping.is_set():
            await self._report()
            self.stopping.set()
        await self._deletion.wait()
        await self._delete()
        # the object may stay for a while, held by a finalizer
        await self._gone.wait()
        await asyncio.to_thread(clear_volumes, self.folder)

    async def _work(self) -> None:
        if reason := unsupported(self.pod):
            self._ending = PodTermination(reason="UnsupportedPod", message=reason)
            self._fail_waiting("UnsupportedPod", reason)
            return
        for folder in POD_FOLDERS:
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        await self._report()
        with self._deadline():
            await self._run_containers()

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        """Stops the pod when its ``activeDeadlineSeconds`` have passed."""
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            yield
            return
        late = PodTermination(
            reason="DeadlineExceeded", message="Pod was active on the node longer than the specified deadline"
        )
        timer = asyncio.get_running_loop().call_later(seconds, self.stop, self._wished_grace(), late)
        try:
            yield
        finally:
            timer.cancel()

    async def _run_containers(self) -> None:
        async with asyncio.TaskGroup() as group:
            sidecars: list[tuple[ContainerRunner, asyncio.Task[None]]] = []
            if await self._initialized(group, sidecars):
                await asyncio.gather(*(self._run_main(runner) for runner in self._mains))
            else:
                self._fail_waiting("PodInitializing", "an init container failed")
            if self._stop is not None:
                self._ending = self._stop.ending
            await self._end_sidecars(sidecars)

    async def _run_main(self, runner: ContainerRunner) -> None:
        await runner.run()
        if not all(isinstance(each.record.state, ContainerStateTerminated) for each in self._mains):
            # what runs on keeps the pod, and its end reports only then
            await self._report()

    async def _initialized(
        self, group: asyncio.TaskGroup, sidecars: list[tuple[ContainerRunner, asyncio.Task[None]]]
    ) -> bool:
        """Runs the init containers in order; a sidecar only needs to have started, and continues in ``group``.

        Returns False if an init container failed.
        """
        for runner in self._inits:
            if self._stop is not None:
                break
            if runner.record.role is ContainerRole.SIDECAR:
                sidecars.append((runner, group.create_task(runner.run())))
                await runner.begun.wait()
            else:
                await runner.run()
                if not runner.record.succeeded:
                    return False
        return True

    async def _end_sidecars(self, sidecars: list[tuple[ContainerRunner, asyncio.Task[None]]]) -> None:
        """Ends the sidecars in reverse order, each after the one behind it, all within the pod's grace period."""
        if not sidecars:
            return
        # reports the end of the pod's work before they end
        await self._report()
        clock = asyncio.get_running_loop().time
        deadline = self._stop.deadline if self._stop else clock() + self._wished_grace()
        for runner, task in reversed(sidecars):
            runner.stop(0 if deadline is None else max(deadline - clock(), LEAST_GRACE_SECONDS))
            await task

    def _wished_grace(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    def _fail_waiting(self, reason: str, message: str) -> None:
        """Marks containers that will never run as failed, so that the pod fails."""
        now = datetime.now(UTC)
        for runner in self._mains:
            runner.record.state = ContainerStateTerminated(
                exit_code=1, reason=reason, message=message, finished=now
            )

    # --- reporting ----------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Writes the status, with retries until it succeeds or the pod is gone."""
        # one at a time: an earlier call must not overwrite a later one
        async with self._reporting:
            await self._insistently(self._patch)

    async def _patch(self) -> None:
        meta = self.pod["metadata"]
        body = pod_status(
            self.pod,
            [runner.record for runner in self._inits],
            [runner.record for runner in self._mains],
            over=self._over,
            ending=self._ending,
            started=self._started,
            now=datetime.now(UTC),
        )
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        await self._kube.patch(path, body, STRATEGIC)

    async def _delete(self) -> None:
        """Deletes the object, as a kubelet does at the end, if it is still the same pod."""
        await self._insistently(self._delete_now)

    async def _delete_now(self) -> None:
        meta = self.pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        await self._kube.delete(
            f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", options=options
        )

    async def _insistently(self, act: Callable[[], Awaitable[None]]) -> None:
        while not self._gone.is_set():
            try:
                await act()
            except (NotFound, Conflict):  # gone, or another pod of that name: its uid differs
                return
            except ClusterError as error:
                print(f"pod {self.pod['metadata']['name']}: {error}", flush=True)
            else:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), RETRY_SECONDS)


def _role(init: Object) -> ContainerRole:
    return ContainerRole.SIDECAR if init.get("restartPolicy") == "Always" else ContainerRole.INIT


def pod_folder(root: Path, pod: Object) -> Path:
    """Folder of the pod's logs, volumes and process records."""
    meta = pod["metadata"]
    return root / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
