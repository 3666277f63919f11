"""Loads that both controllers get: a burst, a backlog, and the end of every job's JobSets."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self

from devcluster.identity import memory
from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.measure import cpu_seconds, peak_memory
from tests.bench.scale.measure import Phase, api_requests
from tests.bench.scale.systems import System
from tests.doubles.local_cluster import LocalCluster

_JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
#: Clients that create or complete objects at the same time.
_CLIENTS = 32
_PATIENCE = 900


class Run:
    """Jobs of one controller in one namespace. Times are those of watch events in this process.

    Args:
        cluster: the cluster.
        system: the controller.
        kube: an administrator's client.
        namespace: of the jobs. It may contain others, which are seen, too, but answer no phase.
        names: of the jobs. They may exist: their JobSets are then those of the run.
    """

    def __init__(
        self, cluster: LocalCluster, system: System, kube: Kube, namespace: str, names: Sequence[str]
    ) -> None:
        self._system = system
        self._kube = kube
        self._namespace = namespace
        self._names = names
        self._server = cluster.status()["kube-apiserver"]["pid"]
        self._changed: dict[str, float] = {}
        """By job: time of the change that the current phase made."""
        self.jobs: dict[str, Object] = {}
        """As last seen, by name."""
        self.jobsets: defaultdict[str, list[Object]] = defaultdict(list)
        """By job, in the order of their creation."""
        self._answered: dict[str, float] = {}
        self._expected = 0
        """Number of JobSets of a job that answers the current phase; 0: a state of the job does."""
        self._holds: Callable[[Object], bool] = system.finished
        """The state of a job that answers the current phase."""
        self._event = asyncio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        jobsets = f"{_JOBSETS}/namespaces/{self._namespace}/jobsets"
        for path, handle in (
            (jobsets, self._jobset),
            (self._system.jobs.format(self._namespace), self._job),
        ):
            ready = asyncio.Event()
            task = group.create_task(self._watch(path, handle, ready))
            self._stack.callback(task.cancel)
            await ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def burst(self, before: Callable[[], Awaitable[None]] | None = None) -> tuple[float, Phase]:
        """Creates all jobs beside the running controller. Returns the rate of creation, and create → first JobSet.

        ``before`` is awaited before each of them is created.
        """
        created: list[float] = []

        async def create_all() -> None:
            await self._create_all(before)
            created.append(time.perf_counter())

        begun = time.perf_counter()
        phase = await self._phase(self._system.pid, 1, create_all())
        return len(self._names) / (created[0] - begun), phase

    async def backlog(self) -> Phase:
        """Creates all jobs, then starts the controller: from its start to the first JobSet of each job."""
        await self._create_all()

        async def start() -> None:
            begun = time.perf_counter()
            self._changed = dict.fromkeys(self._names, begun)
            await asyncio.to_thread(self._system.start)

        return await self._phase(None, 1, start())

    async def complete(self) -> Phase:
        """Completes the JobSet of each job: to its next JobSet, or to the end of the job after the last one."""

        async def complete(jobset: Object) -> None:
            self._system.before_completion(jobset)
            await self._kube.patch(f"{jobset_path(jobset)}/status", {"status": completed()})

        done = len(self.jobsets[self._names[0]])
        return await self.change(complete, answer=0 if done == self._system.stages else done + 1)

    async def change(self, change: Callable[[Object], Awaitable[None]], *, answer: int) -> Phase:
        """Changes the newest JobSet of each job: to its JobSet of number ``answer``; 0: to the end of the job."""

        async def one(name: str) -> None:
            self.changed(name)
            await change(self.jobsets[name][-1])

        return await self._phase(self._system.pid, answer, each(self._names, one))

    async def reach(self, holds: Callable[[Object], bool], change: Coroutine[Any, Any, None]) -> Phase:
        """Makes the change, which calls :meth:`changed` for each job: from there to that state of the job."""
        self._holds = holds
        try:
            return await self._phase(self._system.pid, 0, change)
        finally:
            self._holds = self._system.finished

    def changed(self, name: str) -> None:
        """Counts the time of the job's answer from now on."""
        self._changed[name] = time.perf_counter()

    async def until(self, holds: Callable[[Object], bool], names: Iterable[str] | None = None) -> None:
        """Waits until each job, or each one of ``names``, is in that state."""
        awaited = self._names if names is None else tuple(names)
        async with asyncio.timeout(_PATIENCE):
            while not all(name in self.jobs and holds(self.jobs[name]) for name in awaited):
                await self._event.wait()
                self._event.clear()

    async def _create_all(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        async def create(name: str) -> None:
            if before is not None:
                await before()
            self.changed(name)
            path = self._system.jobs.format(self._namespace)
            await self._kube.create(path, self._system.manifest(self._namespace, name))

        await each(self._names, create)

    async def _phase(self, pid: int | None, expected: int, change: Coroutine[Any, Any, None]) -> Phase:
        """``pid``: the controller; None if ``change`` starts it."""
        self._answered.clear()
        self._expected = expected
        self._event.clear()
        requests = await api_requests(self._kube)
        cpu = cpu_seconds(pid) if pid else 0.0
        server, begun = cpu_seconds(self._server), time.perf_counter()
        async with asyncio.timeout(_PATIENCE):
            await change
            while len(self._answered) < len(self._names):
                await self._event.wait()
                self._event.clear()
        ended = max(self._answered.values())
        pid = self._system.pid
        used, served = cpu_seconds(pid) - cpu, cpu_seconds(self._server) - server
        after = await api_requests(self._kube)
        count = len(self._names)
        return Phase(
            seconds=ended - begun,
            latencies=[self._answered[name] - self._changed[name] for name in self._names],
            cpu=used,
            server_cpu=served,
            resident=memory(pid) / 2**20,
            peak=peak_memory(pid) / 2**20,
            requests={name: (after[name] - requests[name]) / count for name in sorted(after)},
        )

    async def _watch(self, path: str, handle: Callable[[Object, float], None], ready: asyncio.Event) -> None:
        with suppress(asyncio.CancelledError):
            async for event in self._kube.watch(path):
                at = time.perf_counter()
                for found in event.objects:
                    if event.type != "DELETED":
                        handle(found, at)
                ready.set()

    def _jobset(self, jobset: Object, at: float) -> None:
        name = self._system.job_of(jobset)
        known = self.jobsets[name]
        if any(other["metadata"]["uid"] == jobset["metadata"]["uid"] for other in known):
            return
        known.append(jobset)
        if len(known) == self._expected:
            self._answer(name, at)

    def _job(self, job: Object, at: float) -> None:
        name = job["metadata"]["name"]
        self.jobs[name] = job
        self._event.set()
        if self._expected == 0 and self._holds(job):
            self._answer(name, at)

    def _answer(self, name: str, at: float) -> None:
        if name in self._changed and name not in self._answered:
            self._answered[name] = at
            self._event.set()


async def each[T](of: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Does the work for each element, as many clients at the same time."""
    clients = asyncio.Semaphore(_CLIENTS)

    async def one(element: T) -> None:
        async with clients:
            await work(element)

    await asyncio.gather(*map(one, of))


def jobset_path(jobset: Object) -> str:
    """Returns the path of a JobSet."""
    metadata = jobset["metadata"]
    return f"{_JOBSETS}/namespaces/{metadata['namespace']}/jobsets/{metadata['name']}"


def completed() -> Mapping[str, Any]:
    """Returns the status of a JobSet that has succeeded."""
    condition = {
        "type": "Completed",
        "status": "True",
        "reason": "AllJobsCompleted",
        "message": "jobset completed successfully",
        "lastTransitionTime": now(),
    }
    return {"conditions": [condition], "terminalState": "Completed", "restarts": 0}


def now() -> str:
    """Returns the time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def without_controllers(cluster: LocalCluster) -> None:
    """Leaves etcd, API server and Kueue, if it runs: the controllers that are compared get the machine."""
    for component in ("node-agent", "kube-scheduler", "jobset"):
        cluster.stop(component)
    # The JobSet controller serves its webhooks.
    base = "/apis/admissionregistration.k8s.io/v1"
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        for found in cluster.list(f"{base}/{kind}"):
            name = found["metadata"]["name"]
            if name.startswith("jobset-"):
                cluster.delete(f"{base}/{kind}/{name}")


def median_of(phases: Sequence[Phase]) -> Phase:
    """Returns the phase with the median rate."""
    return sorted(phases, key=lambda phase: phase.rate)[len(phases) // 2]
