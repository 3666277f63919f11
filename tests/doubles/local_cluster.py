"""A cluster for tests and benchmarks: started in its own folder, broken on purpose, and ended.

    with LocalCluster.started(tmp_path / "cluster") as cluster:
        cluster.kubectl("get", "nodes")
        namespace = cluster.namespace()                  # fresh, restricted, with the stages' service accounts
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", …})
        pod = cluster.wait(f"/api/v1/namespaces/{namespace}/pods/p", lambda pod: pod["status"]["phase"] == "Failed")
        cluster.start("operator")                        # as its own ServiceAccount, with the chart's permissions
        cluster.kill("operator")                         # SIGKILL; the supervisor restarts it, as a kubelet would
        cluster.stop("gcs"), cluster.start("gcs")

Everything is synchronous: the work happens in other processes. Tests that need asyncio open their own
``devcluster.kube.Kube.of(cluster.kubeconfig)``.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from devcluster import build, control, controlplane, gcs, install
from devcluster.agent.nodes import LocalNode
from devcluster.agent.pod import pod_folder
from devcluster.identity import ProcessIdentity
from devcluster.kube import Kube, WatchEvent
from devcluster.layout import StateFolder
from devcluster.options import Options
from finetune_operator.cluster.port import ClusterError
from finetune_operator.objects import Object
from tests.doubles import fakenodes


class StalledError(AssertionError):
    """The awaited state did not occur; the message shows the last state seen."""


class LocalCluster:
    """A running cluster.

    Components: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, jobset, gcs, node-agent, operator; kueue
    and kwok if requested.
    """

    def __init__(self, state: StateFolder) -> None:
        self.state = state
        self._ports: dict[str, int] = control.call(state, {"do": "ports"})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster client", daemon=True)
        self._thread.start()
        self._kube = Kube.of(state.kubeconfig)
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def started(
        cls,
        folder: Path,
        *,
        operator: bool = False,
        warm: bool = True,
        extra: Sequence[str] = (),
        store: str | None = None,
    ) -> Iterator[Self]:
        """A cluster in ``folder``, with the optional components of ``extra`` (kueue, kwok).

        It is ended in any case, with everything that it ran; its logs stay in the folder. ``store``: URL of a
        tests.doubles.bucketproxy.BucketProxy that operator and pods use instead of the object store itself.
        """
        state = StateFolder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        options = Options.chosen(warm=warm, store=store)
        build.ensure(extra)
        try:
            control.up(state, options, operator=operator, extra=extra)
            cluster = cls(state)
            try:
                yield cluster
            finally:
                cluster.close()
        finally:
            control.shut_down(state)
            for heavy in (state.etcd, state.pods, state.buckets):
                shutil.rmtree(heavy, ignore_errors=True)

    def close(self) -> None:
        """Closes the client; the cluster continues to run."""
        self._run(self._kube.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- addresses and files -------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state.kubeconfig

    @property
    def server(self) -> str:
        """URL of the API server."""
        return controlplane.address(self._ports)

    @property
    def gcs(self) -> str:
        """URL of the object store."""
        return gcs.endpoint(self._ports)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make Google's clients use this cluster's object store, and KUBECONFIG."""
        return {**gcs.client_environment(self.gcs), "KUBECONFIG": str(self.kubeconfig)}

    @property
    def service_account(self) -> Path:
        """The operator's folder with token, ca.crt and namespace; filled when the operator is first started."""
        return self.state.service_account

    @property
    def ports(self) -> dict[str, int]:
        """Ports by component; the operator's are `operator-health` and `operator-metrics`."""
        return self._ports

    @property
    def kubectl_program(self) -> Path:
        return build.ensure()["kubectl"]

    def log(self, component: str) -> str:
        """The component's log since the cluster's start."""
        return self.state.log(component).read_text(errors="replace")

    # --- the API server, as administrator -----------------------------------------------------------------------

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of kubectl. Raises AssertionError with its standard error if it fails."""
        done = subprocess.run(
            [str(self.kubectl_program), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def namespace(self, prefix: str = "test") -> str:
        """A fresh namespace with the service accounts of stage pods and the restricted pod security standard."""
        name = f"{prefix}-{next(self._numbers)}-{secrets.token_hex(2)}"
        self._run(install.namespace(self._kube, name, stages=True))
        return name

    def get(self, path: str) -> Object:
        """The object at an API path. Raises ClusterError."""
        return self._run(self._kube.get(path))

    def find(self, path: str) -> Object | None:
        """The object; None if there is none."""
        return self._run(self._kube.find(path))

    def list(self, path: str, **selectors: str) -> list[Object]:
        """Objects of a collection, for example ``list("/api/v1/pods", labelSelector="a=b")``."""
        return self._run(self._kube.list(path, **selectors))

    def apply(self, manifest: Object) -> Object:
        """Server-side apply. Raises ClusterError with the server's message."""
        return self._run(self._kube.apply(manifest))

    def create(self, path: str, manifest: Object) -> Object:
        return self._run(self._kube.create(path, manifest))

    def patch(self, path: str, body: Object) -> Object:
        """Applies a merge patch."""
        return self._run(self._kube.patch(path, body))

    def delete(self, path: str, **options: Any) -> None:
        """Deletes the object, with options such as ``propagationPolicy="Foreground"``.

        An object that is already gone is no error.
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options} if options else None
        self._run(self._kube.delete(path, options=body))

    def wait(self, path: str, until: Callable[[Object], bool], *, seconds: float = 60) -> Object:
        """The first state of the object that satisfies ``until``; it need not exist yet. Raises StalledError."""
        return self._run(self._wait(path, until, seconds))

    def wait_gone(self, path: str, *, seconds: float = 60) -> None:
        """Returns when there is no such object. Raises StalledError."""
        self._run(self._wait_gone(path, seconds))

    @contextmanager
    def recorded(self, path: str, **selectors: str) -> Iterator[Iterable[WatchEvent]]:
        """All events of objects of that collection inside the block, in order, beginning with those that exist."""
        seen: deque[WatchEvent] = deque()
        began = threading.Event()
        work = asyncio.run_coroutine_threadsafe(self._record(path, selectors, seen, began), self._loop)
        try:
            began.wait()
            yield seen
        finally:
            work.cancel()
            concurrent.futures.wait([work])

    # --- processes and faults -----------------------------------------------------------------------------------

    def start(self, component: str) -> None:
        """Starts the component unless it runs; returns when it is ready."""
        control.call(self.state, {"do": "start", "name": component})

    def stop(self, component: str) -> None:
        """Ends the component with SIGTERM; it stays down until ``start``."""
        control.call(self.state, {"do": "stop", "name": component})

    @contextmanager
    def operator_connected(self, port: int) -> Iterator[None]:
        """Inside the block the operator finds the API server at that port, also after a restart. It runs afterwards."""
        self._connect_operator(port)
        try:
            yield
        finally:
            self._connect_operator(None)

    def kill(self, component: str, number: int = signal.SIGKILL) -> None:
        """Signals the process, which is restarted after half a second (longer if it keeps exiting)."""
        control.call(self.state, {"do": "signal", "name": component, "number": int(number)})

    def await_ready(self, component: str) -> None:
        """Returns when the component answers its readiness probe (again)."""
        control.call(self.state, {"do": "await", "name": component})

    def status(self) -> dict[str, Object]:
        """State, pid, seconds, restarts and memory in bytes, by component."""
        return {row["name"]: row for row in control.call(self.state, {"do": "status"})}

    def metrics(self, name: str) -> tuple[Sample, ...]:
        """The operator's metric samples of that name, for example ``finetune_api_requests_total``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['operator-metrics']}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return tuple(sample for family in families for sample in family.samples if sample.name == name)

    def add_fake_nodes(self, nodes: Iterable[LocalNode]) -> None:
        """Registers nodes that exist only for the scheduler (tests.doubles.fakenodes); returns when they are ready.

        Needs the component kwok.
        """
        names = []
        for node in nodes:
            self.create("/api/v1/nodes", fakenodes.manifest(node))
            names.append(node.name)
        for name in names:
            self.wait(f"/api/v1/nodes/{name}", _ready)

    def run_out_of_memory(self, pod: Object) -> None:
        """Simulates the kernel's out-of-memory kill of the pod's first container.

        The container is killed, and a file in the pod's folder records the reason, as the cgroup's ``memory.events``
        does.
        """
        first = pod_folder(self.state.pods, pod) / pod["spec"]["containers"][0]["name"]
        first.with_name(f"{first.name}.oom").touch()
        process = ProcessIdentity(**json.loads(first.with_name(f"{first.name}.process").read_text()))
        process.signal_group(signal.SIGKILL)

    def freeze_nodes(self) -> None:
        """Makes all nodes silent: they send no heartbeats and receive nothing, while their containers run on."""
        os.kill(self.status()["node-agent"]["pid"], signal.SIGSTOP)

    def thaw_nodes(self) -> None:
        os.kill(self.status()["node-agent"]["pid"], signal.SIGCONT)

    def add_image(self, image: str, programs: Path) -> None:
        """Makes ``image`` available on the nodes; its containers find ``programs`` first on PATH."""
        known = json.loads(self.state.images.read_text())
        partial = self.state.images.with_suffix(".partial")
        partial.write_text(json.dumps({**known, image: str(programs)}))
        partial.replace(self.state.images)

    # --- internals ----------------------------------------------------------------------------------------------

    def _connect_operator(self, port: int | None) -> None:
        self.stop("operator")
        control.call(self.state, {"do": "connect", "port": port})
        self.start("operator")

    def _run[T](self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _wait(self, path: str, until: Callable[[Object], bool], seconds: float) -> Object:
        last: Object = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), contextlib.aclosing(self._states(path)) as states:
                async for last in states:
                    if until(last):
                        return last
        raise StalledError(
            f"{path}: not seen in {seconds:.0f} s; last: {json.dumps(last.get('status', last), indent=1)}"
        )

    async def _wait_gone(self, path: str, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), contextlib.aclosing(self._watch(path)) as events:
                async for event in events:
                    if event.type == "DELETED" or (event.type == "SYNCED" and not event.objects):
                        return
        raise StalledError(
            f"{path} is still there after {seconds:.0f} s: {json.dumps(await self._found(path), indent=1)}"
        )

    async def _found(self, path: str) -> Object | None:
        with contextlib.suppress(ClusterError):
            return await self._kube.find(path)
        return None

    async def _record(
        self, path: str, selectors: dict[str, str], seen: deque[WatchEvent], began: threading.Event
    ) -> None:
        async with contextlib.aclosing(self._kube.watch(path, **selectors)) as events:
            async for event in events:
                seen.append(event)
                began.set()

    def _watch(self, path: str) -> AsyncGenerator[WatchEvent]:
        return self._kube.watch(_collection(path), fieldSelector=_selector(path))

    async def _states(self, path: str) -> AsyncGenerator[Object]:
        async with contextlib.aclosing(self._watch(path)) as events:
            async for event in events:
                for found in event.objects:
                    yield found


def _ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    # the node controller removes its own taint a moment later
    taints = [taint["key"] for taint in node["spec"].get("taints", ())]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions) and (
        "node.kubernetes.io/not-ready" not in taints
    )


def _collection(path: str) -> str:
    return path.rpartition("/")[0]


def _selector(path: str) -> str:
    return f"metadata.name={path.rpartition('/')[2]}"
