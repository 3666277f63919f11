"""Many slices that Kubernetes takes away at once: every job needs its next JobSet, and is charged once."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.measure import operator_requests
from tests.bench.scale.children import add_pod, fail, pod_path, pod_status
from tests.bench.scale.comparison import fresh_namespace, names, phase_table, report
from tests.bench.scale.load import Run, each, median_of
from tests.bench.scale.measure import Phase, settled
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.local_cluster import LocalCluster

#: JobSets of a job whose first attempt at Train runs.
_TRAIN = 3
_SETTLE_SECONDS = 600
_READS = ("get", "list")


async def measure(
    cluster: LocalCluster, system: FineTuneOperator, *, count: int, runs: int, backlog: float
) -> Mapping[str, float]:
    """Measures ``count`` slices that are lost at once; the medians of several runs.

    ``backlog``: seconds that the operator needs for the first JobSets of as many jobs.
    """
    storms = []
    async with Kube.of(cluster.kubeconfig) as kube:
        await asyncio.to_thread(system.start)
        for _ in range(runs):
            async with (
                fresh_namespace(cluster, kube) as namespace,
                Run(cluster, system, kube, namespace, names(count)) as run,
            ):
                storms.append(await _storm(cluster, kube, run, names(count)))
        await asyncio.to_thread(system.stop)
    phases = [phase for phase, _, _ in storms]
    print(f"\n{count:,} slices lost at once: JobSet failed → next JobSet\n")
    phase_table({system.name: median_of(phases)})
    seconds = statistics.median(phase.seconds for phase in phases)
    return {
        "storm: all next JobSets, s": seconds,
        "storm: all next JobSets against the backlog": seconds / backlog,
        "storm: jobs lost, doubled or wrongly charged": max(len(wrong) for _, _, wrong in storms),
        "storm: reads per restart": statistics.median(reads for _, reads, _ in storms),
    }


async def _storm(
    cluster: LocalCluster, kube: Kube, run: Run, jobs: Sequence[str]
) -> tuple[Phase, float, list[str]]:
    """Returns the phase, the operator's reads per restart, and what is wrong with jobs."""
    pods: dict[str, Object] = {}

    async def run_pod(name: str) -> None:
        pods[name] = await add_pod(kube, run.jobsets[name][-1], "Running")

    async def lose(jobset: Object) -> None:
        pod = pods[jobset["metadata"]["labels"]["tpu-finetune.dev/job"]]
        await kube.patch(f"{pod_path(pod)}/status", {"status": pod_status(pod, "Failed", disrupted=True)})
        await fail(kube, jobset)

    await run.burst()
    for _ in range(1, _TRAIN):
        await run.complete()
    await each(jobs, run_pod)
    await run.until(lambda job: job["status"]["phase"] == "Running")
    await settled(cluster, seconds=_SETTLE_SECONDS)
    before = await asyncio.to_thread(operator_requests, cluster)
    phase = await run.change(lose, answer=_TRAIN + 1)
    await run.until(lambda job: sum(_charges(job)) > 0)
    await settled(cluster, seconds=_SETTLE_SECONDS)
    spent = await asyncio.to_thread(operator_requests, cluster) - before
    requests = {name: value / len(jobs) for name, value in sorted(spent.items())}
    report(f"storm: {phase.row()}")
    report(f"storm: requests per restart: {', '.join(f'{name} {n:.2f}' for name, n in requests.items())}")
    reads = sum(n for name, n in requests.items() if name.startswith(_READS) and "run folder" not in name)
    wrong = [
        f"{name}: charged {_charges(run.jobs[name])}, {len(run.jobsets[name])} JobSets"
        for name in jobs
        if _charges(run.jobs[name]) != (1, 0, 0) or len(run.jobsets[name]) != _TRAIN + 1
    ]
    for line in wrong:
        report(line)
    return phase, reads, wrong


def _charges(job: Object) -> tuple[int, int, int]:
    attempts = job["status"].get("attempts", {})
    preemption, infrastructure, user = (
        attempts.get(name, 0) for name in ("preemption", "infrastructure", "user")
    )
    return preemption, infrastructure, user
