"""Many jobs at once, this project's operator against Kubeflow Trainer.

    python -m tests.bench.scale [--jobs 1000] [--runs 3] [--systems ours trainer] [--stages]

One control plane of etcd, API server and controller manager; scheduler, node agent and JobSet's controller are stopped,
and this program completes JobSets in their place. The controllers run one at a time, alternately. Each run has two
namespaces: in the first the jobs exist before the controller starts (backlog); in the second they are created beside it
(burst). There each JobSet is completed, with --stages or if a job has one stage only. Prints Markdown tables: of the
runs of each phase, the one with the median rate. Times are those of watch events in this program, which shares the
machine with the others.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from devcluster.kube import Kube
from devcluster.testing import LocalCluster
from tests.bench.scale.load import Run, median_of, without_controllers
from tests.bench.scale.measure import Phase
from tests.bench.scale.systems import FineTuneOperator, KubeflowTrainer, System

SYSTEMS: Mapping[str, Callable[[LocalCluster, Path], System]] = {
    "ours": FineTuneOperator,
    "trainer": KubeflowTrainer,
}
#: Requests of which each job causes fewer are left out of the table.
_LEAST_REQUESTS = 0.1

type Phases = defaultdict[str, defaultdict[str, list[Phase]]]


async def _run(cluster: LocalCluster, system: System, count: int, phases: Phases, *, stages: bool) -> None:
    def note(name: str, phase: Phase) -> None:
        phases[name][system.name].append(phase)
        print(f"{system.name}: {name}: {phase.row()}", file=sys.stderr, flush=True)

    async with Kube.of(cluster.kubeconfig) as kube:
        async with (
            _namespace(cluster, kube) as namespace,
            Run(cluster, system, kube, namespace, count) as run,
        ):
            note("backlog: start → first JobSet", await run.backlog())
        # Without the jobs of the backlog, which the controller would observe beside the burst.
        async with (
            _namespace(cluster, kube) as namespace,
            Run(cluster, system, kube, namespace, count) as run,
        ):
            rate, phase = await run.burst()
            print(f"{system.name}: created {rate:.0f} jobs per second", file=sys.stderr, flush=True)
            note("burst: create → first JobSet", phase)
            for number in range(1, system.stages + 1 if stages or system.stages == 1 else 1):
                last = number == system.stages
                name = "last JobSet done → job finished" if last else "JobSet done → next JobSet"
                note(name, await run.complete())
        await asyncio.to_thread(system.stop)


@asynccontextmanager
async def _namespace(cluster: LocalCluster, kube: Kube) -> AsyncIterator[str]:
    """A namespace that is deleted at the end, with all that it contains."""
    namespace = await asyncio.to_thread(cluster.namespace, "bench")
    yield namespace
    path = f"/api/v1/namespaces/{namespace}"
    await kube.delete(path)
    await asyncio.to_thread(cluster.wait_gone, path, seconds=900)


def _tables(phases: Phases) -> None:
    for name, by_system in phases.items():
        print(f"\n{name}\n")
        print("| | jobs per s | p50, s | p99, s | CPU per job, ms | API server's, ms | resident, MiB |")
        print("|---|---|---|---|---|---|---|")
        for system, runs in by_system.items():
            print(f"| {system} | {median_of(runs).row()} |")
        print("\n| requests per job | |\n|---|---|")
        for system, runs in by_system.items():
            shown = (
                f"{kind} {n:.1f}" for kind, n in median_of(runs).requests.items() if n >= _LEAST_REQUESTS
            )
            print(f"| {system} | {', '.join(shown)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=sorted(SYSTEMS), default=sorted(SYSTEMS))
    parser.add_argument(
        "--stages", action="store_true", help="complete all stages of each job, not only the first run"
    )
    options = parser.parse_args()
    phases: Phases = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        folder = Path(temporary)
        with LocalCluster.started(folder / "cluster", warm=False) as cluster:
            without_controllers(cluster)
            systems = [SYSTEMS[name](cluster, folder) for name in options.systems]
            for _ in range(options.runs):
                for system in systems:
                    asyncio.run(_run(cluster, system, options.jobs, phases, stages=options.stages))
    _tables(phases)


if __name__ == "__main__":
    main()
