"""Jobs under Pathways on the real control plane: head and workers start, are disrupted and end as one attempt.

A program that waits (devcluster/pathways.py) takes the place of Pathways' servers. These tests therefore cover how
Kubernetes, JobSet and the operator treat such pods, and not what Pathways itself does while a worker is missing.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.pathways import PROXY, SERVER
from finetune_contract import RunFolder, Stage
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import await_file, condition, job_path, jobset_path, jobsets, phase, uid_of
from tests.integration.pods import over, running

type Object = dict[str, Any]

PROFILE = "double-pathways"
HEAD, WORKER = "pathways-head", "worker"
GROUP = "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "batch.kubernetes.io/job-completion-index"


class Run:
    """One job that trains under Pathways on a slice of two hosts until it is released."""

    def __init__(self, cluster: LocalCluster, namespace: str, folder: Path, **spec: object) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.path = job_path(namespace, "job")
        self._folder = folder
        self.trainer(saves=False)
        profile: Object = fake_trainer.profile(PROFILE, folder)
        profile["spec"]["images"] |= {"pathwaysServer": SERVER, "pathwaysProxy": PROXY}
        profile["spec"]["storage"]["pathwaysScratch"] = "gs://ft-scratch"
        cluster.apply(profile)
        resources = {"tpu": "v6e-8", "controller": "Pathways"}
        cluster.apply(fake_trainer.job(namespace, "job", PROFILE, resources=resources, **spec))

    @property
    def job(self) -> Object:
        return self.cluster.get(self.path)

    def trainer(self, *, saves: bool) -> None:
        """Sets the trainer for attempts that start later. With ``saves``, training takes no time once it has saved."""
        folder = self._folder / ("pathways-saving" if saves else "pathways")
        slow = fake_trainer.install(folder, seconds=3600, stages=[Stage.TRAIN], saves=saves)
        self.cluster.add_image(fake_trainer.IMAGE, slow)

    def wait(self, until: Callable[[Object], bool]) -> Object:
        return self.cluster.wait(self.path, until, seconds=90)

    def trains(self, attempt: int, number: int, restart: int = 0) -> Object:
        """Returns the job when that attempt's pods run and its trainer has installed its signal handlers."""
        found = self.wait(lambda job: phase("Running")(job) and train(job).get("attempt") == attempt)
        run = RunFolder(found["status"]["resolved"]["runFolder"])
        await_file(run.request("train", number, restart))
        return found

    def pods(self, group: str) -> list[Object]:
        """Training's pods in that replicated job, by index, without those that have ended or are being deleted."""
        selector = f"tpu-finetune.dev/stage=Train,{GROUP}={group}"
        found = self.cluster.list(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)
        standing = [pod for pod in found if "deletionTimestamp" not in pod["metadata"] and not over(pod)]
        return sorted(standing, key=lambda pod: int(pod["metadata"]["labels"][INDEX]))

    def pod_path(self, pod: Object) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"

    def signal(self, pod: Object, container: str, number: int) -> None:
        """Sends a signal to the first process of a running container."""
        meta = pod["metadata"]
        folder = self.cluster.state.pods / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        os.kill(json.loads((folder / f"{container}.process").read_text())["pid"], number)

    def evict(self, pod: Object) -> None:
        meta = {"name": pod["metadata"]["name"], "namespace": self.namespace}
        manifest = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        self.cluster.create(f"{self.pod_path(pod)}/eviction", manifest)

    def let_go(self) -> None:
        (head,) = self.pods(HEAD)
        self.signal(head, "trainer", fake_trainer.RELEASE)

    def ends_well(self) -> Object:
        done = self.wait(lambda job: condition(job, "Finished") == "True")
        assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
        return done


@pytest.fixture
def run(request: pytest.FixtureRequest, operator: LocalCluster, namespace: str, runs: Path) -> Iterator[Run]:
    """A job without Evaluate, unless the test's parameter is true."""
    wanted = {} if getattr(request, "param", False) else {"evaluation": {}}
    made = Run(operator, namespace, runs, **wanted)
    yield made
    # The cluster has room for only one head.
    operator.delete(made.path)


def train(job: Object) -> Object:
    return next((each for each in job["status"].get("stages", ()) if each["name"] == "Train"), {})


def charged(job: Object) -> tuple[int, int, int]:
    """The numbers of preemptions, infrastructure faults and user errors."""
    attempts = job["status"]["attempts"]
    return attempts["preemption"], attempts["infrastructure"], attempts["user"]


def log(cluster: LocalCluster, pod: Object, container: str) -> str:
    meta = pod["metadata"]
    return cluster.kubectl("logs", "-n", meta["namespace"], meta["name"], "-c", container)


