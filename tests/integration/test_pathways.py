"""Pathways' JobSets on the real API server: JobSet's webhooks accept them, and a restricted namespace their pods."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from finetune_operator.catalog import TpuShape, shape_by_name
from tests.doubles.local_cluster import LocalCluster
from tests.pathways_plans import SHAPES, plan, train

type Object = dict[str, Any]

LONGEST = ("longest-names", shape_by_name("v5p-4096"), 256)


@pytest.fixture(scope="module")
def shared_namespace(cluster: LocalCluster) -> str:
    """A namespace for tests that leave no objects behind."""
    return cluster.namespace()


def rendered(shape: TpuShape, slices: int, namespace: str, *, name: str = "bot", attempt: int = 1) -> Object:
    """Training's JobSet without its owner reference, because the owner would have to exist."""
    jobset = train(plan(shape, slices, name=name), attempt)
    metadata = {key: value for key, value in jobset["metadata"].items() if key != "ownerReferences"}
    return jobset | {"metadata": metadata | {"namespace": namespace}}


def dry_run(cluster: LocalCluster, manifest: Object) -> Object:
    """The object as it would be stored. Raises AssertionError with the server's message."""
    told = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(manifest))
    stored: Object = json.loads(told)
    return stored


def missing(ours: Any, stored: Any, where: str = "") -> list[str]:
    """Paths of the fields that the server has dropped or changed. Fields that the server adds do not count."""
    if isinstance(ours, Mapping):
        if not isinstance(stored, Mapping):
            return [where]
        return [path for key in ours for path in missing(ours[key], stored.get(key), f"{where}.{key}")]
    if isinstance(ours, list) and isinstance(stored, list) and len(ours) == len(stored):
        pairs = enumerate(zip(ours, stored, strict=True))
        return [path for number, pair in pairs for path in missing(*pair, f"{where}[{number}]")]
    return [] if ours == stored else [where]


@pytest.mark.parametrize(("name", "shape", "slices"), [*SHAPES, LONGEST], ids=lambda value: str(value)[:20])
def test_the_api_server_takes_the_jobset_and_keeps_all_of_it(
    cluster: LocalCluster, shared_namespace: str, name: str, shape: TpuShape, slices: int
) -> None:
    long = name == LONGEST[0]
    manifest = rendered(
        shape, slices, shared_namespace, name="a" * 28 if long else "bot", attempt=999 if long else 1
    )
    stored = dry_run(cluster, manifest)
    assert missing(manifest, stored) == []
    # No field is left to a webhook's defaults.
    assert stored["spec"].keys() == manifest["spec"].keys()


@pytest.mark.parametrize("group", [0, 1], ids=["head", "worker"])
def test_a_restricted_namespace_lets_the_pods_in(
    cluster: LocalCluster, shared_namespace: str, group: int
) -> None:
    jobset = rendered(shape_by_name("v6e-16"), 1, shared_namespace)
    template = jobset["spec"]["replicatedJobs"][group]["template"]["spec"]["template"]
    metadata = template["metadata"] | {"name": "pod", "namespace": shared_namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    stored = dry_run(cluster, pod)["spec"]
    for kind in ("initContainers", "containers", "volumes", "securityContext"):
        assert missing(template["spec"].get(kind), stored.get(kind)) == [], kind


def test_the_head_comes_first_and_every_pod_gets_its_address(cluster: LocalCluster, namespace: str) -> None:
    """No node of this cluster has room for the head, so it never becomes ready and no worker is created."""
    name, attempt = "a" * 28, 999
    jobset = cluster.apply(rendered(shape_by_name("v6e-16"), 1, namespace, name=name, attempt=attempt))
    made, subdomain = jobset["metadata"]["name"], jobset["spec"]["network"]["subdomain"]
    batch = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    job = cluster.wait(
        f"{batch}/{made}-pathways-head-0", lambda found: found.get("status", {}).get("active") == 1
    )
    (pod,) = cluster.list(f"/api/v1/namespaces/{namespace}/pods")
    address = f"{made}-pathways-head-0-0.{subdomain}"
    assert pod["metadata"]["labels"]["jobset.sigs.k8s.io/coordinator"] == address
    assert f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" == address
    assert cluster.get(f"/api/v1/namespaces/{namespace}/services/{subdomain}")["spec"]["clusterIP"] == "None"
    assert [each["metadata"]["name"] for each in cluster.list(batch)] == [job["metadata"]["name"]]
    cluster.delete(
        f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{made}",
        propagationPolicy="Foreground",
    )
