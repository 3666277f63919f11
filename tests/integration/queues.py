"""Helpers for tests of queues: Kueue's objects, a team with a queue, and a fake autoscaler that provisions nodes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.doubles.local_cluster import LocalCluster
from tests.go_modules import module_folder
from tests.integration import fake_trainer

type Object = dict[str, Any]

#: The version in the local cluster's go.sum.
_AUTOSCALER_APIS = "0.0.0-20240830133931-adfbe7e45277"

KUEUE = "kueue.x-k8s.io/v1beta2"
LOCAL_QUEUE = "team-tpu"
LOW, HIGH = "low", "high"
PRIORITIES = {LOW: 10, HIGH: 1000}


@dataclass(frozen=True, slots=True)
class Team:
    """A namespace, its queue, and a profile whose TPU stages wait in it."""

    cluster: LocalCluster
    namespace: str
    folder: Path

    def quota(self, chips: int, *checks: str) -> None:
        """Sets the quota of the ClusterQueue, and the AdmissionChecks that it requires."""
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
        if checks:
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
        self.cluster.apply({**kueue("ClusterQueue", self.namespace), "spec": spec})

    def stop_queue(self, policy: str) -> None:
        """Sets the stop policy: None, Hold (admits nothing) or HoldAndDrain (also evicts admitted Workloads)."""
        path = f"/apis/{KUEUE}/clusterqueues/{self.namespace}"
        self.cluster.patch(path, {"spec": {"stopPolicy": policy}})

    def profile(self, name: str, capacity: str = "OnDemand", **queue: object) -> str:
        """A profile of the fake trainer with that ``queue``; returns its name."""
        profile: Object = fake_trainer.profile(f"{name}-{self.namespace}", self.folder)
        profile["spec"]["flavors"][0]["capacity"] = capacity
        profile["spec"]["queue"] = queue
        self.cluster.apply(profile)
        return str(profile["metadata"]["name"])

    def workloads(self) -> list[Object]:
        return self.cluster.list(f"/apis/{KUEUE}/namespaces/{self.namespace}/workloads")


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """A fake cluster-autoscaler for queued provisioning: the test decides its answers to requests for nodes."""

    team: Team
    check: str

    @property
    def _path(self) -> str:
        """Path of the first ProvisioningRequest for the team's only Workload, under the name that Kueue gives it."""
        (workload,) = self.team.workloads()
        kind = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{self.team.namespace}/provisioningrequests"
        return f"{kind}/{workload['metadata']['name']}-{self.check}-1"

    def request(self) -> Object:
        """Returns the ProvisioningRequest when Kueue has created it."""
        return self.team.cluster.wait(self._path, lambda _: True)

    def answers(self, **conditions: tuple[str, str]) -> None:
        """Sets the conditions of the ProvisioningRequest: type -> status and message."""
        told = [
            {
                "type": kind,
                "status": status,
                "reason": kind,
                "message": message,
                "lastTransitionTime": "2026-11-21T12:00:00Z",
            }
            for kind, (status, message) in conditions.items()
        ]
        self.team.cluster.patch(f"{self._path}/status", {"status": {"conditions": told}})


def provisioning_requests() -> Object:
    """Cluster-autoscaler's CRD, from the module that Kueue itself is built with. Kueue reads it when it starts."""
    folder = module_folder("k8s.io/autoscaler/cluster-autoscaler/apis", _AUTOSCALER_APIS)
    crd: Object = yaml.safe_load(
        (folder / "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml").read_text()
    )
    return crd


def queued_provisioning(cluster: LocalCluster, name: str) -> None:
    """Creates an AdmissionCheck that requests nodes from GKE's queued provisioning."""
    config = {"provisioningClassName": "queued-provisioning.gke.io", "managedResources": ["google.com/tpu"]}
    cluster.apply({**kueue("ProvisioningRequestConfig", name), "spec": config})
    parameters = {"apiGroup": KUEUE.partition("/")[0], "kind": "ProvisioningRequestConfig", "name": name}
    spec = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters}
    cluster.apply({**kueue("AdmissionCheck", name), "spec": spec})


def kueue(kind: str, name: str) -> Object:
    """One of Kueue's objects, without a spec."""
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}}
