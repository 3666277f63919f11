"""What the operator costs while nothing happens but that some jobs train."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from devcluster.kube import Kube
from finetune_contract import Progress, RunFolder
from finetune_operator.objects import Object
from tests.bench.measure import cpu_seconds, operator_requests, stage_request
from tests.bench.scale.children import add_pod, end_pod
from tests.bench.scale.comparison import report
from tests.bench.scale.load import Run, each
from tests.bench.scale.measure import settled
from tests.bench.scale.present import Present
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer

#: Jobs that train.
TRAINING = 200
#: Seconds between two progress records of a job.
_PACE = 5.0
#: Longer than the pace of any job's status, which all live jobs write at about the same time after a start.
_SECONDS = 300.0
_SETTLE_SECONDS = 1800
_TOTAL_STEPS = 1_000_000


async def measure(cluster: LocalCluster, system: FineTuneOperator, present: Present) -> Mapping[str, float]:
    """Measures the operator with the jobs that are present, of which some train and report progress."""
    names = present.names[:TRAINING]
    async with Kube.of(cluster.kubeconfig) as kube:
        await asyncio.to_thread(system.start)
        async with Run(cluster, system, kube, present.live, names) as run:
            await each(names, lambda name: end_pod(kube, run.jobsets[name][-1]))
            for _ in range(2):  # preflight and conversion
                await run.complete()
            await each(names, lambda name: add_pod(kube, run.jobsets[name][-1], "Running"))
            await run.until(lambda job: job["status"]["phase"] == "Running")
            jobsets = [run.jobsets[name][-1] for name in names]
        # The watches of this process are closed: they would take part of the machine.
        moving = asyncio.create_task(_move(jobsets))
        try:
            await settled(cluster, seconds=_SETTLE_SECONDS)
            # The first statuses after a start are written at once.
            await asyncio.sleep(_SECONDS)
            cpu, requests = await _spent(cluster, system)
        finally:
            moving.cancel()
            await asyncio.wait({moving})
        await asyncio.to_thread(system.stop)
    rates = {name: number / _SECONDS for name, number in sorted(requests.items())}
    print(f"\nidle with {len(present):,} jobs, {len(names)} of which train\n")
    print("| | per s |\n|---|---|")
    print(f"| CPU, % of a core | {100 * cpu / _SECONDS:.1f} |")
    for name, rate in rates.items():
        print(f"| {name} | {rate:.2f} |")
    return {
        "idle: CPU, % of a core": 100 * cpu / _SECONDS,
        "idle: API requests per s": sum(n for name, n in rates.items() if "run folder" not in name),
        "idle: store requests per s": sum(n for name, n in rates.items() if "run folder" in name),
    }


async def _spent(cluster: LocalCluster, system: FineTuneOperator) -> tuple[float, Counter[str]]:
    """Returns CPU seconds and requests of the operator in the next ``_SECONDS``."""
    report(f"idle: measuring {_SECONDS:.0f} s; load of the machine {os.getloadavg()[0]:.1f}")
    requests = await asyncio.to_thread(operator_requests, cluster)
    cpu = cpu_seconds(system.pid)
    await asyncio.sleep(_SECONDS)
    cpu = cpu_seconds(system.pid) - cpu
    return cpu, await asyncio.to_thread(operator_requests, cluster) - requests


async def _move(jobsets: Sequence[Object]) -> None:
    """Writes the progress of each job every few seconds, one after the other, until canceled."""
    requests = [
        stage_request(each["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])
        for each in jobsets
    ]
    step = 0
    while True:
        step += 1
        for request in requests:
            progress = Progress(
                attempt=request.attempt,
                restart=request.restart,
                step=step,
                total_steps=_TOTAL_STEPS,
                compilations=0,
                updated=datetime.now(UTC),
            )
            fake_trainer.write({RunFolder(request.run_folder).progress: progress.to_json()})
            await asyncio.sleep(_PACE / len(requests))
