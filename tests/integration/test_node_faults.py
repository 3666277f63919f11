"""Nodes that are deleted, become unreachable or run out of memory during training, on the real control plane.

The control plane takes a minute or more to react to a node's fault, so the slowest of these faults begins first and
ends last.
"""

import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetune_contract import Stage
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.invariants import nothing_doubled
from tests.integration.jobs import Object, charged, job_path, jobsets, phase
from tests.integration.training import PREEMPTED, end, pods_of, processes, quick, started

pytestmark = pytest.mark.usefixtures("watches_are_late")

NODES = "/api/v1/nodes"


def disrupted(reason: str) -> Callable[[Object], bool]:
    """Returns a predicate: the pod is disrupted (DisruptionTarget) for that reason."""

    def holds(pod: Object) -> bool:
        conditions = pod.get("status", {}).get("conditions", ())
        return any(each["type"] == "DisruptionTarget" and each["reason"] == reason for each in conditions)

    return holds


@pytest.fixture(scope="module")
def gone(cluster: LocalCluster, runs: Path) -> Iterator[str]:
    """The namespace of a job whose Node object has been deleted while the machine still runs."""
    namespace, image = cluster.namespace(), "localhost/trainer-double:gone"
    cluster.start("operator")
    cluster.add_image(image, fake_trainer.install(runs / "gone", seconds=3600, stages=[Stage.TRAIN]))
    profile: Object = fake_trainer.profile("gone", runs)
    profile["spec"]["images"]["trainer"] = image
    cluster.apply(profile)
    with nothing_doubled(cluster):
        started(cluster, namespace, "job", profile="gone", tpu="v6e-4")
        cluster.add_image(image, fake_trainer.install(runs / "bin"))
        (pod,) = pods_of(cluster, namespace)
        cluster.delete(f"{NODES}/{pod['spec']['nodeName']}")
        yield namespace
    registered_again(cluster)


def registered_again(cluster: LocalCluster) -> None:
    """Restarts the node agent, which registers its nodes at its start, as a kubelet does."""
    cluster.kill("node-agent")
    cluster.await_ready("node-agent")


@pytest.mark.usefixtures("gone")
def test_a_node_that_falls_silent_loses_its_pod_and_the_slice_comes_back_when_it_is_heard_of(
    training: LocalCluster, namespace: str, runs: Path
) -> None:
    """The pod's container keeps running, so no pod may replace it before the node reports that it has ended."""
    profile: Object = fake_trainer.profile("impatient", runs)
    profile["spec"]["flavors"][0]["tolerations"] = [
        {
            "key": "node.kubernetes.io/unreachable",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 1,
        }
    ]
    training.apply(profile)
    started(training, namespace, "job", profile="impatient")
    quick(training, runs)
    silent = pods_of(training, namespace)[1]
    training.freeze_nodes()
    try:
        lose_touch(training, silent["spec"]["nodeName"])
        path = f"/api/v1/namespaces/{namespace}/pods/{silent['metadata']['name']}"
        training.wait(path, disrupted("DeletionByTaintManager"))
        training.wait(path, lambda pod: "deletionTimestamp" in pod["metadata"])
        assert len(processes(training.get(job_path(namespace, "job"))["metadata"]["uid"])) == 2
    finally:
        training.thaw_nodes()
        heard_of(training, silent["spec"]["nodeName"])
    done = end(training, namespace)
    assert charged(done) == PREEMPTED
    assert "job-train-2" not in jobsets(training, namespace)


def lose_touch(cluster: LocalCluster, node: str) -> None:
    """Sets the condition that the node controller sets after a grace period (two minutes here) without a heartbeat.

    The node controller itself then taints the node and evicts its pods.
    """
    ready(cluster, node, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")


def heard_of(cluster: LocalCluster, node: str) -> None:
    """Sets the condition that a node regularly reports about itself."""
    ready(cluster, node, "True", "KubeletReady", "the node agent is posting ready status")


def ready(cluster: LocalCluster, node: str, status: str, reason: str, message: str) -> None:
    path = f"{NODES}/{node}"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"type": "Ready", "status": status, "reason": reason, "message": message}
    others = [each for each in cluster.get(path)["status"]["conditions"] if each["type"] != "Ready"]
    stamps = {"lastTransitionTime": now, "lastHeartbeatTime": now}
    cluster.patch(f"{path}/status", {"status": {"conditions": [*others, {**told, **stamps}]}})


@pytest.mark.usefixtures("gone")
def test_a_host_out_of_memory_fails_the_job_and_says_what_to_change(
    training: LocalCluster, namespace: str, runs: Path
) -> None:
    started(training, namespace, "job")
    quick(training, runs)
    killed = pods_of(training, namespace)[1]
    training.run_out_of_memory(killed)
    done = training.wait(job_path(namespace, "job"), phase("Failed", "Succeeded"))
    assert done["status"]["phase"] == "Failed"
    assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 1}
    failure = done["status"]["failure"]
    assert (failure["class"], failure["reason"]) == ("User", "HostOutOfMemory")
    assert killed["metadata"]["name"] in failure["message"]
    assert "memory" in failure["message"]
    assert "larger nodes" in failure["suggestion"]
    assert "job-train-2" not in jobsets(training, namespace)


def test_a_node_that_was_deleted_under_a_training_is_a_preemption(training: LocalCluster, gone: str) -> None:
    """Only the garbage collector of pods deletes the node's pod, after 40 to 80 s."""
    done = end(training, gone)
    assert charged(done) == PREEMPTED
    assert "job-train-2" not in jobsets(training, gone)


@pytest.mark.thorough
def test_a_crash_beside_a_node_that_is_gone_is_a_preemption(
    training: LocalCluster, namespace: str, runs: Path
) -> None:
    started(training, namespace, "job")
    quick(training, runs)
    uid = training.get(job_path(namespace, "job"))["metadata"]["uid"]
    beside, lost = (f"{NODES}/{pod['spec']['nodeName']}" for pod in pods_of(training, namespace))
    # A multi-host pool is repaired as a whole. If one node stayed schedulable, the two pods, which end at once, could
    # both run on it, one after the other.
    training.patch(beside, {"spec": {"unschedulable": True}})
    training.delete(lost)
    os.kill(processes(uid)[0], signal.SIGUSR1)
    training.wait(
        job_path(namespace, "job"),
        lambda job: job["status"].get("waiting", {}).get("reason") == "WaitingForCapacity",
    )
    assert jobsets(training, namespace)[-1] == "job-train-2"
    training.patch(beside, {"spec": {"unschedulable": None}})
    registered_again(training)
    done = end(training, namespace)
    assert charged(done) == PREEMPTED
    ended = [each for each in done["status"]["attempts"]["history"] if each["stage"] == "Train"]
    assert ended[0]["reason"] == "Preempted"
