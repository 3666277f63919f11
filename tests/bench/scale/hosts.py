"""Large slices whose pods start: from the last pod of a slice that runs to the job's phase Running.

This program creates Jobs and pods as their controllers do, and then lets the pods of all slices run in a random order,
as fast as the API server stores it.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.measure import percentile
from tests.bench.scale.children import add_host, add_job, set_phase
from tests.bench.scale.comparison import fresh_namespace, names, report
from tests.bench.scale.load import Run, each
from tests.bench.scale.measure import Phase, settled
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer

_JOBS = 50
#: A slice of v6e has at most so many hosts.
_TOPOLOGY, _HOSTS = "16x16", 64
_SETTLE_SECONDS = 600


async def measure(cluster: LocalCluster, folder: Path, *, runs: int) -> None:
    """Measures 50 jobs on slices of 64 hosts and prints a table. The figures have no aims."""
    profile: Object = fake_trainer.profile("bench-hosts", folder)
    profile["spec"]["flavors"][0]["topologies"] = [_TOPOLOGY]
    system = FineTuneOperator(cluster, folder, profile)
    phases: list[Phase] = []
    async with Kube.of(cluster.kubeconfig) as kube:
        await asyncio.to_thread(system.start)
        for number in range(runs):
            async with (
                fresh_namespace(cluster, kube) as namespace,
                Run(cluster, system, kube, namespace, names(_JOBS)) as run,
            ):
                await run.burst()
                for _ in range(2):  # preflight and conversion
                    await run.complete()
                await settled(cluster, seconds=_SETTLE_SECONDS)
                start = _start(kube, run, random.Random(number))
                phases.append(await run.reach(_runs, start))
            report(f"hosts: {phases[-1].row()}")
        await asyncio.to_thread(system.stop)
    _print(phases)


async def _start(kube: Kube, run: Run, order: random.Random) -> None:
    """Creates the pods of the newest JobSets, and lets them run."""
    pods: dict[tuple[str, int], Object] = {}

    async def create(name: str) -> None:
        jobset = run.jobsets[name][-1]
        job = await add_job(kube, jobset)
        for index in range(_HOSTS):
            pods[name, index] = await add_host(kube, jobset, job, index)

    async def start(place: tuple[str, int]) -> None:
        run.changed(place[0])
        await set_phase(kube, pods[place], "Running")

    await each(names(_JOBS), create)
    places = list(product(names(_JOBS), range(_HOSTS)))
    order.shuffle(places)
    begun = time.perf_counter()
    await each(places, start)
    report(f"hosts: {len(places) / (time.perf_counter() - begun):.0f} pods start per second")


def _runs(job: Object) -> bool:
    status = job["status"]
    return (status["phase"], status.get("stage")) == ("Running", "Train")


def _print(phases: Sequence[Phase]) -> None:
    latencies = [seconds for phase in phases for seconds in phase.latencies]
    cpu, server_cpu = (
        statistics.median(each.cpu_per_job for each in phases),
        statistics.median(1e3 * each.server_cpu / _JOBS for each in phases),
    )
    print(f"\n{_JOBS} slices of {_HOSTS} hosts: last pod runs → phase Running\n\n| | |\n|---|---|")
    print(
        f"| s: p50, p99, slowest | {percentile(latencies, 0.5):.2f}, {percentile(latencies, 0.99):.2f}, "
        f"{max(latencies):.2f} |"
    )
    print(f"| operator's CPU from the creation of the pods on, ms per job | {cpu:.0f} |")
    print(f"| API server's CPU, ms per job | {server_cpu:.0f} |")
    print(f"| operator's resident memory, MiB | {phases[-1].resident:.0f} |")
