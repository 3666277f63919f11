"""Disruptions of a running slice, on the real control plane: who is charged, and how training resumes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.local_cluster import LocalCluster
from tests.integration.jobs import Object, await_file, charged, job_path, jobset_path, jobsets, uid_of
from tests.integration.training import (
    FAULT,
    PREEMPTED,
    end,
    pods_of,
    processes,
    quick,
    started,
    trained,
)

pytestmark = [pytest.mark.usefixtures("watches_are_late"), pytest.mark.matrix]


def evict(cluster: LocalCluster, namespace: str, pod: Object) -> None:
    name = pod["metadata"]["name"]
    cluster.create(
        f"/api/v1/namespaces/{namespace}/pods/{name}/eviction",
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        },
    )


def one_pod_is_evicted(cluster: LocalCluster, namespace: str, uid: str) -> None:
    evict(cluster, namespace, pods_of(cluster, namespace)[1])


def one_pod_is_deleted(cluster: LocalCluster, namespace: str, uid: str) -> None:
    name = pods_of(cluster, namespace)[1]["metadata"]["name"]
    cluster.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")


def a_node_is_tainted(cluster: LocalCluster, namespace: str, uid: str) -> None:
    """Taints the node like one that is about to be terminated; the taint manager then deletes its pods.

    It deletes the pods of an unreachable node only after the five minutes that every pod tolerates.
    """
    node = f"/api/v1/nodes/{pods_of(cluster, namespace)[1]['spec']['nodeName']}"
    taints = cluster.get(node)["spec"]["taints"]
    away = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}
    cluster.patch(node, {"spec": {"taints": [*taints, away]}})
    cluster.wait(job_path(namespace, "job"), lambda job: job["status"]["attempts"]["preemption"] == 1)
    cluster.patch(node, {"spec": {"taints": taints}})


def all_processes_crash(cluster: LocalCluster, namespace: str, uid: str) -> None:
    for pid in processes(uid):
        os.kill(pid, signal.SIGUSR1)


def one_process_crashes(cluster: LocalCluster, namespace: str, uid: str) -> None:
    os.kill(processes(uid)[1], signal.SIGUSR1)


def one_crashes_and_then_another_is_evicted(cluster: LocalCluster, namespace: str, uid: str) -> None:
    crashing, evicted = pods_of(cluster, namespace)
    # The Job controller deletes the other pods of a Job of which one has failed.
    cluster.stop("kube-controller-manager")
    os.kill(processes(uid)[0], signal.SIGUSR1)
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.wait(f"{path}/{crashing['metadata']['name']}", lambda pod: pod["status"]["phase"] == "Failed")
    evict(cluster, namespace, evicted)
    cluster.wait(
        f"{path}/{evicted['metadata']['name']}",
        lambda pod: any(each["type"] == "DisruptionTarget" for each in pod["status"]["conditions"]),
    )
    cluster.start("kube-controller-manager")


def the_jobset_is_deleted(cluster: LocalCluster, namespace: str, uid: str) -> None:
    cluster.delete(jobset_path(namespace, "job-train-1"))


INSIDE = [
    one_pod_is_evicted,
    pytest.param(one_pod_is_deleted, marks=pytest.mark.thorough),
    pytest.param(a_node_is_tainted, marks=pytest.mark.thorough),
]
ANEW = [
    pytest.param(all_processes_crash, FAULT, marks=pytest.mark.thorough),
    (one_process_crashes, FAULT),
    (one_crashes_and_then_another_is_evicted, PREEMPTED),
    pytest.param(the_jobset_is_deleted, FAULT, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("disrupt", INSIDE)
def test_a_disruption_is_repaired_inside_the_jobset(
    training: LocalCluster, namespace: str, runs: Path, disrupt: Callable[[LocalCluster, str, str], None]
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
    # The taint manager may delete a pod that is scheduled before it observes that the taint is gone. The first host of
    # the fake trainer may have succeeded by then, as it waits for no other: JobSet restarts, and nothing is charged.
    train = trained(done)
    restart = train["restart"]
    assert (train["attempt"], train["jobSet"]) == (restart + 1, "job-train-1")
    assert restart == 1 or disrupt is a_node_is_tainted
    await_file(run.result("train", 1, 1), seconds=0)
    ended = done["status"]["attempts"]["history"]
    reasons = [each["reason"] for each in ended if each["stage"] == "Train"]
    assert reasons == ["Preempted", *["Succeeded"] * restart]


@pytest.mark.parametrize(("fault", "budget"), ANEW)
def test_what_is_no_disruption_is_judged_and_tried_again(
    training: LocalCluster,
    namespace: str,
    runs: Path,
    fault: Callable[[LocalCluster, str, str], None],
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
    training: LocalCluster, namespace: str, runs: Path
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
    training: LocalCluster, namespace: str, runs: Path
) -> None:
    started(training, namespace, "job")
    training.stop("jobset")
    quick(training, runs)
    one_pod_is_evicted(training, namespace, "")
    # The Job fails, and no controller starts another: the JobSet stays as it is.
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
