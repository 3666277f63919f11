"""A cluster with Kueue and fake nodes, apart from the one of the other suites: Kueue has a say in every JobSet.

Fixtures
    queues    the cluster, with the operator running
    team      a namespace of it with a LocalQueue of a quota for one slice of four chips, and two priorities
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.testing import Cluster
from tests.integration import trainer_double

type Object = dict[str, Any]

KUEUE = "kueue.x-k8s.io/v1beta2"
LOCAL_QUEUE = "team-tpu"
LOW, HIGH = "low", "high"
_PRIORITIES = {LOW: 10, HIGH: 1000}


@pytest.fixture(scope="session")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("queues")
    with Cluster.started(folder / "cluster", operator=True, extra=("kueue", "kwok")) as running:
        running.apply(kueue("ResourceFlavor", "tpu"))
        for name, value in _PRIORITIES.items():
            running.apply({**kueue("WorkloadPriorityClass", name), "value": value})
        yield running


@dataclass(frozen=True, slots=True)
class Team:
    """A namespace, its queue, and a profile whose TPU stages wait in it."""

    cluster: Cluster
    namespace: str
    folder: Path

    def quota(self, chips: int) -> None:
        """What the ClusterQueue may hand out."""
        resource = {"name": "google.com/tpu", "nominalQuota": chips}
        group = {
            "coveredResources": ["google.com/tpu"],
            "flavors": [{"name": "tpu", "resources": [resource]}],
        }
        spec: Object = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [group],
        }
        self.cluster.apply({**kueue("ClusterQueue", self.namespace), "spec": spec})

    def stop_queue(self, policy: str) -> None:
        """None, Hold (admits nothing) or HoldAndDrain (and takes back what it gave)."""
        path = f"/apis/{KUEUE}/clusterqueues/{self.namespace}"
        self.cluster.patch(path, {"spec": {"stopPolicy": policy}})

    def profile(self, name: str, **queue: object) -> str:
        """A profile of the trainer's double with that ``queue``; its name."""
        profile: Object = trainer_double.profile(f"{name}-{self.namespace}", self.folder)
        profile["spec"]["queue"] = queue
        self.cluster.apply(profile)
        return str(profile["metadata"]["name"])

    def workloads(self) -> list[Object]:
        return self.cluster.list(f"/apis/{KUEUE}/namespaces/{self.namespace}/workloads")


@pytest.fixture
def team(queues: Cluster, tmp_path: Path) -> Team:
    """Only training takes time, for as long as it is not asked to stop."""
    queues.add_image(trainer_double.IMAGE, trainer_double.install(tmp_path / "bin", seconds=3600, saves=True))
    made = Team(queues, queues.namespace(), tmp_path)
    made.quota(4)
    local: Object = kueue("LocalQueue", LOCAL_QUEUE)
    local["metadata"]["namespace"] = made.namespace
    queues.apply({**local, "spec": {"clusterQueue": made.namespace}})
    return made


def kueue(kind: str, name: str) -> Object:
    """The head of one of Kueue's objects."""
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}}
