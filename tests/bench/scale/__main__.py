"""Many jobs at once, this project's operator against Kubeflow Trainer, and many jobs in all.

    python -m tests.bench.scale [--jobs 1000] [--runs 3] [--systems ours trainer equal] [--stages]
                                [--present 5000 10000] [--idle] [--storm 1000] [--faulty]
                                [--hosts] [--kueue 200] [--latency] [--soak MINUTES [--replicas N]]

One control plane of etcd, API server and controller manager; scheduler, node agent and JobSet's controller are stopped,
and this program completes JobSets in their place. The controllers run one at a time, alternately. Each run has two
namespaces: in the first the jobs exist before the controller starts (backlog); in the second they are created beside it
(burst). There each JobSet is completed, with --stages or if a job has one stage only. Then, with the operator alone:

    --storm N     the slices of N jobs are lost at once
    --faulty      a burst alone and beside jobs that are invalid and run folders that hold garbage
    --hosts       50 slices of 64 hosts start: the last pod runs → phase Running; without aim
    --present N   the same burst beside N jobs, 90 % of which have finished
    --idle        what the operator costs with the last of those numbers, 200 of them training
    --latency     the answers to the end of a stage with 50 jobs in flight, on a cluster with all controllers
    --kueue N     Kueue admits the train JobSets of N jobs and the same JobSets alone, on a cluster with Kueue; without
                  gate
    --soak        so many minutes of jobs that come and go, while N operators and the API server are killed

Prints Markdown tables: of the runs of each phase, the one with the median rate; and last, the figures beside their aims
(targets.py). Exits with 1 if one misses its aim by more than a third. Times are those of watch events in this program,
which shares the machine with the others.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from devcluster.kube import Kube
from tests.bench.scale import admissions, faulty, hosts, idle, latency, presence, soak, storm
from tests.bench.scale.comparison import BACKLOG, BURST, Comparison
from tests.bench.scale.load import without_controllers
from tests.bench.scale.present import Present
from tests.bench.scale.systems import EqualJobSets, FineTuneOperator, KubeflowTrainer, System
from tests.bench.scale.targets import missed, targets
from tests.doubles.local_cluster import LocalCluster

_SYSTEMS: Mapping[str, Callable[[LocalCluster, Path], System]] = {
    "ours": FineTuneOperator,
    "trainer": KubeflowTrainer,
    "equal": EqualJobSets,
}

#: Live jobs of a soak, at most.
_SOAK_JOBS = 500


async def _beside_others(
    cluster: LocalCluster, system: FineTuneOperator, options: argparse.Namespace, alone: float
) -> Mapping[str, float]:
    """Measures what --present and --idle request."""
    found: dict[str, float] = {}
    async with Kube.of(cluster.kubeconfig) as kube:
        present = Present(cluster, system, kube)
        try:
            for count in sorted(options.present):
                await present.grow(count)
                found |= await presence.measure(
                    cluster, system, count=count, jobs=options.jobs, runs=options.runs, alone=alone
                )
            if options.idle:
                found |= await idle.measure(cluster, system, present)
        finally:
            await present.close()
    return found


def _measured(cluster: LocalCluster, folder: Path, options: argparse.Namespace) -> Mapping[str, float]:
    systems = {name: _SYSTEMS[name](cluster, folder) for name in options.systems}
    comparison = Comparison(cluster, options.jobs, stages=options.stages)
    for _ in range(options.runs):
        for each in systems.values():
            asyncio.run(comparison.run(each))
    comparison.print()
    ours = systems.get("ours")
    if not isinstance(ours, FineTuneOperator):
        return {}
    figures = dict(comparison.figures()) if options.runs else {}
    if options.storm:
        backlog = comparison.ours(BACKLOG)
        figures |= asyncio.run(
            storm.measure(
                cluster,
                ours,
                count=options.storm,
                runs=options.runs,
                backlog=options.storm / backlog.rate,
            )
        )
    if options.faulty:
        figures |= asyncio.run(faulty.measure(cluster, ours, jobs=options.jobs, runs=options.runs))
    if options.hosts:
        asyncio.run(hosts.measure(cluster, folder, runs=options.runs))
    if options.soak:
        figures |= asyncio.run(
            soak.measure(
                cluster,
                ours,
                folder,
                jobs=min(options.jobs, _SOAK_JOBS),
                minutes=options.soak,
                replicas=options.replicas,
            )
        )
    if options.present:
        figures |= asyncio.run(_beside_others(cluster, ours, options, comparison.ours(BURST).rate))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=sorted(_SYSTEMS), default=sorted(_SYSTEMS))
    parser.add_argument(
        "--stages", action="store_true", help="complete all stages of each job, not only the first run"
    )
    parser.add_argument("--present", type=int, nargs="+", default=[], help="jobs that exist before the burst")
    parser.add_argument("--idle", action="store_true", help="measure without changes; needs --present")
    parser.add_argument("--latency", action="store_true", help="measure with 50 jobs in flight")
    parser.add_argument("--storm", type=int, default=0, help="slices that are lost at once")
    parser.add_argument("--faulty", action="store_true", help="measure beside invalid jobs and garbage")
    parser.add_argument("--hosts", action="store_true", help="measure slices of 64 hosts")
    parser.add_argument("--kueue", type=int, default=0, help="JobSets that Kueue admits")
    parser.add_argument("--soak", type=int, default=0, help="minutes, at least 2")
    parser.add_argument("--replicas", type=int, default=1, help="operators in a soak")
    options = parser.parse_args()
    if options.idle and not options.present:
        parser.error("--idle needs --present")
    needs_runs = ("present", "storm", "faulty", "hosts", "latency", "kueue")
    if options.runs == 0 and any(getattr(options, name) for name in needs_runs):
        parser.error("--runs 0 is for --soak alone")
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        folder = Path(temporary)
        with LocalCluster.started(folder / "cluster", warm=False) as cluster:
            without_controllers(cluster)
            figures = dict(_measured(cluster, folder, options))
        if options.latency:
            figures |= latency.measure(folder, options.runs)
        if options.kueue:
            admissions.measure(folder, count=options.kueue, runs=options.runs)
    return int(missed(figures, targets(options.present)))


if __name__ == "__main__":
    sys.exit(main())
