"""What takes a running slice away, on the real control plane: who is charged, and how training comes back."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from devcluster.testing import Cluster
from finetune_contract import RunFolder, Stage
from tests.integration import trainer_double
from tests.integration.jobs import PROFILE, Object, await_file, job_path, jobset_path, jobsets, phase, uid_of

PREEMPTED = {"preemption": 1, "infrastructure": 0, "user": 0}
FAULT = {"preemption": 0, "infrastructure": 1, "user": 0}


@pytest.fixture
def training(operator: Cluster, runs: Path) -> Cluster:
    """The operator, and stages that take no time but for training, which lasts until it is ended."""
    slow = trainer_double.install(runs / "training", seconds=3600, stages=[Stage.TRAIN])
    operator.add_image(trainer_double.IMAGE, slow)
    operator.apply(trainer_double.profile(PROFILE, runs))
    return operator


def started(cluster: Cluster, namespace: str, name: str) -> RunFolder:
    """A job that trains on two hosts."""
    cluster.apply(trainer_double.job(namespace, name, PROFILE, resources={"tpu": "v6e-8"}))
    running = cluster.wait(
        job_path(namespace, name),
        lambda job: phase("Running")(job) and job["status"]["stage"] == "Train",
        seconds=90,
    )
    run = RunFolder(running["status"]["resolved"]["runFolder"])
    await_file(run.request("train", 1))
    return run


def pods_of(cluster: Cluster, namespace: str) -> list[Object]:
    found = cluster.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="tpu-finetune.dev/stage=Train")
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def processes(uid: str) -> list[int]:
    """The training's processes of that job, the first host's first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        variables = dict(each.partition(b"=")[::2] for each in environment)
        if uid.encode() in variables.get(b"FINETUNE_REQUEST", b"") and entry.name.isdecimal():
            found.append((variables.get(b"TPU_WORKER_ID", b"0"), int(entry.name)))
    return [pid for _, pid in sorted(found)]


def evict(cluster: Cluster, namespace: str, pod: Object) -> None:
    name = pod["metadata"]["name"]
    cluster.create(
        f"/api/v1/namespaces/{namespace}/pods/{name}/eviction",
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        },
    )


def one_pod_is_evicted(cluster: Cluster, namespace: str, uid: str) -> None:
    evict(cluster, namespace, pods_of(cluster, namespace)[1])


def one_pod_is_deleted(cluster: Cluster, namespace: str, uid: str) -> None:
    name = pods_of(cluster, namespace)[1]["metadata"]["name"]
    cluster.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")


def a_node_is_tainted(cluster: Cluster, namespace: str, uid: str) -> None:
    """As of a node that is going away; the taint manager then takes its pods. (Of one that does not answer, it does so
    after the five minutes that every pod tolerates.)"""
    node = f"/api/v1/nodes/{pods_of(cluster, namespace)[1]['spec']['nodeName']}"
    taints = cluster.get(node)["spec"]["taints"]
    away = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}
    cluster.patch(node, {"spec": {"taints": [*taints, away]}})
    cluster.wait(job_path(namespace, "job"), lambda job: job["status"]["attempts"]["preemption"] == 1)
    cluster.patch(node, {"spec": {"taints": taints}})


def all_processes_crash(cluster: Cluster, namespace: str, uid: str) -> None:
    for pid in processes(uid):
        os.kill(pid, signal.SIGUSR1)


def one_process_crashes(cluster: Cluster, namespace: str, uid: str) -> None:
    os.kill(processes(uid)[1], signal.SIGUSR1)


def one_crashes_and_then_another_is_evicted(cluster: Cluster, namespace: str, uid: str) -> None:
    pod = pods_of(cluster, namespace)[1]
    os.kill(processes(uid)[0], signal.SIGUSR1)
    evict(cluster, namespace, pod)


def the_jobset_is_deleted(cluster: Cluster, namespace: str, uid: str) -> None:
    cluster.delete(jobset_path(namespace, "job-train-1"))


