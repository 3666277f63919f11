"""Jobs that come, run, finish and are deleted, while the operator, its watches and the API server are interrupted.

A proxy (tests.doubles.faultproxy) stands between the operators and the API server. Watches are cut every minute, and
the API server is killed every ten minutes. In the first half the leader is interrupted every minute, too: it is killed,
and every third time stopped for 25 s, longer than its Lease, and continued. In the second half it is left alone, so
that the growth of its memory is that of one process. The jobs that are left then run to their ends undisturbed.

With several operators, one that is killed is followed by one of another identity, as a pod on another node would be. So
a standby takes over, once the Lease has expired.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from devcluster.kube import Kube
from finetune_operator.cluster.port import ClusterError
from finetune_operator.objects import Object
from tests.bench.measure import percentile
from tests.bench.scale.comparison import fresh_namespace, report
from tests.bench.scale.interruptions import Interruptions
from tests.bench.scale.load import completed, jobset_path
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.faultproxy import FaultProxy
from tests.doubles.local_cluster import LocalCluster
from tests.integration import warm_operator

#: Seconds that a stage takes, at least and at most.
_STAGE_SECONDS = (30.0, 90.0)
#: Share of the jobs that are deleted while a stage runs.
_DELETED = 0.05
_DRAIN_SECONDS = 900.0
_RETRY_SECONDS = 1.0
_JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"


class Churn:
    """The jobs of one namespace, and what the watches say of them.

    Args:
        system: the operator.
        kube: an administrator's client, which is not disturbed by the proxy.
        namespace: contains no other jobs.
    """

    def __init__(self, system: FineTuneOperator, kube: Kube, namespace: str) -> None:
        self._system = system
        self._kube = kube
        self._namespace = namespace
        self._path = system.jobs.format(namespace)
        self._live: set[str] = set()
        """Names of jobs that have not finished and were not deleted."""
        self._count = 0
        self._open: defaultdict[str, set[str]] = defaultdict(set)
        """By job: names of its JobSets that have not ended."""
        self._jobsets: set[str] = set()
        """UIDs of all JobSets that were seen."""
        self._since: dict[str, float] = {}
        """By live job: when it was created or its last JobSet ended, until the next JobSet."""
        self._group: asyncio.TaskGroup | None = None
        self._drained = asyncio.Event()
        self._refills = True
        self.answers: list[float] = []
        """Seconds from a job's creation, or the end of its JobSet, to its next JobSet."""
        self.finished = 0
        self.wrong: dict[str, str] = {}
        """By job: how it was lost or doubled."""

    async def run(self, count: int, disturb: Awaitable[None]) -> None:
        """Keeps ``count`` jobs alive during ``disturb``, then waits until all have finished. Bounded in time."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            watches = [
                group.create_task(self._watch(self._path, self._job)),
                group.create_task(
                    self._watch(f"{_JOBSETS}/namespaces/{self._namespace}/jobsets", self._jobset)
                ),
            ]
            for _ in range(count):
                self._create()
            await disturb
            self._refills = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    await self._drained.wait()
            for watch in watches:
                watch.cancel()
        self.wrong |= dict.fromkeys(self._live, "stuck")

    def _create(self) -> None:
        name = f"c{self._count}"
        self._count += 1
        self._live.add(name)
        self._since[name] = time.monotonic()
        self._start(
            self._kept_up(lambda: self._kube.create(self._path, self._system.manifest(self._namespace, name)))
        )

    def _replace(self, name: str) -> None:
        """Deletes the job and creates another one."""
        self._live.discard(name)
        self._since.pop(name, None)
        self._start(self._kept_up(lambda: self._kube.delete(f"{self._path}/{name}")))
        if self._refills:
            self._create()
        elif not self._live:
            self._drained.set()

    async def _end(self, jobset: Object, name: str) -> None:
        """Ends the JobSet after a while as if its pods had succeeded, or deletes the job."""
        await asyncio.sleep(random.uniform(*_STAGE_SECONDS) if self._refills else _RETRY_SECONDS)
        if name not in self._live:
            return
        if self._refills and random.random() < _DELETED:
            self._replace(name)
            return
        self._system.before_completion(jobset)
        await self._kept_up(
            lambda: self._kube.patch(f"{jobset_path(jobset)}/status", {"status": completed()})
        )

    async def _kept_up(self, request: Callable[[], Awaitable[object]]) -> None:
        """Repeats a request until the API server answers. An object that exists, or is gone, is no error."""
        while True:
            try:
                await request()
            except ClusterError as error:
                if error.status in (404, 409):
                    return
            else:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    def _start(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        assert self._group is not None
        self._group.create_task(run())

    # --- what the watches say

    async def _watch(self, path: str, handle: Callable[[str, Object], None]) -> None:
        async for event in self._kube.watch(path):
            if event.type == "SYNCED" and handle == self._jobset:
                # A JobSet may have ended and been deleted while the watch was interrupted.
                present = {each["metadata"]["name"] for each in event.objects}
                for names in self._open.values():
                    names.intersection_update(present)
            for found in event.objects:
                handle(event.type, found)

    def _job(self, event: str, job: Object) -> None:
        name = job["metadata"]["name"]
        if name not in self._live:
            return
        if event == "DELETED":
            self.wrong[name] = "lost: deleted"
        elif self._system.finished(job):
            if job["status"]["phase"] != "Succeeded":
                self.wrong[name] = f"lost: {job['status'].get('summary')}"
            self.finished += 1
            self._replace(name)

    def _jobset(self, event: str, jobset: Object) -> None:
        job, metadata = self._system.job_of(jobset), jobset["metadata"]
        conditions = jobset.get("status", {}).get("conditions", ())
        ended = event == "DELETED" or any(each["type"] == "Completed" for each in conditions)
        if metadata["uid"] not in self._jobsets and not ended:
            self._jobsets.add(metadata["uid"])
            if job in self._since:
                self.answers.append(time.monotonic() - self._since.pop(job))
            self._open[job].add(metadata["name"])
            self._start(self._end(jobset, job))
        elif ended and metadata["name"] in self._open[job]:
            self._open[job].discard(metadata["name"])
            if job in self._live:
                self._since[job] = time.monotonic()
        # No attempt fails here, so no stage has a second one.
        if job in self._live and (len(self._open[job]) > 1 or not metadata["name"].endswith("-1")):
            self.wrong[job] = f"doubled: {sorted(self._open[job] | {metadata['name']})}"


async def measure(
    cluster: LocalCluster, system: FineTuneOperator, folder: Path, *, jobs: int, minutes: int, replicas: int
) -> Mapping[str, float]:
    """Runs the soak for so many minutes and then until all jobs have finished."""
    await asyncio.to_thread(system.stop)
    with ExitStack() as stack:
        proxy = stack.enter_context(
            FaultProxy(cluster.state, cluster.ports["kube-apiserver"], lambda _: None)
        )
        stack.enter_context(warm_operator.absent(cluster))
        operators = [
            stack.enter_context(
                warm_operator.process(
                    cluster, folder / f"soak-{number}", proxy.port, f"soak-{number}" if replicas > 1 else None
                )
            )
            for number in range(replicas)
        ]
        interruptions = Interruptions(cluster, proxy, operators)
        async with Kube.of(cluster.kubeconfig) as kube, fresh_namespace(cluster, kube) as namespace:
            churn = Churn(system, kube, namespace)
            await churn.run(jobs, interruptions.run(minutes))
    counts = Counter(what.partition(":")[0] for what in churn.wrong.values())
    for name, what in churn.wrong.items():
        report(f"soak: {name}: {what}")
    of = f"{replicas} operators" if replicas > 1 else "one operator"
    print(f"\nsoak of {minutes} minutes with {jobs} live jobs and {of}\n\n| | |\n|---|---|")
    print(f"| jobs finished | {churn.finished} |")
    print(
        f"| leader killed, stopped for 25 s | {interruptions.kills}, {interruptions.stops} times |\n"
        f"| operators started | {sum(each.starts for each in operators)} times |"
    )
    print(
        f"| lost, doubled, stuck | {', '.join(str(counts[kind]) for kind in ('lost', 'doubled', 'stuck'))} |"
    )
    answers = churn.answers
    print(
        f"| → next JobSet, s: p50, p99, slowest | {percentile(answers, 0.5):.2f}, {percentile(answers, 0.99):.2f}, "
        f"{max(answers):.2f} |"
    )
    memory = interruptions.memory_of_last_leader()
    print(
        f"| the leader that is left alone: minutes observed | {60 * (memory[-1][0] - memory[0][0]):.1f} |\n"
        f"| … resident, MiB: first, last | {memory[0][1]:.0f}, {memory[-1][1]:.0f} |\n"
        f"| … after each quarter | {', '.join(f'{memory[(len(memory) - 1) * n // 4][1]:.0f}' for n in (1, 2, 3))} |\n"
        f"| … slope, MiB per hour | {_slope(memory):+.1f} |"
    )
    return {"soak: jobs lost, doubled or stuck": len(churn.wrong)}


def _slope(samples: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of the line with the least squares; 0 for a single sample."""
    mean_x, mean_y = (sum(each) / len(samples) for each in zip(*samples, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0
