"""The real scheduler and JobSet controller place rendered JobSets on fake nodes with GKE's labels, taints and chips.

A row of SCENARIOS is a set of slices, which must all be placed in the pools that are made for them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.catalog import TpuShape, shape_by_name
from tests.doubles.fakenodes import tpu_pool
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import jobset_path
from tests.unit.rendering.golden_jobsets import plan_offline

type Object = dict[str, Any]

pytestmark = pytest.mark.matrix

#: Label that restricts the pods of a scenario to the scenario's own nodes.
SCENARIO = "test.tpu-finetune.dev/scenario"


@dataclass(frozen=True, slots=True)
class Slices:
    """A number of jobs that each request one or several slices of the same type."""

    tpu: str
    jobs: int
    chips_per_host: int = 4
    slices: int = 1

    @property
    def shape(self) -> TpuShape:
        return shape_by_name(self.tpu, chips_per_host=self.chips_per_host)


SCENARIOS: Mapping[str, Sequence[Slices]] = {
    "slices of one host share a pool": [Slices("v6e-4", 3)],
    "slices of several hosts have a pool each": [Slices("v6e-16", 3)],
    "two machines of the same labels": [Slices("v6e-8", 2), Slices("v6e-8", 2, chips_per_host=8)],
    "64 hosts": [Slices("v6e-256", 1)],
    "two slices for one job": [Slices("v5e-16", 2, slices=2)],
    "three dimensions": [Slices("v5p-128", 1), Slices("v4-16", 2), Slices("tpu7x-16", 1)],
}


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with fake nodes, separate from the cluster of the other tests."""
    folder = tmp_path_factory.mktemp("fakes") / "cluster"
    with LocalCluster.started(folder, warm=False, extra=("kwok",)) as running:
        yield running


def add_pools(cluster: LocalCluster, scenario: str, wanted: Slices) -> None:
    """Adds one pool for each slice of several hosts, or else one pool for all slices, with a spare node."""
    shape = wanted.shape
    for number in range(wanted.jobs * wanted.slices if shape.multi_host else 1):
        pool = tpu_pool(
            f"{scenario}-{shape.machine_type}-{number}",
            accelerator=shape.accelerator,
            topology=shape.topology,
            machine_type=shape.machine_type,
            hosts=shape.hosts if shape.multi_host else wanted.jobs + 1,
            chips_per_host=shape.chips_per_host,
            labels={SCENARIO: scenario} | _placement_policy(shape),
        )
        if not shape.multi_host:
            # Larger nodes than those of slices of several hosts: the scheduler prefers them wherever it has a choice.
            pool = [replace(node, cpu="2000", memory="20Ti") for node in pool]
        cluster.add_fake_nodes(pool)


def _placement_policy(shape: TpuShape) -> dict[str, str]:
    """The label that xpk sets on pools that need a placement policy."""
    if not shape.requires_placement_policy:
        return {}
    return {"cloud.google.com/placement-policy-name": f"{shape.name}-{shape.topology}-placement-policy"}


def train_jobset(namespace: str, name: str, wanted: Slices, scenario: str) -> Object:
    """Training's JobSet as the operator renders it, without its owner reference, as the owner does not exist here."""
    shape = wanted.shape
    profile: Object = fake_trainer.profile("placement", folder=fake_trainer.Path("/nowhere"))
    profile["spec"]["flavors"] = [
        {
            "name": "only",
            "capacity": "OnDemand",
            "accelerator": shape.accelerator,
            "topologies": [shape.topology],
            "chipsPerHost": shape.chips_per_host,
            "maxSlices": wanted.slices,
            "nodeSelector": {SCENARIO: scenario},
        }
    ]
    resources = {"tpu": wanted.tpu, "chipsPerHost": shape.chips_per_host, "slices": wanted.slices}
    job = fake_trainer.job(namespace, name, "placement", resources=resources)
    jobset = dict(plan_offline(job, profile))[Stage.TRAIN]
    del jobset["metadata"]["ownerReferences"]
    return jobset


def all_ready(jobset: Object) -> bool:
    """Whether all pods of every Job are bound, and running by kwok's simulation."""
    told = jobset.get("status", {}).get("replicatedJobsStatus", ())
    replicas = {each["name"]: each["replicas"] for each in jobset["spec"]["replicatedJobs"]}
    return {each["name"]: each["ready"] for each in told} == replicas


@pytest.mark.parametrize("title", SCENARIOS)
def test_every_slice_is_alone_on_nodes_that_are_made_for_it(fakes: LocalCluster, title: str) -> None:
    namespace = fakes.namespace()
    for wanted in SCENARIOS[title]:
        add_pools(fakes, namespace, wanted)
    names: dict[str, Slices] = {}
    for kind, wanted in enumerate(SCENARIOS[title]):
        for number in range(wanted.jobs):
            jobset = train_jobset(namespace, f"job-{kind}-{number}", wanted, namespace)
            fakes.create(jobset_path(namespace, "").rstrip("/"), jobset)
            names[jobset["metadata"]["name"]] = wanted
    for name in names:
        fakes.wait(jobset_path(namespace, name), all_ready, seconds=90)

    nodes = {node["metadata"]["name"]: node for node in fakes.list("/api/v1/nodes")}
    pods = fakes.list(f"/api/v1/namespaces/{namespace}/pods")
    assert len(pods) == sum(wanted.jobs * wanted.slices * wanted.shape.hosts for wanted in SCENARIOS[title])
    assert max(Counter(pod["spec"]["nodeName"] for pod in pods).values()) == 1
    pools: dict[str, set[str]] = {}
    for pod in pods:
        labels = pod["metadata"]["labels"]
        name, job = labels["jobset.sigs.k8s.io/jobset-name"], labels["jobset.sigs.k8s.io/job-key"]
        node = nodes[pod["spec"]["nodeName"]]["metadata"]["labels"]
        assert node["node.kubernetes.io/instance-type"] == names[name].shape.machine_type
        if names[name].shape.multi_host:
            pools.setdefault(node["cloud.google.com/gke-nodepool"], set()).add(job)
    assert all(len(slices) == 1 for slices in pools.values()), pools
    multi_host = [wanted for wanted in SCENARIOS[title] if wanted.shape.multi_host]
    assert len(pools) == sum(wanted.jobs * wanted.slices for wanted in multi_host)
