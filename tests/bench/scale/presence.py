"""A burst beside jobs that exist already, and what their presence costs the operator."""

import asyncio
import statistics
from collections.abc import Mapping

from devcluster.kube import Kube
from tests.bench.scale.comparison import fresh_namespace, names, phase_table, report
from tests.bench.scale.load import Run, median_of
from tests.bench.scale.measure import Phase, settled
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.local_cluster import LocalCluster

#: Seconds for the reconciles that a start causes.
_SETTLE_SECONDS = 1800


async def measure(
    cluster: LocalCluster,
    system: FineTuneOperator,
    *,
    count: int,
    jobs: int,
    runs: int,
    alone: float,
) -> Mapping[str, float]:
    """Measures a burst of ``jobs`` beside ``count`` jobs; the medians of several runs.

    ``alone``: jobs per second of the same burst without others.
    """
    phases: list[Phase] = []
    decisions: list[float] = []
    async with Kube.of(cluster.kubeconfig) as kube:
        for _ in range(runs):
            await asyncio.to_thread(system.stop)
            async with (
                fresh_namespace(cluster, kube) as namespace,
                Run(cluster, system, kube, namespace, names(1)) as run,
            ):
                (first,) = (await run.backlog()).latencies
            decisions.append(first)
            report(f"{count} present: first decision after {first:.1f} s")
            try:
                waited = await settled(cluster, seconds=_SETTLE_SECONDS)
                report(f"{count} present: nothing is due {waited:.0f} s later")
            except TimeoutError:
                report(
                    f"{count} present: keys are still due after {_SETTLE_SECONDS} s; the burst comes beside them"
                )
            async with (
                fresh_namespace(cluster, kube) as namespace,
                Run(cluster, system, kube, namespace, names(jobs)) as run,
            ):
                _, phase = await run.burst()
            phases.append(phase)
            report(f"{count} present: burst: {phase.row()}")
    print(f"\nburst beside {count:,} jobs, create → first JobSet\n")
    phase_table({system.name: median_of(phases)})
    where = f"{count:,} present"
    return {
        f"{where}: rate of the burst against none": median_of(phases).rate / alone,
        f"{where}: resident, MiB": statistics.median(phase.resident for phase in phases),
        f"{where}: peak, MiB": statistics.median(phase.peak for phase in phases),
        f"{where}: start → first decision, s": statistics.median(decisions),
    }