INSIDE = [one_pod_is_evicted, one_pod_is_deleted, a_node_is_tainted]
ANEW = [
    (all_processes_crash, FAULT),
    (one_process_crashes, FAULT),
    (one_crashes_and_then_another_is_evicted, PREEMPTED),
    (the_jobset_is_deleted, FAULT),
]


def trained(job: Object) -> Object:
    """What status says of the training."""
    return next(stage for stage in job["status"]["stages"] if stage["name"] == "Train")


def end(cluster: Cluster, namespace: str) -> Object:
    """The next attempt takes no time, and training comes to its end; what is left of the job is of no interest."""
    done = cluster.wait(
        job_path(namespace, "job"),
        lambda job: phase("Failed")(job) or trained(job)["phase"] == "Succeeded",
        seconds=120,
    )
    assert done["status"]["phase"] != "Failed", done["status"]["summary"]
    return done


def quick(cluster: Cluster, runs: Path) -> None:
    cluster.add_image(trainer_double.IMAGE, trainer_double.install(runs / "bin"))


def charged(job: Object) -> Object:
    return {name: job["status"]["attempts"][name] for name in ("preemption", "infrastructure", "user")}


@pytest.mark.parametrize("disrupt", INSIDE)
def test_a_disruption_is_repaired_inside_the_jobset(
    training: Cluster, namespace: str, runs: Path, disrupt: Callable[[Cluster, str, str], None]
) -> None:
    run = started(training, namespace, "job")
    uid = uid_of(training, namespace, "job-train-1")
    job = training.get(job_path(namespace, "job"))["metadata"]["uid"]
    quick(training, runs)
    disrupt(training, namespace, job)
    done = end(training, namespace)
    assert charged(done) == PREEMPTED
    assert uid_of(training, namespace, "job-train-1") == uid
    assert "job-train-2" not in jobsets(training, namespace)
    train = trained(done)
    assert (train["attempt"], train["jobSet"], train["restart"]) == (2, "job-train-1", 1)
    await_file(run.result("train", 1, 1), seconds=0)
    ended = done["status"]["attempts"]["history"]
    assert [each["reason"] for each in ended if each["stage"] == "Train"] == ["Preempted", "Succeeded"]


@pytest.mark.parametrize(("fault", "budget"), ANEW)
def test_what_is_no_disruption_is_judged_and_tried_again(
    training: Cluster,
    namespace: str,
    runs: Path,
    fault: Callable[[Cluster, str, str], None],
    budget: Object,
) -> None:
    started(training, namespace, "job")
    job = training.get(job_path(namespace, "job"))["metadata"]["uid"]
    quick(training, runs)
    fault(training, namespace, job)
    done = end(training, namespace)
    assert charged(done) == budget
    train = trained(done)
    assert train["attempt"] == 2


def test_without_an_operator_training_comes_back_and_the_operator_learns_of_it(
    training: Cluster, namespace: str, runs: Path
) -> None:
    started(training, namespace, "job")
    training.stop("operator")
    quick(training, runs)
    one_pod_is_evicted(training, namespace, "")
    training.wait(
        jobset_path(namespace, "job-train-1"),
        lambda jobset: jobset.get("status", {}).get("terminalState") == "Completed",
        seconds=90,
    )
    training.start("operator")
    done = end(training, namespace)
    assert charged(done) == PREEMPTED
    assert "job-train-2" not in jobsets(training, namespace)


def test_while_the_jobset_controller_is_away_nothing_is_doubled(
    training: Cluster, namespace: str, runs: Path
) -> None:
    started(training, namespace, "job")
    training.stop("jobset")
    quick(training, runs)
    one_pod_is_evicted(training, namespace, "")
    # The Job fails of it, and nobody starts anything: the JobSet stands as it was.
    training.wait(
        f"/apis/batch/v1/namespaces/{namespace}/jobs/job-train-1-slice-0",
        lambda found: any(
            each["type"] == "Failed" and each["status"] == "True"
            for each in found.get("status", {}).get("conditions", [])
        ),
    )
    assert jobsets(training, namespace)[-1] == "job-train-1"
    training.start("jobset")
    done = end(training, namespace)
    assert charged(done) == PREEMPTED
    assert "job-train-2" not in jobsets(training, namespace)
