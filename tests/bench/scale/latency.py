"""The operator's answers to the end of a stage with 50 jobs in flight, on a cluster of its own with all controllers."""

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from devcluster.kube import Kube
from tests.bench.__main__ import PROFILE, Run
from tests.bench.measure import percentile
from tests.bench.scale.comparison import fresh_namespace, report
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer

_JOBS = 50
#: Seconds between two changes.
_EVERY = 0.2


def measure(folder: Path, runs: int) -> Mapping[str, float]:
    """Measures whole jobs; the medians of several runs."""
    medians: defaultdict[str, list[float]] = defaultdict(list)
    with LocalCluster.started(folder / "latency", warm=False) as cluster:
        for component in ("node-agent", "kube-scheduler"):
            cluster.stop(component)
        cluster.start("operator")
        cluster.apply(fake_trainer.profile(PROFILE, folder))
        for _ in range(runs):
            for name, values in asyncio.run(_run(cluster)).items():
                medians[name].append(1000 * percentile(values, 0.5))
            report(f"50 in flight, p50, ms: { ({name: round(each[-1]) for name, each in medians.items()}) }")
    return {
        f"{_JOBS} in flight: {name}, p50, ms": statistics.median(medians[name])
        for name in ("JobSet finished → status", "JobSet finished → next JobSet")
    }


async def _run(cluster: LocalCluster) -> Mapping[str, list[float]]:
    async with Kube.of(cluster.kubeconfig) as kube, fresh_namespace(cluster, kube) as namespace:
        return await Run(kube, namespace, _JOBS, _EVERY).go()
