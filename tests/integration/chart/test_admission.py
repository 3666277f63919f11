"""The chart's limit on the metadata of jobs, enforced by the real API server."""

import json
import secrets
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from finetune_operator.cluster.port import ClusterError
from tests.doubles.local_cluster import LocalCluster
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
        except ClusterError:
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
    with pytest.raises(ClusterError, match=said):
        policy.create(f"{GROUP}/namespaces/{namespace}/finetunejobs", job(namespace, **metadata))


@pytest.mark.parametrize("kind", LARGE)
def test_a_job_cannot_grow_beyond_it(policy: LocalCluster, stored: Document, kind: str) -> None:
    metadata, said = LARGE[kind]
    path = f"{GROUP}/namespaces/{stored['metadata']['namespace']}/finetunejobs/{stored['metadata']['name']}"
    with pytest.raises(ClusterError, match=said):
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


def entry(number: int, size: int) -> Document:
    """An entry of managedFields."""
    fields = {"f:spec": {f"f:{'x' * size}": {}}}
    return {
        "manager": f"m{number}", "operation": "Apply", "apiVersion": "tpu-finetune.dev/v1alpha1",
        "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields,
    }  # fmt: skip


def test_a_tenant_can_neither_fill_managed_fields_nor_keep_an_administrator_from_stopping_a_job(
    policy: LocalCluster, stored: Document, tmp_path: Path
) -> None:
    namespace, name = stored["metadata"]["namespace"], stored["metadata"]["name"]
    kind, of = "finetunejobs.tpu-finetune.dev", ["-n", namespace]
    for scope, user, names in (("", "tenant", of), ("cluster", "administrator", [])):
        right = ["--verb=get,patch", f"--resource={kind}", *names]
        policy.kubectl("create", f"{scope}role", namespace, *right)
        role = [f"--{scope}role={namespace}", f"--user={user}", *names]
        policy.kubectl("create", f"{scope}rolebinding", namespace, *role)
    file = tmp_path / "patch.json"

    def patch(user: str, change: Document) -> str:
        file.write_text(json.dumps(change))
        manager = [
            "--type=merge",
            f"--patch-file={file}",
            f"--as={user}",
            f"--field-manager={secrets.token_hex(4)}",
        ]
        return policy.kubectl("patch", kind, name, *of, *manager)

    def fill(entries: list[Document]) -> None:
        patch("tenant", {"metadata": {"managedFields": entries}})

    with pytest.raises(AssertionError, match=r"managedFields has 1\d{6} characters: at most 131072"):
        fill([entry(0, 1_200_000)])
    with pytest.raises(AssertionError, match="managedFields has 65 entries: at most 64"):
        fill([entry(number, 1) for number in range(65)])
    try:
        for full in ([entry(number, 1) for number in range(64)], [entry(0, 130_800)]):
            fill(full)
            with pytest.raises(AssertionError, match="managedFields"):
                patch("tenant", {"spec": {"suspend": True}})
            for suspend in (True, False):
                patch("administrator", {"spec": {"suspend": suspend}})
    finally:
        for each in ("clusterrolebinding", "clusterrole"):
            policy.kubectl("delete", each, namespace)
