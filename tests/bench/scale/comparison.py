"""The loads of both controllers, alternately: a backlog, a burst, and the end of the stages."""

import asyncio
import statistics
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from devcluster.kube import Kube
from tests.bench.scale.load import Run, median_of
from tests.bench.scale.measure import Phase
from tests.bench.scale.systems import EqualJobSets, FineTuneOperator, KubeflowTrainer, System
from tests.doubles.local_cluster import LocalCluster

BACKLOG = "backlog: start → first JobSet"
BURST = "burst: create → first JobSet"
LAST = "last JobSet done → job finished"
#: Requests of which each job causes fewer are left out of the table.
_LEAST_REQUESTS = 0.1


class Comparison:
    """The phases of all runs so far."""

    def __init__(self, cluster: LocalCluster, count: int, *, stages: bool) -> None:
        self._cluster = cluster
        self._names = names(count)
        self._stages = stages
        self._phases: defaultdict[str, defaultdict[str, list[Phase]]] = defaultdict(lambda: defaultdict(list))
        """By phase and system."""

    async def run(self, system: System) -> None:
        async with Kube.of(self._cluster.kubeconfig) as kube:
            async with (
                fresh_namespace(self._cluster, kube) as namespace,
                Run(self._cluster, system, kube, namespace, self._names) as run,
            ):
                self._note(system, BACKLOG, await run.backlog())
            # Without the jobs of the backlog, which the controller would observe beside the burst.
            async with (
                fresh_namespace(self._cluster, kube) as namespace,
                Run(self._cluster, system, kube, namespace, self._names) as run,
            ):
                rate, phase = await run.burst()
                report(f"{system.name}: created {rate:.0f} jobs per second")
                self._note(system, BURST, phase)
                for number in range(1, system.stages + 1 if self._stages or system.stages == 1 else 1):
                    name = LAST if number == system.stages else "JobSet done → next JobSet"
                    self._note(system, name, await run.complete())
            await asyncio.to_thread(system.stop)

    def ours(self, name: str) -> Phase:
        """Returns the operator's phase with the median rate."""
        return median_of(self._phases[name][FineTuneOperator.name])

    def figures(self) -> Mapping[str, float]:
        """Returns the figures that have aims: ratios are medians of those of each run."""
        burst = self.ours(BURST)
        found = {
            "operator's CPU to the first JobSet, ms per job": burst.cpu_per_job,
            "API server's CPU to the first JobSet, ms per job": burst.server_cpu_per_job,
        }
        for name in (BACKLOG, BURST, LAST):
            for peer in (KubeflowTrainer, EqualJobSets):
                by_system = self._phases[name]
                pairs = list(zip(by_system[FineTuneOperator.name], by_system[peer.name], strict=False))
                if pairs:
                    found[f"{name}, jobs per s against {peer.name}"] = statistics.median(
                        ours.rate / theirs.rate for ours, theirs in pairs
                    )
                    found[f"{name}, p99 against {peer.name}"] = statistics.median(
                        ours.percentile(0.99) / theirs.percentile(0.99) for ours, theirs in pairs
                    )
        return found

    def print(self) -> None:
        """Prints a table of each phase: of its runs, the one with the median rate."""
        for name, by_system in self._phases.items():
            medians = {system: median_of(runs) for system, runs in by_system.items()}
            print(f"\n{name}\n")
            phase_table(medians)
            print("\n| requests per job | |\n|---|---|")
            for system, phase in medians.items():
                shown = (f"{kind} {n:.1f}" for kind, n in phase.requests.items() if n >= _LEAST_REQUESTS)
                print(f"| {system} | {', '.join(shown)} |")

    def _note(self, system: System, name: str, phase: Phase) -> None:
        self._phases[name][system.name].append(phase)
        report(f"{system.name}: {name}: {phase.row()}")


def phase_table(phases: Mapping[str, Phase]) -> None:
    print(
        "| | jobs per s | p50, s | p99, s | CPU per job, ms | API server's, ms | resident, MiB | peak, MiB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, phase in phases.items():
        print(f"| {name} | {phase.row()} |")


def names(count: int) -> Sequence[str]:
    """Returns names for the jobs of one namespace."""
    return [f"j{number}" for number in range(count)]


def report(line: str) -> None:
    """Writes what has been measured so far to standard error."""
    print(line, file=sys.stderr, flush=True)


@asynccontextmanager
async def fresh_namespace(cluster: LocalCluster, kube: Kube) -> AsyncIterator[str]:
    """A namespace that is deleted at the end, with all that it contains."""
    namespace = await asyncio.to_thread(cluster.namespace, "bench")
    yield namespace
    path = f"/api/v1/namespaces/{namespace}"
    await kube.delete(path)
    await asyncio.to_thread(cluster.wait_gone, path, seconds=900)
