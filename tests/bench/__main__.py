"""The operator's own latencies, writes and memory on a real control plane.

    python -m tests.bench [--runs 5] [--jobs 50] [--every 0.2 0] [--memory 100 1000]

No stage runs: the scheduler and the node agent are stopped, so pods stay unbound. This program writes the records that
a trainer would have written, and the pod status that a kubelet would report: it has succeeded. Times are measured in
this program: from its request, or from the watch event that it received, to the watch event that shows the operator's
response. All jobs are in flight at once; one job is applied, or one stage ends, at the given interval in seconds (0:
all at the same moment). Prints Markdown tables of medians.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.measure import percentile, stage_request
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer

PROFILE = "bench"
JOBS = "/apis/tpu-finetune.dev/v1alpha1/namespaces/{}/finetunejobs"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets"
PODS = "/api/v1/namespaces/{}/pods"
WRITES = ("create", "apply", "patch", "delete")
PATIENCE = 300


class Run:
    """One run of ``count`` jobs through all stages, all of them in flight at once, with a change ``every`` so many
    seconds."""

    def __init__(self, kube: Kube, namespace: str, count: int, every: float) -> None:
        self._kube = kube
        self._namespace = namespace
        self._every = every
        self._turn = asyncio.Lock()
        self._names = [f"j{number}" for number in range(count)]
        self._applied: dict[str, float] = {}
        self._finished: dict[str, float] = {}
        """By job: when its last JobSet was observed to be finished."""
        self._valid: set[str] = set()
        self._shown: set[tuple[str, str]] = set()
        self._created: set[str] = set()
        self._completed: set[str] = set()
        self._pods: set[str] = set()
        self._succeeded: set[str] = set()
        self._all_begun = asyncio.Event()
        self._all_done = asyncio.Event()
        self._completing: set[asyncio.Task[None]] = set()
        self.seconds: dict[str, list[float]] = defaultdict(list)

    async def go(self) -> Mapping[str, list[float]]:
        async with asyncio.TaskGroup() as group:
            watching = (self._watch_jobs(), self._watch_jobsets(), self._watch_pods())
            watches = [group.create_task(watch) for watch in watching]
            for name in self._names:
                await self._take_turn()
                self._applied[name] = time.monotonic()
                await self._kube.create(
                    JOBS.format(self._namespace), fake_trainer.job(self._namespace, name, PROFILE)
                )
            async with asyncio.timeout(PATIENCE):
                await self._all_done.wait()
            for watch in watches:
                watch.cancel()
        return self.seconds

    async def _take_turn(self) -> None:
        async with self._turn:
            await asyncio.sleep(self._every)

    async def _watch_jobs(self) -> None:
        async for event in self._kube.watch(JOBS.format(self._namespace)):
            now = time.monotonic()
            for job in event.objects:
                self._job(job, now)

    def _job(self, job: Object, now: float) -> None:
        name, status = job["metadata"]["name"], job["status"]
        conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
        if conditions.get("Valid") == "True" and name not in self._valid:
            self._valid.add(name)
            self.seconds["apply → Valid"].append(now - self._applied[name])
        for stage in status.get("stages", []):
            shown = (name, stage["name"])
            if stage["phase"] == "Succeeded" and shown not in self._shown and name in self._finished:
                self._shown.add(shown)
                self.seconds["JobSet finished → status"].append(now - self._finished[name])
        if conditions.get("Finished") == "True":
            self._succeeded.add(name)
            if len(self._succeeded) == len(self._names):
                self._all_done.set()

    async def _watch_jobsets(self) -> None:
        async for event in self._kube.watch(JOBSETS.format(self._namespace)):
            now = time.monotonic()
            for jobset in event.objects:
                self._jobset(jobset, now)

    def _jobset(self, jobset: Object, now: float) -> None:
        name = jobset["metadata"]["name"]
        job = jobset["metadata"]["labels"]["tpu-finetune.dev/job"]
        if name not in self._created:
            self._created.add(name)
            if len(self._created) == len(self._names):
                self._all_begun.set()
            if job in self._finished:
                self.seconds["JobSet finished → next JobSet"].append(now - self._finished[job])
            else:
                self.seconds["apply → first JobSet"].append(now - self._applied[job])
        ended = any(each["type"] == "Completed" for each in jobset.get("status", {}).get("conditions", []))
        if ended and name not in self._completed:
            self._completed.add(name)
            self._finished[job] = now

    async def _watch_pods(self) -> None:
        async for event in self._kube.watch(PODS.format(self._namespace)):
            for pod in event.objects:
                name = pod["metadata"]["name"]
                if event.type != "DELETED" and name not in self._pods:
                    self._pods.add(name)
                    task = asyncio.create_task(self._complete(pod))
                    self._completing.add(task)
                    task.add_done_callback(self._completing.discard)

    async def _complete(self, pod: Object) -> None:
        """Writes what a trainer and a kubelet would: first the records, then the end of the pod."""
        # All jobs of the run must be in flight at once.
        await self._all_begun.wait()
        await self._take_turn()
        fake_trainer.write(fake_trainer.records(stage_request(pod["spec"]), datetime.now(UTC)))
        path = f"{PODS.format(self._namespace)}/{pod['metadata']['name']}/status"
        await self._kube.patch(path, {"status": {"phase": "Succeeded"}})


def api_writes(cluster: LocalCluster) -> Counter[str]:
    """Returns the successful writes by ``verb resource`` since the operator's start, from the operator's metrics."""
    found: Counter[str] = Counter()
    for sample in cluster.metrics("finetune_api_requests_total"):
        if sample.labels["verb"] in WRITES and sample.labels["code"].startswith("2"):
            found[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
    return found


async def runs(cluster: LocalCluster, count: int, number: int, every: float) -> None:
    medians: dict[str, list[tuple[float, float]]] = defaultdict(list)
    writes: dict[str, list[float]] = defaultdict(list)
    async with Kube.of(cluster.kubeconfig) as kube:
        for _ in range(number):
            namespace = await asyncio.to_thread(cluster.namespace, "bench")
            before = await asyncio.to_thread(api_writes, cluster)
            seconds = await Run(kube, namespace, count, every).go()
            after = await asyncio.to_thread(api_writes, cluster)
            for name, values in seconds.items():
                medians[name].append((percentile(values, 0.5), percentile(values, 0.99)))
            for name, value in after.items():
                writes[name].append((value - before[name]) / count)
            print(json.dumps({name: pairs[-1] for name, pairs in medians.items()}), file=sys.stderr)
            await kube.delete(f"/api/v1/namespaces/{namespace}")
            # All children are then deleted, too, so the next run shares the machine with no other jobs.
            await asyncio.to_thread(cluster.wait_gone, f"/api/v1/namespaces/{namespace}", seconds=PATIENCE)
    pace = f"one change every {every} s" if every else "all at the same moment"
    print(f"\nLatency with {count} jobs in flight, {pace}; medians of {number} runs, milliseconds\n")
    print("| from → to | p50 | p99 |\n|---|---|---|")
    for name, pairs in medians.items():
        p50, p99 = (statistics.median(pair[index] for pair in pairs) * 1000 for index in (0, 1))
        print(f"| {name} | {p50:.0f} | {p99:.0f} |")
    print("\nWrites to the API server per job (five stages)\n\n| verb and resource | writes |\n|---|---|")
    for name, values in sorted(writes.items()):
        print(f"| {name} | {statistics.median(values):.1f} |")


async def memory(cluster: LocalCluster, steps: list[int]) -> None:
    """Measures the operator's memory with jobs that are admitted and suspended, so that nothing else needs memory."""
    cluster.stop("operator")
    cluster.start("operator")
    namespace = await asyncio.to_thread(cluster.namespace, "memory")
    print("\n| jobs | operator's resident memory, MiB |\n|---|---|")
    made = 0
    async with Kube.of(cluster.kubeconfig) as kube:
        for step in [0, *steps]:
            while made < step:
                manifest = fake_trainer.job(namespace, f"m{made}", PROFILE)
                manifest["spec"]["suspend"] = True  # type: ignore[index]
                await kube.create(JOBS.format(namespace), manifest)
                made += 1
            async with asyncio.timeout(PATIENCE):
                async for event in kube.watch(JOBS.format(namespace)):
                    # A watch begins with all existing objects; the wait ends when the status of the last one has been
                    # observed.
                    if event.type == "SYNCED" and all(_observed(job) for job in event.objects):
                        break
                    if event.type != "SYNCED" and all(
                        _observed(job) for job in await kube.list(JOBS.format(namespace))
                    ):
                        break
            resident = cluster.status()["operator"]["memory"] / 2**20
            print(f"| {step} | {resident:.0f} |", flush=True)


def _observed(job: Object) -> bool:
    return bool(job["status"]["observedGeneration"] >= 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--every", type=float, nargs="*", default=[0.2, 0])
    parser.add_argument("--memory", type=int, nargs="*", default=[100, 1000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        with LocalCluster.started(folder / "cluster", warm=False) as cluster:
            for component in ("node-agent", "kube-scheduler"):
                cluster.stop(component)
            cluster.start("operator")
            cluster.apply(fake_trainer.profile(PROFILE, folder))
            for every in options.every:
                asyncio.run(runs(cluster, options.jobs, options.runs, every))
            asyncio.run(memory(cluster, options.memory))


if __name__ == "__main__":
    main()
