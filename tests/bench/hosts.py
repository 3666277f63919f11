"""Hosts without machines: Kubernetes has real nodes and pods, but a stage is only a few lines of this process.

The node agent's own code runs each pod, including its statuses and its end; only the process is simulated. CPU stages
end at once, with the records of the fake trainer. Training lasts until it is stopped, when it has saved, or until
:meth:`Hosts.crash`.
"""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from devcluster.agent import nodes
from devcluster.agent.environment import EnvSources
from devcluster.agent.nodes import LocalNode
from devcluster.agent.pod import PodRunner, pod_folder
from devcluster.agent.process import Launch
from devcluster.kube import MERGE, STRATEGIC, Kube
from finetune_contract import ExitCode, RunFolder, Stage, StageRequest
from finetune_operator.objects import Object
from tests.doubles.fakenodes import tpu_pool
from tests.integration import fake_trainer

#: An id that no process has, so that no process of this machine ever gets a signal.
NO_PID = 1 << 30
#: The most pods of CPU stages that run at once on one node.
PODS_PER_NODE = 100
HOSTS = 2
LEAVING = {"key": "cloud.google.com/impending-node-termination", "effect": "PreferNoSchedule"}


def slices(count: int) -> Sequence[LocalNode]:
    """Returns ``count`` v6e-8 slices of two hosts each, and CPU nodes for the same number of jobs."""
    cpu = [
        LocalNode(name=f"stages-{number}", pool="cpu", machine_type="n2", cpu="100000", memory="1000Ti")
        for number in range(-(-count // PODS_PER_NODE) + 1)
    ]
    pools = [
        tpu_pool(
            f"slice-{number}",
            accelerator="tpu-v6e-slice",
            topology="2x4",
            machine_type="ct6e-standard-4t",
            hosts=HOSTS,
            chips_per_host=4,
        )
        for number in range(count)
    ]
    return [*cpu, *(node for pool in pools for node in pool)]


class StageProcess:
    """The simulated process of a stage, with the interface that the node agent requires."""

    pid = NO_PID

    def __init__(self, request: StageRequest, *, first: bool) -> None:
        self._request = request
        self._first = first
        self._started = datetime.now(UTC)
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._begin()

    async def wait(self) -> int:
        return await self._code

    def signal(self, number: int) -> None:
        if number == signal.SIGTERM and self._first and not self._code.done():
            fake_trainer.write(fake_trainer.saving(self._request, self._started, datetime.now(UTC)))
        self.end(ExitCode.STOPPED if number == signal.SIGTERM else 128 + number)

    def end(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)

    def _begin(self) -> None:
        files = dict(fake_trainer.records(self._request, datetime.now(UTC)))
        if self._request.stage is Stage.TRAIN:
            place = (self._request.stage.short, self._request.attempt, self._request.restart)
            begun = RunFolder(self._request.run_folder).request(*place)
            files = {begun: files[begun]}
        else:
            self.end(ExitCode.OK)
        if self._first:
            fake_trainer.write(files)


class Hosts:
    """The nodes and the pods that run on them. Implements devcluster.agent.pod.Node.

    Args:
        kube: an administrator's client.
        local: the nodes.
        folder: for the files that a node agent keeps for its pods.
    """

    def __init__(self, kube: Kube, local: Sequence[LocalNode], folder: Path) -> None:
        self.kube = kube
        self._nodes = {node.name: node for node in local}
        self._folder = folder
        self._runners: dict[str, PodRunner] = {}
        self._leaving: set[str] = set()
        self._lives: set[asyncio.Task[None]] = set()
        self._processes: dict[str, StageProcess] = {}
        """Processes of Train, by the name of the pod."""

    # --- the interface for pods

    def image(self, _reference: str) -> Path:
        return self._folder

    async def sources(self, _namespace: str, _container: Object) -> EnvSources:
        return EnvSources(secrets={}, config_maps={})

    async def platform(self, pod: Object, _container: Object) -> dict[str, str]:
        annotations = pod["metadata"].get("annotations", {})
        index = annotations.get("batch.kubernetes.io/job-completion-index", "0")
        return {"WORKER": index, "POD": pod["metadata"]["name"]}

    async def launch(self, launch: Launch) -> StageProcess:
        request = StageRequest.of_environment(launch.env)
        process = StageProcess(request, first=launch.env["WORKER"] == "0")
        self._processes[launch.env["POD"]] = process
        return process

    # --- the interface for the benchmark

    async def register(self) -> None:
        """Creates all nodes and marks them as ready."""
        for node in self._nodes.values():
            await self.kube.create("/api/v1/nodes", nodes.manifest(node))
            path = f"/api/v1/nodes/{node.name}/status"
            await self.kube.patch(path, nodes.status(node, port=0, now=datetime.now(UTC)), STRATEGIC)
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{nodes.LEASE_NAMESPACE}/leases"
            await self.kube.create(leases, nodes.lease(node, now=datetime.now(UTC)))

    async def run(self, namespace: str) -> None:
        """Runs the pods of the namespace until canceled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat())
                group.create_task(self._follow(namespace))
        finally:
            for life in self._lives:
                life.cancel()

    def crash(self, pod: str) -> None:
        """Ends the process of the pod with exit code 1, without a record."""
        self._processes[pod].end(1)

    async def announce_end(self, node: str) -> None:
        """Adds the taint that GKE adds before it terminates a node.

        Pods can still be scheduled to this node, because it also represents its replacement.
        """
        taints = [*nodes.manifest(self._nodes[node])["spec"]["taints"], LEAVING]
        await self.kube.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": taints}})
        self._leaving.add(node)

    async def stay(self) -> None:
        """Removes all announcements of :meth:`announce_end`."""
        while self._leaving:
            node = self._leaving.pop()
            await self.kube.patch(f"/api/v1/nodes/{node}", nodes.manifest(self._nodes[node]))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(nodes.LEASE_SECONDS / 2)
            for node in self._nodes.values():
                path = f"/apis/coordination.k8s.io/v1/namespaces/{nodes.LEASE_NAMESPACE}/leases/{node.name}"
                await self.kube.patch(path, nodes.lease(node, now=datetime.now(UTC)), MERGE)

    async def _follow(self, namespace: str) -> None:
        async for event in self.kube.watch(f"/api/v1/namespaces/{namespace}/pods"):
            for pod in event.objects:
                uid = pod["metadata"]["uid"]
                if event.type == "DELETED":
                    if runner := self._runners.pop(uid, None):
                        runner.removed()
                elif pod["spec"].get("nodeName") in self._nodes:
                    self._seen(uid, pod)

    def _seen(self, uid: str, pod: Object) -> None:
        if uid not in self._runners:
            self._runners[uid] = PodRunner(pod, self, pod_folder(self._folder, pod))
            life = asyncio.create_task(self._live(self._runners[uid]))
            self._lives.add(life)
            life.add_done_callback(self._lives.discard)
        self._runners[uid].updated(pod)

    async def _live(self, runner: PodRunner) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await runner.run()
