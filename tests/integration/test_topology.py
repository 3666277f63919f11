"""Kueue's topology-aware scheduling beside JobSet's ``exclusive-topology``: real controllers, nodes without machines.

docs/queues.md says what works of it.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from finetune_contract import Stage
from tests.doubles.fakenodes import tpu_pool
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import condition, condition_of, jobset_path
from tests.integration.queues import KUEUE, LOCAL_QUEUE, kueue
from tests.integration.test_placement import all_ready
from tests.unit.rendering.golden_jobsets import plan_offline

type Object = dict[str, Any]

pytestmark = pytest.mark.matrix

POOL, HOST = "cloud.google.com/gke-nodepool", "kubernetes.io/hostname"
REQUIRED = {"kueue.x-k8s.io/podset-required-topology": POOL}
POOLS, HOSTS = 3, 4


@pytest.fixture(scope="module")
def topologies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with three slices of four hosts, whose flavor has a topology."""
    folder = tmp_path_factory.mktemp("topologies") / "cluster"
    with LocalCluster.started(folder, warm=False, extra=("kwok", "kueue")) as running:
        for number in range(POOLS):
            running.add_fake_nodes(
                tpu_pool(
                    f"v6e-16-{number}",
                    accelerator="tpu-v6e-slice",
                    topology="4x4",
                    machine_type="ct6e-standard-4t",
                    hosts=HOSTS,
                    chips_per_host=4,
                )
            )
        running.apply(
            {**kueue("Topology", "slices"), "spec": {"levels": [{"nodeLabel": POOL}, {"nodeLabel": HOST}]}}
        )
        labels = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}
        running.apply(
            {**kueue("ResourceFlavor", "tpu"), "spec": {"nodeLabels": labels, "topologyName": "slices"}}
        )
        resources = [{"name": "google.com/tpu", "nominalQuota": 1000}]
        group = {"coveredResources": ["google.com/tpu"], "flavors": [{"name": "tpu", "resources": resources}]}
        running.apply(
            {**kueue("ClusterQueue", "tpu"), "spec": {"namespaceSelector": {}, "resourceGroups": [group]}}
        )
        yield running


@dataclass(frozen=True, slots=True)
class Queue:
    """A namespace with a queue to the flavor with a topology."""

    cluster: LocalCluster
    namespace: str
    made: list[str] = field(default_factory=list)

    def add(
        self, annotations: Mapping[str, str], *, slices: int = 1, topology: str = "4x4", name: str = "job"
    ) -> str:
        """Creates training's JobSet as the operator renders it, without its owner, and returns its path."""
        profile: Object = fake_trainer.profile("topology", folder=fake_trainer.Path("/nowhere"))
        profile["spec"]["flavors"][0] |= {"topologies": [topology], "maxSlices": slices}
        profile["spec"]["queue"] = {"localQueue": LOCAL_QUEUE}
        profile["spec"]["pod"] = {"annotations": dict(annotations)}
        resources = {"tpu": f"v6e-{topology}", "slices": slices}
        job = fake_trainer.job(self.namespace, name, "topology", resources=resources)
        jobset = dict(plan_offline(job, profile))[Stage.TRAIN]
        del jobset["metadata"]["ownerReferences"]
        self.cluster.create(jobset_path(self.namespace, "").rstrip("/"), jobset)
        self.made.append(jobset_path(self.namespace, jobset["metadata"]["name"]))
        return self.made[-1]

    def pools(self) -> dict[str, set[str]]:
        """Slice -> the node pools of its pods."""
        found: dict[str, set[str]] = {}
        for pod in self.cluster.list(f"/api/v1/namespaces/{self.namespace}/pods"):
            node = self.cluster.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
            name = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            found.setdefault(name, set()).add(node["metadata"]["labels"][POOL])
        return found

    def refusal(self) -> str:
        """Why Kueue does not admit the only JobSet. It polls for the Workload, whose name is Kueue's."""
        workloads = f"/apis/{KUEUE}/namespaces/{self.namespace}/workloads"
        deadline = time.monotonic() + 30
        while not (found := self.cluster.list(workloads)):
            assert time.monotonic() < deadline, f"no Workload in {self.namespace}"
        path = f"{workloads}/{found[0]['metadata']['name']}"
        workload = self.cluster.wait(path, lambda each: condition(each, "QuotaReserved") == "False")
        return str(condition_of(workload, "QuotaReserved")["message"])


@pytest.fixture
def queue(topologies: LocalCluster) -> Iterator[Queue]:
    made = Queue(topologies, topologies.namespace())
    local: Object = kueue("LocalQueue", LOCAL_QUEUE)
    local["metadata"]["namespace"] = made.namespace
    topologies.apply({**local, "spec": {"clusterQueue": "tpu"}})
    yield made
    for path in made.made:
        topologies.delete(path, propagationPolicy="Foreground")
        topologies.wait_gone(path)


@pytest.fixture
def incomplete(topologies: LocalCluster) -> Iterator[None]:
    """One host of each slice takes no pods."""
    paths = [f"/api/v1/nodes/v6e-16-{number}-0" for number in range(POOLS)]
    for path in paths:
        topologies.patch(path, {"spec": {"unschedulable": True}})
    yield
    for path in paths:
        topologies.patch(path, {"spec": {"unschedulable": False}})


@pytest.mark.parametrize("annotations", [{}, REQUIRED], ids=["plain", "required"])
def test_every_slice_gets_a_node_pool_of_its_own(queue: Queue, annotations: Mapping[str, str]) -> None:
    for number in range(POOLS):
        queue.add(annotations, name=f"job-{number}")
    for path in queue.made:
        queue.cluster.wait(path, all_ready, seconds=90)
    found = queue.pools()
    assert len(found) == POOLS
    assert sorted(map(sorted, found.values())) == [[f"v6e-16-{number}"] for number in range(POOLS)]


def test_two_slices_of_a_job_get_a_node_pool_each(queue: Queue) -> None:
    queue.cluster.wait(queue.add({}, slices=2), all_ready, seconds=90)
    first, second = queue.pools().values()
    assert (len(first), len(second), len(first | second)) == (1, 1, 2)


def test_two_slices_of_a_job_that_requires_a_node_pool_find_none_for_both(queue: Queue) -> None:
    queue.add(REQUIRED, slices=2)
    assert "allows to fit only 4 out of 8 pod(s)" in queue.refusal()


def test_without_the_annotation_half_a_slice_starts_where_no_pool_is_whole(
    queue: Queue, incomplete: None
) -> None:
    """Kueue divides the pods among two pools; JobSet keeps them in the first one's."""
    queue.add({})
    job = f"/apis/batch/v1/namespaces/{queue.namespace}/jobs/job-train-1-slice-0"
    queue.cluster.wait(job, lambda found: found["status"].get("ready") == HOSTS - 1)
    pods = queue.cluster.list(f"/api/v1/namespaces/{queue.namespace}/pods")
    (left,) = (pod["spec"]["nodeSelector"] for pod in pods if "nodeName" not in pod["spec"])
    assert not left[HOST].startswith(left[POOL])


def test_with_the_annotation_a_job_waits_for_a_whole_pool(queue: Queue, incomplete: None) -> None:
    queue.add(REQUIRED)
    assert "allows to fit only 3 out of 4 pod(s)" in queue.refusal()


def test_nothing_is_admitted_to_a_pool_that_has_no_nodes_yet(queue: Queue) -> None:
    queue.add({}, topology="4x8")
    assert "doesn't allow to fit any of 8 pod(s)" in queue.refusal()
