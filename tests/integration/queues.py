"""Words of tests about queues: Kueue's objects, and a team that waits in one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.testing import Cluster
from tests.integration import trainer_double

type Object = dict[str, Any]

KUEUE = "kueue.x-k8s.io/v1beta2"
LOCAL_QUEUE = "team-tpu"
LOW, HIGH = "low", "high"
PRIORITIES = {LOW: 10, HIGH: 1000}


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


def kueue(kind: str, name: str) -> Object:
    """The head of one of Kueue's objects."""
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}}
