"""How long training pauses when it loses a host, and how many steps are repeated: with the real trainer, on CPU.

    python -m tests.bench.resume [--runs 5] [--cold]

A job of the tiny model trains on two hosts (two processes of four devices each) and saves every 20 steps. In turn:

    evicted   one pod is evicted through the API: both hosts save, and JobSet restarts them
    killed    both processes are killed at once, so nothing is saved: the operator creates the next JobSet 5 s later

With ``--cold`` every stage is a fresh process that imports and compiles anew, as on a real node. Prints a Markdown
table of medians.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from devcluster import samples
from finetune_contract import Progress, Stage
from tests.doubles.local_cluster import LocalCluster
from tests.e2e.user_client import Object, UserClient, finetune_job, folder_of

STEPS, SAVED_EVERY, BEFORE = 400, 20, 30
WAYS = ("evicted", "killed")


def train(bench: UserClient, name: str) -> Object:
    """Applies the job and waits until it has trained beyond step BEFORE."""
    hyperparameters = {
        "steps": STEPS,
        "globalBatchSize": 8,
        "learningRate": 1e-3,
        "computePrecision": "FP32",
    }
    bench.apply(
        finetune_job(
            name,
            hyperparameters=hyperparameters,
            checkpointing={"everySteps": SAVED_EVERY},
            resources={"accelerator": "tpu-v6e-slice", "topology": "2x4", "chipsPerHost": 4},
        )
    )
    job = bench.wait(name, lambda job: job.get("status", {}).get("stage") == "Train")
    bench.wait_for_step(job, BEFORE)
    return job


def evict(bench: UserClient, pod: Object) -> None:
    meta = {"name": pod["metadata"]["name"], "namespace": bench.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    path = f"/api/v1/namespaces/{bench.namespace}/pods/{meta['name']}/eviction"
    bench.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def processes(cluster: LocalCluster, pods: list[Object]) -> list[int]:
    """Returns the ids of the pods' processes, as the node agent has recorded them."""
    files = [
        file for pod in pods for file in cluster.state.pods.glob(f"*{pod['metadata']['uid']}*/*.process")
    ]
    return [json.loads(file.read_text())["pid"] for file in files]


def one_run(cluster: LocalCluster, bench: UserClient, name: str, way: str) -> Mapping[str, float]:
    job = train(bench, name)
    pods = sorted(bench.list("pods", job=name, stage="Train"), key=lambda pod: str(pod["metadata"]["name"]))
    pids = processes(cluster, pods)
    begun = datetime.now(UTC)
    if way == "evicted":
        evict(bench, pods[1])
    else:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    number, restart = (1, 1) if way == "evicted" else (2, 0)
    before, first = awaited(bench, job, number, restart)
    found: dict[str, float] = {}
    if way == "evicted":
        saved = bench.result(job, Stage.TRAIN)
        found["until both hosts have saved"] = (saved.finished - begun).total_seconds()
        assert saved.details is not None
        assert saved.details.kind == "Train"
        before = saved.details.step
    found["until the first new step is told"] = (first.updated - begun).total_seconds()
    found["steps done again"] = before - first.start_step
    bench.delete("finetunejob", name)
    cluster.wait_gone(
        f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{bench.namespace}/jobsets/{name}-train-{number}"
    )
    return found


def awaited(bench: UserClient, job: Object, number: int, restart: int) -> tuple[int, Progress]:
    """Waits for the given attempt's first report with a step of its own.

    Returns the last step of the previous attempt, and that report.
    """
    last = 0
    while True:
        content = bench.read(folder_of(job).progress)
        assert content is not None, "training has written its progress"
        progress = Progress.model_validate_json(content)
        if (progress.attempt, progress.restart) != (number, restart):
            last = progress.step
        elif progress.step > progress.start_step:
            return last, progress


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="stages are fresh processes, no warm server")
    options = parser.parse_args()
    rows: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        LocalCluster.started(Path(folder) / "cluster", operator=True, warm=not options.cold) as cluster,
    ):
        for item in (samples.TINY_MODEL, samples.CAPITALS):
            samples.put(item, cluster.gcs)
        bench = UserClient(
            kubectl_binary=cluster.kubectl_program,
            kubeconfig=cluster.kubeconfig,
            namespace=cluster.namespace("bench"),
            gcs_endpoint=cluster.gcs,
        )
        for run in range(options.runs):
            for way in WAYS:
                found = one_run(cluster, bench, f"{way}-{run}", way)
                print(way, json.dumps(found), file=sys.stderr, flush=True)
                for name, value in found.items():
                    rows[f"{way}: {name}"].append(value)
    print("| | median | min | max |\n|---|---|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |")


if __name__ == "__main__":
    main()
