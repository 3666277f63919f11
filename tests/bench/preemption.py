"""The cost of a preemption on a real control plane: the operator's time and requests, for one job and for a hundred at
once.

    python -m tests.bench.preemption [--runs 5] [--storm 100] [--storms 3]

Slices are v6e-8, two hosts each, and exist only in Kubernetes (tests/bench/hosts.py): the scheduler and the Job and
JobSet controllers are real, and a pod starts and ends at once. A job can lose its slice in two ways:

    evicted   one of its pods is evicted: JobSet restarts the job by itself, and the operator reports it
    crashed   a node is about to be terminated, and both processes crash: the operator classifies the failure and
              creates the next JobSet

Times are measured in this program: from the watch event that it received to the watch event that shows the response.
Prints Markdown tables of medians.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.__main__ import JOBS, JOBSETS, PODS, PROFILE
from tests.bench.hosts import HOSTS, Hosts, slices
from tests.bench.measure import cpu_seconds, operator_requests, percentile
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer

type Way = Literal["evicted", "crashed"]
WAYS: tuple[Way, ...] = ("evicted", "crashed")
PATIENCE = 600
#: Seconds to wait after the last job runs again, so that requests caused by late events are counted, too.
SETTLE = 5.0
RESTART = "jobset.sigs.k8s.io/restart-attempt"


class Fleet:
    """Jobs in training, and their objects as the watches have reported them."""

    def __init__(self, kube: Kube, hosts: Hosts, namespace: str, count: int) -> None:
        self._kube = kube
        self._hosts = hosts
        self._namespace = namespace
        self._jobs: dict[str, Object] = {}
        self._pods: dict[str, Object] = {}
        self._names = [f"j{number}" for number in range(count)]
        self._changed = asyncio.Event()
        self._marks: dict[str, dict[str, float]] = defaultdict(dict)
        """By job: the time of each first observation since the disruption."""

    async def follow(self) -> None:
        """Watches the objects and runs the hosts until canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hosts.run(self._namespace))
            group.create_task(self._watch(JOBS, self._job))
            group.create_task(self._watch(JOBSETS, self._jobset))
            group.create_task(self._watch(PODS, self._pod))

    async def start(self) -> None:
        """Creates the jobs, and waits until all of them train."""
        for name in self._names:
            job = fake_trainer.job(self._namespace, name, PROFILE, resources={"tpu": "v6e-8"})
            await self._kube.create(JOBS.format(self._namespace), job)
        await self.until(lambda job: _trains(job, attempt=1))

    async def disrupt(self, way: Way) -> dict[str, dict[str, float]]:
        """Takes away the slices of all jobs at the same moment, and waits until all jobs train again.

        Returns the seconds between observations for each job; ``whole`` is the time from the disruption to the job's
        phase Running.
        """
        self._marks.clear()
        victims = [self._hosts_of(name) for name in self._names]
        if way == "crashed":
            for pods in victims:
                await self._hosts.announce_end(self._pods[pods[1]]["spec"]["nodeName"])
        begun = time.monotonic()
        await asyncio.gather(*(self._take(pods, way) for pods in victims))
        await self.until(lambda job: _trains(job, attempt=2))
        return {name: self._seconds(way, begun, self._marks[name]) for name in self._names}

    async def until(self, holds: Callable[[Object], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not all(name in self._jobs and holds(self._jobs[name]) for name in self._names):
                self._changed.clear()
                await self._changed.wait()

    def wrong(self, way: Way) -> list[str]:
        """Describes the jobs that were not charged with exactly one preemption, or that do not have exactly two running
        pods."""
        found = []
        for name in self._names:
            attempts = self._jobs[name]["status"]["attempts"]
            charged = (attempts["preemption"], attempts["infrastructure"], attempts["user"])
            running = [pod for pod in self._pods.values() if _is_of(pod, name) and _lives(pod)]
            if charged != (1, 0, 0) or len(running) != HOSTS:
                found.append(f"{name}: charged {charged}, {len(running)} pods")
        return found

    def _hosts_of(self, job: str) -> list[str]:
        return sorted(name for name, pod in self._pods.items() if _is_of(pod, job) and _lives(pod))

    async def _take(self, pods: list[str], way: Way) -> None:
        if way == "crashed":
            for pod in pods:
                self._hosts.crash(pod)
            return
        meta = {"name": pods[1], "namespace": self._namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        await self._kube.create(f"{PODS.format(self._namespace)}/{pods[1]}/eviction", eviction)

    def _seconds(self, way: Way, begun: float, marks: dict[str, float]) -> dict[str, float]:
        lost = marks["failed"] if way == "crashed" else marks["restarted"]
        word = "JobSet failed" if way == "crashed" else "JobSet restarts"
        found = {
            f"{way} → {word} (Kubernetes)": lost - begun,
            f"{word} → status tells the preemption": marks["told"] - lost,
        }
        if way == "crashed":
            found[f"{word} → next JobSet"] = marks["next"] - lost
        found["last pod of the new attempt runs → phase Running"] = marks["running"] - marks["pods"]
        found[f"whole: {way} → phase Running"] = marks["running"] - begun
        return found

    # --- handlers of watch events

    async def _watch(self, path: str, look: Callable[[Object, float], None]) -> None:
        async for event in self._kube.watch(path.format(self._namespace)):
            now = time.monotonic()
            for found in event.objects:
                if event.type == "DELETED":
                    self._pods.pop(found["metadata"]["name"], None)
                else:
                    look(found, now)
            self._changed.set()

    def _job(self, job: Object, now: float) -> None:
        name = job["metadata"]["name"]
        self._jobs[name] = job
        if job["status"].get("attempts", {}).get("preemption"):
            self._marks[name].setdefault("told", now)
        if _trains(job, attempt=2):
            self._marks[name].setdefault("running", now)

    def _jobset(self, jobset: Object, now: float) -> None:
        job, status = _job_of(jobset), jobset.get("status", {})
        if "-train-" not in jobset["metadata"]["name"]:
            return
        if jobset["metadata"]["name"].endswith("-2"):
            self._marks[job].setdefault("next", now)
        if status.get("restarts"):
            self._marks[job].setdefault("restarted", now)
        if any(each["type"] == "Failed" for each in status.get("conditions", ())):
            self._marks[job].setdefault("failed", now)

    def _pod(self, pod: Object, now: float) -> None:
        name, job = pod["metadata"]["name"], _job_of(pod)
        self._pods[name] = pod
        again = pod["metadata"]["labels"][RESTART] != "0" or "-train-2-" in name
        if again and _is_of(pod, job) and pod.get("status", {}).get("phase") == "Running":
            # ``pods`` is the time when the last pod was observed to start.
            self._marks[job].setdefault(f"pod {name}", now)
            self._marks[job]["pods"] = max(at for mark, at in self._marks[job].items() if "pod " in mark)


def _job_of(child: Object) -> str:
    return str(child["metadata"]["labels"]["tpu-finetune.dev/job"])


def _is_of(pod: Object, job: str) -> bool:
    """Whether the pod belongs to the Train stage of the job."""
    return pod["metadata"]["labels"]["tpu-finetune.dev/stage"] == "Train" and _job_of(pod) == job


def _lives(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _trains(job: Object, *, attempt: int) -> bool:
    status = job["status"]
    if status.get("phase") != "Running" or status.get("stage") != "Train":
        return False
    return any(each["name"] == "Train" and each.get("attempt") == attempt for each in status["stages"])


# --- the operator, from outside


def operator_cpu(cluster: LocalCluster) -> float:
    """Returns the CPU time of the operator's process since its start."""
    return cpu_seconds(cluster.status()["operator"]["pid"])


def reconciles(cluster: LocalCluster) -> float:
    return sum(sample.value for sample in cluster.metrics("finetune_reconcile_seconds_count"))


def resident(cluster: LocalCluster) -> float:
    """Returns the resident memory of the operator's process in MiB."""
    return float(cluster.status()["operator"]["memory"]) / 2**20


class Costs:
    """The operator's costs since this object was created."""

    def __init__(self, cluster: LocalCluster, jobs: int) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._cpu, self._reconciles = operator_cpu(cluster), reconciles(cluster)
        self._requests = operator_requests(cluster)

    def so_far(self) -> dict[str, float]:
        spent = operator_requests(self._cluster) - self._requests
        return {
            "operator's CPU, s": operator_cpu(self._cluster) - self._cpu,
            "operator's resident memory, MiB": resident(self._cluster),
            "reconciles per job": (reconciles(self._cluster) - self._reconciles) / self._jobs,
            "requests per job": sum(spent.values()) / self._jobs,
            **{f"… {name}": value / self._jobs for name, value in sorted(spent.items())},
        }


async def one_run(
    cluster: LocalCluster, kube: Kube, hosts: Hosts, way: Way, count: int
) -> dict[str, list[float]]:
    """Disrupts ``count`` jobs once, and returns all values of each figure: one for the run, or one for each job."""
    namespace = await asyncio.to_thread(cluster.namespace, "preempted")
    fleet = Fleet(kube, hosts, namespace, count)
    following = asyncio.create_task(fleet.follow())
    try:
        await fleet.start()
        await asyncio.sleep(SETTLE)
        costs = await asyncio.to_thread(Costs, cluster, count)
        seconds = await fleet.disrupt(way)
        await asyncio.sleep(SETTLE)
        spent = await asyncio.to_thread(costs.so_far)
        if wrong := fleet.wrong(way):
            raise AssertionError("\n".join(wrong))
    finally:
        await hosts.stay()
        await kube.delete(f"/api/v1/namespaces/{namespace}")
        await asyncio.to_thread(cluster.wait_gone, f"/api/v1/namespaces/{namespace}", seconds=PATIENCE)
        following.cancel()
        await asyncio.wait({following})
    found: dict[str, list[float]] = defaultdict(list)
    for each in seconds.values():
        for name, value in each.items():
            found[name].append(value)
    return {**found, **{name: [value] for name, value in spent.items()}}


def table(title: str, rows: Iterable[tuple[str, list[tuple[float, float]]]]) -> None:
    print(f"\n{title}\n\n| | p50 | slowest |\n|---|---|---|")
    for name, pairs in rows:
        middle, last = (statistics.median(pair[index] for pair in pairs) for index in (0, 1))
        print(f"| {name} | {middle:.2f} | {last:.2f} |")
    sys.stdout.flush()


async def measure(cluster: LocalCluster, folder: Path, sizes: dict[int, int]) -> None:
    """Runs the benchmark for all ``sizes``, which maps a number of jobs to a number of runs."""
    async with Kube.of(cluster.kubeconfig) as kube:
        hosts = Hosts(kube, slices(max(sizes)), folder)
        await hosts.register()
        for count, runs in sizes.items():
            for way in WAYS if runs else ():
                rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
                for _ in range(runs):
                    for name, values in (await one_run(cluster, kube, hosts, way, count)).items():
                        rows[name].append((percentile(values, 0.5), max(values)))
                    print({name: round(pairs[-1][1], 3) for name, pairs in rows.items()}, file=sys.stderr)
                table(f"{count} jobs {way} at once; medians of {runs} runs, seconds", rows.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="with one job")
    parser.add_argument("--storm", type=int, default=100, help="jobs that lose their slices at once")
    parser.add_argument("--storms", type=int, default=3, help="runs of that")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        with LocalCluster.started(folder / "cluster", warm=False) as cluster:
            # Its nodes are deleted as well: this benchmark uses other slices.
            cluster.stop("node-agent")
            cluster.delete("/api/v1/nodes")
            cluster.start("operator")
            cluster.apply(fake_trainer.profile(PROFILE, folder))
            asyncio.run(measure(cluster, folder / "pods", {1: options.runs, options.storm: options.storms}))


if __name__ == "__main__":
    main()
