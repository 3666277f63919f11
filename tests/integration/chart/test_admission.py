"""The chart's limit on the metadata of jobs, enforced by the real API server."""

import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from devcluster.kube import KubeError
from devcluster.testing import LocalCluster
from tests.unit.api.documents import JOB, Document

GROUP = "/apis/tpu-finetune.dev/v1alpha1"


def owner(number: int, name: str = "x") -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": str(number)}


LARGE: dict[str, tuple[Document, str]] = {
    "labels": ({"labels": {f"l{n}": "" for n in range(20_000)}}, "metadata.labels has 20000 entries"),
    "annotations": ({"annotations": {f"a{n}": "" for n in range(65)}}, "metadata.annotations has 65 entries"),
    "finalizers": ({"finalizers": [f"example.org/f{n}" for n in range(17)]}, "metadata.finalizers has 17"),
    "owners": ({"ownerReferences": [owner(n) for n in range(17)]}, "metadata.ownerReferences has 17 entries"),
    "an owner": ({"ownerReferences": [owner(1, "x" * 100_000)]}, "longer than 253 characters"),
}
LARGEST: Document = {
    "labels": {f"l{n}": "x" * 63 for n in range(64)},
    # the annotation in which kubectl stores the last applied manifest, for the largest one
    "annotations": {f"a{n}": "x" for n in range(63)} | {"example.org/last-applied": "x" * 200 * 1024},
}


def job(namespace: str, **metadata: Any) -> Document:
    return {**JOB, "metadata": {**JOB["metadata"], "namespace": namespace, **metadata}}


@pytest.fixture
def policy(cluster: LocalCluster, namespace: str) -> LocalCluster:
    """A cluster whose API server enforces the policy, which it does only some time after the installation."""
    metadata, _ = LARGE["annotations"]
    for _ in range(150):
        try:
            cluster.create(
                f"{GROUP}/namespaces/{namespace}/finetunejobs?dryRun=All", job(namespace, **metadata)
            )
        except KubeError:
            return cluster
        time.sleep(0.2)
    raise AssertionError("the API server does not enforce the policy after 150 requests")


@pytest.fixture
def stored(policy: LocalCluster, namespace: str) -> Iterator[Document]:
    found = policy.apply(job(namespace))
    yield found
    policy.delete(f"{GROUP}/namespaces/{namespace}/finetunejobs/{found['metadata']['name']}")


@pytest.mark.parametrize("kind", LARGE)
def test_more_metadata_than_any_tool_makes_is_refused(
    policy: LocalCluster, namespace: str, kind: str
) -> None:
    metadata, said = LARGE[kind]
    with pytest.raises(KubeError, match=said):
        policy.create(f"{GROUP}/namespaces/{namespace}/finetunejobs", job(namespace, **metadata))


@pytest.mark.parametrize("kind", LARGE)
def test_a_job_cannot_grow_beyond_it(policy: LocalCluster, stored: Document, kind: str) -> None:
    metadata, said = LARGE[kind]
    path = f"{GROUP}/namespaces/{stored['metadata']['namespace']}/finetunejobs/{stored['metadata']['name']}"
    with pytest.raises(KubeError, match=said):
        policy.patch(path, {"metadata": deepcopy(metadata)})


def test_as_much_as_tools_make_is_taken_and_the_status_is_written(
    policy: LocalCluster, namespace: str
) -> None:
    path = f"{GROUP}/namespaces/{namespace}/finetunejobs"
    stored = policy.create(path, job(namespace, **LARGEST))
    path += f"/{stored['metadata']['name']}"
    changed = policy.patch(f"{path}/status", {"status": {"summary": "seen"}})
    assert changed["status"]["summary"] == "seen"
    policy.delete(path)
