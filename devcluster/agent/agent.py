"""The agent: registers the local nodes, renews their heartbeats, and runs each pod that is bound to one of them."""

import asyncio
import base64
import json
import random
import socket
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from devcluster import gcs
from devcluster.agent import environment, nodes
from devcluster.agent.environment import ConfigError, EnvSources
from devcluster.agent.nodes import LocalNode
from devcluster.agent.pod import PodRunner, pod_folder
from devcluster.agent.process import ColdProcess, Launch, Process
from devcluster.agent.status import PodTermination
from devcluster.agent.warm import WarmServer
from devcluster.kube import MERGE, STRATEGIC, Kube
from devcluster.nodeagent import AgentConfig
from finetune_operator.cluster.port import ClusterError, NotFound
from finetune_operator.objects import Object

#: Most seconds that a pod gets to end when the whole cluster ends.
SHUTDOWN_GRACE_SECONDS = 20.0
_JOBSET = "jobset.sigs.k8s.io/"


class Agent:
    """All local nodes. ``run`` works until cancelled, and ends every process that it started."""

    def __init__(
        self, config: AgentConfig, kube: Kube, local: Sequence[LocalNode], warm: WarmServer | None
    ) -> None:
        self.config = config
        self.kube = kube
        self.pods: dict[tuple[str, str], PodRunner] = {}
        self.registered = asyncio.Event()
        """Set when all nodes are registered and ready."""
        self._nodes = local
        self._warm = warm
        self._by_uid: dict[str, PodRunner] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._coordinators: dict[tuple[str, ...], str] = {}

    async def run(self) -> None:
        await asyncio.gather(*(self._register(node) for node in self._nodes))
        self.registered.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeats())
            for node in self._nodes:
                group.create_task(self._follow(node))
            if self._warm is not None and (programs := self.image(self._warm.image)):
                group.create_task(self._warm.run(programs))

    async def shut_down(self) -> None:
        """Ends all pods as a kubelet does when its machine shuts down, and reports that in their statuses."""
        ending = PodTermination(
            reason="Terminated",
            message="Pod was terminated in response to imminent node shutdown.",
            disrupted=True,
        )
        runners = [runner for runner in self._by_uid.values() if not runner.over]
        for runner in runners:
            wish = float(runner.pod["spec"].get("terminationGracePeriodSeconds", SHUTDOWN_GRACE_SECONDS))
            runner.stop(min(wish, SHUTDOWN_GRACE_SECONDS), ending)
        if runners:
            stopping = [asyncio.create_task(runner.stopping.wait()) for runner in runners]
            await asyncio.wait(stopping, timeout=SHUTDOWN_GRACE_SECONDS + 5)

    # --- services for pods ----------------------------------------------------------------------------------

    def image(self, reference: str) -> Path | None:
        known: dict[str, str] = json.loads(Path(self.config.images).read_text())
        return Path(known[reference]) if reference in known else None

    async def sources(self, namespace: str, container: Object) -> EnvSources:
        secrets, config_maps = environment.references(container)
        return EnvSources(
            secrets={name: _decoded(await self._find(namespace, "secrets", name)) for name in secrets},
            config_maps={
                name: _plain(await self._find(namespace, "configmaps", name)) for name in config_maps
            },
        )

    async def platform(self, pod: Object, container: Object) -> dict[str, str]:
        given = dict(self.config.environment)
        if self.config.store is not None:
            name = pod["spec"].get("serviceAccountName", "default")
            at = gcs.account_endpoint(self.config.store, pod["metadata"]["namespace"], name)
            given |= gcs.client_environment(at)
        hosts = await self._hosts(pod) if environment.tpu_count(container) else 1
        return given | environment.platform(container, pod, hosts=hosts, coordinator=self._coordinator(pod))

    async def launch(self, launch: Launch) -> Process:
        if self._warm is not None:
            reason = self._warm.fits(launch)
            if reason is None:
                return await self._warm.start(launch)
            print(f"cold start of {launch.argv[0]} ({reason})", flush=True)
        return await ColdProcess.start(launch)

    async def _find(self, namespace: str, plural: str, name: str) -> Object | None:
        try:
            return await self.kube.find(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
        except ClusterError as error:
            raise ConfigError(f"{plural}/{name} can't be read: {error}") from error

    async def _hosts(self, pod: Object) -> int:
        """Parallelism of the pod's Job; 1 for a pod without one."""
        owners = (owner for owner in pod["metadata"].get("ownerReferences", ()) if owner["kind"] == "Job")
        owner = next(owners, None)
        if owner is None:
            return 1
        try:
            job = await self.kube.get(
                f"/apis/batch/v1/namespaces/{pod['metadata']['namespace']}/jobs/{owner['name']}"
            )
        except ClusterError as error:
            raise ConfigError(f"Job {owner['name']} can't be read: {error}") from error
        return int(job["spec"].get("parallelism", 1))

    def _coordinator(self, pod: Object) -> str:
        """One loopback address and free port for all pods of a JobSet's replicated job, new with each restart."""
        labels = pod["metadata"].get("labels", {})
        keys = ("jobset-uid", "replicatedjob-name", "restart-attempt")
        group = tuple(labels.get(_JOBSET + key, "") for key in keys)
        if not group[0]:
            group = (pod["metadata"]["uid"],)
        if group not in self._coordinators:
            self._coordinators[group] = _free_address()
        return self._coordinators[group]

    # --- nodes ------------------------------------------------------------------------------------------------

    async def _register(self, node: LocalNode) -> None:
        """Creates or updates the Node, then reports it as ready."""
        manifest = nodes.manifest(node)
        path = f"/api/v1/nodes/{node.name}"
        while True:
            try:
                if await self.kube.find(path) is None:
                    await self.kube.create("/api/v1/nodes", manifest)
                else:
                    # replaces all taints: those that the control plane added while the agent was down are outdated
                    await self.kube.patch(path, manifest, MERGE)
                await self.kube.patch(f"{path}/status", self._status(node), STRATEGIC)
                await self._renew(node)
            except ClusterError as error:
                print(f"node {node.name} can't be registered yet: {error!r}", flush=True)
                await asyncio.sleep(0.5)
            else:
                return

    async def _heartbeats(self) -> None:
        """Renews Leases every few seconds; updates the longer status less often."""
        count = 0
        while True:
            await asyncio.sleep(nodes.RENEW_SECONDS)
            count += 1
            for node in self._nodes:
                try:
                    await self._renew(node)
                    if count % 12 == 0:
                        await self.kube.patch(
                            f"/api/v1/nodes/{node.name}/status", self._status(node), STRATEGIC
                        )
                except ClusterError as error:
                    print(f"heartbeat of {node.name}: {error!r}", flush=True)

    def _status(self, node: LocalNode) -> Object:
        return nodes.status(node, port=self.config.port, now=datetime.now(UTC))

    async def _renew(self, node: LocalNode) -> None:
        lease = nodes.lease(node, now=datetime.now(UTC))
        folder = f"/apis/coordination.k8s.io/v1/namespaces/{nodes.LEASE_NAMESPACE}/leases"
        try:
            await self.kube.patch(f"{folder}/{node.name}", lease, MERGE)
        except NotFound:
            await self.kube.create(folder, lease)

    # --- pods -------------------------------------------------------------------------------------------------

    async def _follow(self, node: LocalNode) -> None:
        """Runs pods that are bound to the node, and ends those that are gone."""
        first = True
        async for event in self.kube.watch("/api/v1/pods", fieldSelector=f"spec.nodeName={node.name}"):
            for pod in event.objects:
                if event.type == "DELETED":
                    self._removed(pod["metadata"]["uid"])
                else:
                    self._seen(pod, inherited=first)
            if event.type == "SYNCED":
                there = {pod["metadata"]["uid"] for pod in event.objects}
                for uid, runner in list(self._by_uid.items()):
                    if runner.pod["spec"]["nodeName"] == node.name and uid not in there:
                        self._removed(uid)
            first = False

    def _seen(self, pod: Object, *, inherited: bool) -> None:
        meta = pod["metadata"]
        runner = self._by_uid.get(meta["uid"])
        if runner is None:
            runner = PodRunner(pod, self, pod_folder(Path(self.config.pods), pod))
            self._by_uid[meta["uid"]] = self.pods[meta["namespace"], meta["name"]] = runner
            life = asyncio.create_task(_life(runner, pod, inherited=inherited), name=f"pod {meta['name']}")
            self._lives.add(life)
            life.add_done_callback(lambda done: self._ended(runner, done))
        runner.updated(pod)

    def _removed(self, uid: str) -> None:
        if runner := self._by_uid.get(uid):
            runner.removed()

    def _ended(self, runner: PodRunner, life: asyncio.Task[None]) -> None:
        self._lives.discard(life)
        meta = runner.pod["metadata"]
        del self._by_uid[runner.uid]
        if self.pods.get((meta["namespace"], meta["name"])) is runner:
            del self.pods[meta["namespace"], meta["name"]]
        if not life.cancelled() and (error := life.exception()):
            print(f"pod {meta['name']} was given up: {error!r}", flush=True)


def _life(runner: PodRunner, pod: Object, *, inherited: bool) -> Coroutine[Any, Any, None]:
    """Runs a new pod. A pod of an earlier agent is not adopted: it has ended, or it is lost."""
    status = pod.get("status", {})
    if status.get("phase") in {"Succeeded", "Failed"}:
        return runner.await_deletion()
    statuses = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    if inherited and any("waiting" not in entry.get("state", {}) for entry in statuses):
        return runner.settle_lost()
    return runner.run()


def _free_address() -> str:
    """A random loopback address and a free port there, so that two slices never conflict."""
    host = f"127.0.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def _decoded(secret: Object | None) -> Mapping[str, str] | None:
    if secret is None:
        return None
    data = secret.get("data") or {}
    return {key: base64.b64decode(value).decode(errors="surrogateescape") for key, value in data.items()}


def _plain(config_map: Object | None) -> Mapping[str, str] | None:
    return None if config_map is None else config_map.get("data") or {}
