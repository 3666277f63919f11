"""Kueue's admissions of train JobSets beside the operator, and of the same JobSets without operator and jobs.

On a cluster of its own with Kueue. JobSet's controller is stopped, so an admitted JobSet gets no pods. The JobSets wait
in a ClusterQueue without quota, which then gets enough for all of them.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.measure import cpu_seconds
from tests.bench.scale.comparison import fresh_namespace, names, report
from tests.bench.scale.load import Run, each, without_controllers
from tests.bench.scale.measure import settled
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import condition
from tests.integration.queues import KUEUE, LOCAL_QUEUE, Team, kueue

_CHIPS = 8
"""No train JobSet requests more."""
_SETTLE_SECONDS = 600
_PATIENCE = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Admissions:
    """The admissions of one run."""

    rate: float
    """Workloads per second, from the change of the quota to the last admission."""
    kueue_cpu: float
    """CPU milliseconds of Kueue for each Workload."""
    operator_cpu: float
    """CPU milliseconds of the operator for each Workload; 0 without the operator."""


def measure(folder: Path, *, count: int, runs: int) -> None:
    """Measures the admission of ``count`` JobSets with and without the operator, by turns, and prints a table.

    The figures have no gate; the aim of their ratio is 0.9.
    """
    with LocalCluster.started(folder / "kueue", warm=False, extra=("kueue",)) as cluster:
        without_controllers(cluster)
        cluster.apply(kueue("ResourceFlavor", "tpu"))
        profile: Object = fake_trainer.profile("bench-queue", folder)
        profile["spec"]["queue"] = {"localQueue": LOCAL_QUEUE}
        asyncio.run(
            _Measurement(cluster, FineTuneOperator(cluster, folder, profile), folder, count).run(runs)
        )


class _Measurement:
    def __init__(self, cluster: LocalCluster, system: FineTuneOperator, folder: Path, count: int) -> None:
        self._cluster = cluster
        self._system = system
        self._folder = folder
        self._count = count
        self._jobsets: Sequence[Object] = ()
        """Of the last run with the operator."""

    async def run(self, runs: int) -> None:
        ours: list[Admissions] = []
        bare: list[Admissions] = []
        async with Kube.of(self._cluster.kubeconfig) as kube:
            for number in range(runs):
                # The first bare run needs the JobSets of a run with the operator.
                if number % 2:
                    bare.append(await self._bare(kube))
                ours.append(await self._ours(kube))
                if not number % 2:
                    bare.append(await self._bare(kube))
        _print(self._count, ours, bare)

    async def _ours(self, kube: Kube) -> Admissions:
        await asyncio.to_thread(self._system.start)
        async with self._team(kube) as team:
            jobs = names(self._count)
            async with Run(self._cluster, self._system, kube, team.namespace, jobs) as run:
                await run.burst()
                for _ in range(2):  # preflight and conversion
                    await run.complete()
                await run.until(lambda job: job["status"]["phase"] == "Queued")
                self._jobsets = [run.jobsets[name][-1] for name in jobs]
            # The watches of this process are closed: they would take part of the machine.
            await settled(self._cluster, seconds=_SETTLE_SECONDS)
            admissions = await self._admit(kube, team, operator=self._system.pid)
            await asyncio.to_thread(self._system.stop)
        report(f"Kueue beside the operator: {admissions}")
        return admissions

    async def _bare(self, kube: Kube) -> Admissions:
        async with self._team(kube) as team:
            path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{team.namespace}/jobsets"
            by_name = {jobset["metadata"]["name"]: _without_owner(jobset) for jobset in self._jobsets}
            await each(by_name, lambda name: kube.create(path, by_name[name]))
            admissions = await self._admit(kube, team)
        report(f"Kueue alone: {admissions}")
        return admissions

    @contextlib.asynccontextmanager
    async def _team(self, kube: Kube) -> AsyncIterator[Team]:
        """A namespace with a queue that has no quota."""
        async with fresh_namespace(self._cluster, kube) as namespace:
            team = Team(self._cluster, namespace, self._folder)
            local: Object = kueue("LocalQueue", LOCAL_QUEUE)
            local["metadata"]["namespace"] = namespace
            await asyncio.to_thread(team.quota, 0)
            await kube.apply({**local, "spec": {"clusterQueue": namespace}})
            yield team
        await kube.delete(f"/apis/{KUEUE}/clusterqueues/{namespace}")

    async def _admit(self, kube: Kube, team: Team, operator: int | None = None) -> Admissions:
        """Opens the quota when all Workloads wait. ``operator``: its process, if it runs.

        Kueue refuses the quota to the first; it does not evaluate the others, which are equivalent.
        """
        pid = self._cluster.status()["kueue"]["pid"]
        refused = False
        waiting: set[str] = set()
        admitted: dict[str, float] = {}
        opening: asyncio.Task[None] | None = None
        begun = cpu = operator_cpu = 0.0
        path = f"/apis/{KUEUE}/namespaces/{team.namespace}/workloads"
        async with asyncio.timeout(_PATIENCE), contextlib.aclosing(kube.watch(path)) as events:
            async for event in events:
                at = time.perf_counter()
                for workload in event.objects:
                    name = workload["metadata"]["name"]
                    waiting.add(name)
                    if condition(workload, "QuotaReserved") == "False":
                        refused = True
                    elif condition(workload, "Admitted") == "True":
                        admitted.setdefault(name, at)
                if opening is None and refused and len(waiting) == self._count:
                    cpu, operator_cpu = cpu_seconds(pid), cpu_seconds(operator) if operator else 0.0
                    begun = time.perf_counter()
                    opening = asyncio.create_task(asyncio.to_thread(team.quota, _CHIPS * self._count))
                if len(admitted) == self._count:
                    break
        return Admissions(
            rate=self._count / (max(admitted.values()) - begun),
            kueue_cpu=1e3 * (cpu_seconds(pid) - cpu) / self._count,
            operator_cpu=1e3 * (cpu_seconds(operator) - operator_cpu) / self._count if operator else 0.0,
        )


def _without_owner(jobset: Object) -> Object:
    """Returns the JobSet as a user without the operator would create it in another namespace."""
    kept = ("name", "labels", "annotations")
    metadata = {key: value for key, value in jobset["metadata"].items() if key in kept}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": jobset["spec"],
    }


def _print(count: int, ours: Sequence[Admissions], bare: Sequence[Admissions]) -> None:
    print(f"\nKueue admits {count:,} train JobSets, which wait for quota\n")
    print("| | admissions per s | Kueue's CPU, ms each | operator's CPU, ms each |\n|---|---|---|---|")
    for name, runs in (("beside the operator", ours), ("the JobSets alone", bare)):
        rate, kueue_cpu, operator_cpu = (
            statistics.median(getattr(run, field) for run in runs)
            for field in ("rate", "kueue_cpu", "operator_cpu")
        )
        print(f"| {name} | {rate:.1f} | {kueue_cpu:.1f} | {operator_cpu:.1f} |")
    ratios = [mine.rate / alone.rate for mine, alone in zip(ours, bare, strict=True)]
    print(f"\nratio, median of the pairs: {statistics.median(ratios):.2f} (aim ≥ 0.9)")