@pytest.mark.parametrize("run", [True], indirect=True, ids=["all stages"])
def test_a_job_goes_through_all_stages_and_its_workers_end_with_its_heads(run: Run) -> None:
    run.trains(1, 1)
    uid = uid_of(run.cluster, run.namespace, "job-train-1")
    (head,), workers = run.pods(HEAD), run.pods(WORKER)
    assert head["spec"]["nodeName"] == "cpu-0"
    assert sorted(pod["spec"]["nodeName"] for pod in workers) == ["v6e-2x4-0", "v6e-2x4-1"]
    assert "--node_type=resource_manager" in log(run.cluster, head, "pathways-rm")
    head_address = head["metadata"]["labels"]["jobset.sigs.k8s.io/coordinator"]
    for pod in workers:
        assert f"--resource_manager_address={head_address}:" in log(run.cluster, pod, "pathways-worker")

    # A worker that is killed restarts on its host, and one that is evicted in another pod. The head continues.
    run.signal(workers[0], "pathways-worker", signal.SIGKILL)
    told = run.wait(lambda job: train(job).get("workerRestarts") == 1)
    assert "Recovered from 1 restart of a worker." in told["status"]["summary"]
    again = run.cluster.wait(run.pod_path(workers[0]), running)
    assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
    run.evict(workers[1])
    run.cluster.wait_gone(run.pod_path(workers[1]))
    run.cluster.wait(
        f"/apis/batch/v1/namespaces/{run.namespace}/jobs/job-train-1-worker-0",
        lambda job: job["status"].get("ready") == 2 and job["status"].get("failed") == 1,
        seconds=30,
    )
    assert [pod["metadata"]["uid"] for pod in run.pods(HEAD)] == [head["metadata"]["uid"]]

    run.let_go()
    ended = run.cluster.wait(
        jobset_path(run.namespace, "job-train-1"),
        lambda jobset: jobset.get("status", {}).get("terminalState") == "Completed",
    )
    assert ended["metadata"]["uid"] == uid
    assert ended["status"].get("restarts", 0) == 0
    for pod in run.pods(WORKER):
        run.cluster.wait_gone(run.pod_path(pod))
    done = run.ends_well()
    assert charged(done) == (0, 0, 0)
    assert done["status"]["attempts"]["total"] == len(Stage)
    assert train(done)["workerRestarts"] == 1
    assert [name.rpartition("-")[0] for name in jobsets(run.cluster, run.namespace)] == [
        f"job-{stage}" for stage in ("conv", "eval", "export", "prep", "train")
    ]


@pytest.mark.thorough
def test_a_heads_end_is_that_of_the_attempt(run: Run) -> None:
    run.trains(1, 1)
    uid = uid_of(run.cluster, run.namespace, "job-train-1")
    (head,), workers = run.pods(HEAD), run.pods(WORKER)
    # evicted: JobSet itself restarts head and workers
    run.evict(head)
    restarted = run.trains(2, 1, restart=1)
    assert charged(restarted) == (1, 0, 0)
    assert uid_of(run.cluster, run.namespace, "job-train-1") == uid
    assert not {pod["metadata"]["uid"] for pod in workers} & {
        pod["metadata"]["uid"] for pod in run.pods(WORKER)
    }
    # crashed: the operator classifies the attempt and creates another JobSet
    run.trainer(saves=True)
    (head,) = run.pods(HEAD)
    run.signal(head, "trainer", signal.SIGUSR1)
    crashed = run.trains(3, 2)
    assert charged(crashed) == (1, 1, 0)
    # suspended: the trainer saves while its servers still run, and all pods are deleted
    run.cluster.patch(run.path, {"spec": {"suspend": True}})
    suspended = run.wait(phase("Suspended"))
    assert charged(suspended) == (1, 1, 0)
    assert run.pods(HEAD) == run.pods(WORKER) == []
    run.cluster.patch(run.path, {"spec": {"suspend": False}})
    done = run.ends_well()
    assert charged(done) == (1, 1, 0)
    assert train(done)["resumedFromStep"] == fake_trainer.SAVED_STEP


def test_workers_that_keep_ending_end_the_attempt(run: Run) -> None:
    run.trainer(saves=True)
    run.trains(1, 1)
    # The same as after seven restarts, which would be minutes apart.
    path = f"/apis/batch/v1/namespaces/{run.namespace}/jobs/job-train-1-worker-0"
    assert run.cluster.get(path)["spec"]["backoffLimit"] == 8
    run.cluster.patch(path, {"spec": {"backoffLimit": 1}})
    run.signal(run.pods(WORKER)[1], "pathways-worker", signal.SIGKILL)
    done = run.ends_well()
    assert charged(done) == (0, 1, 0)
    ended = [each for each in done["status"]["attempts"]["history"] if each["stage"] == "Train"]
    assert [(each["reason"], each.get("class")) for each in ended] == [
        ("WorkersFailed", "Infrastructure"),
        ("Succeeded", None),
    ]
