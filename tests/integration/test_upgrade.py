"""An upgrade of the CRDs while jobs exist whose statuses were written under the earlier schema."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, Object, await_file, job_path, jobsets, phase

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/finetunejobs.tpu-finetune.dev"
ATOMIC = "x-kubernetes-map-type"


def status_of(crd: Object) -> Object:
    schema: Object = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    return schema


def owners(job: Object) -> dict[str, list[str]]:
    """Returns the fields of the status that each field manager owns, by its name."""
    return {
        each["manager"]: sorted(each["fieldsV1"]["f:status"])
        for each in job["metadata"]["managedFields"]
        if "f:status" in each["fieldsV1"]
    }


@pytest.fixture
def granular(cluster: LocalCluster) -> Iterator[Object]:
    """Installs the CRD under which a status is owned field by field. Yields the present one."""
    cluster.start("operator")
    new = {key: cluster.get(CRD)[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    new["metadata"] = {"name": new["metadata"]["name"]}
    cluster.patch(CRD, {"spec": {"versions": without_atomic(new)}})
    yield new
    cluster.patch(CRD, {"spec": new["spec"]})


def without_atomic(crd: Object) -> list[Object]:
    old = deepcopy(crd)
    del status_of(old)[ATOMIC]
    versions: list[Object] = old["spec"]["versions"]
    return versions


def test_a_status_of_several_writers_is_the_operators_again_after_the_upgrade(
    cluster: LocalCluster, granular: Object, namespace: str, runs: Path
) -> None:
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "upgrade", seconds=3600))
    cluster.apply(fake_trainer.profile(PROFILE, runs))
    path = job_path(namespace, "job")
    cluster.apply(fake_trainer.job(namespace, "job", PROFILE))
    found = cluster.wait(path, lambda job: "resolved" in job.get("status", {}))
    await_file(f"{found['status']['resolved']['runFolder']}/attempts/prep-1/request.json")
    foreign = {"apiVersion": found["apiVersion"], "kind": found["kind"]}
    foreign |= {"metadata": {"namespace": namespace, "name": "job"}, "status": {"summary": "applied"}}
    # Each from the answer to its own write: the operator writes its status again at once.
    shown = ("-o", "json", "--show-managed-fields")
    applied = cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--subresource=status", "--field-manager=applier", *shown,
        "-f", "-", stdin=json.dumps(foreign),
    )  # fmt: skip
    patched = cluster.kubectl(
        "patch", "finetunejob", "job", "-n", namespace, "--subresource=status", "--type=merge",
        "--field-manager=patcher", *shown, "-p", '{"status": {"stage": "Train"}}',
    )  # fmt: skip
    assert owners(json.loads(applied))["applier"] == ["f:summary"]
    assert owners(json.loads(patched))["patcher"] == ["f:stage"]
    restarts = cluster.status()["operator"]["restarts"]
    cluster.patch(CRD, {"spec": granular["spec"]})
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "bin"))
    cluster.delete(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/job-prep-1")
    done = cluster.wait(path, phase("Succeeded", "Failed"), seconds=90)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert "job-prep-2" in jobsets(cluster, namespace)
    assert owners(done) == {"finetune-operator": []}
    assert cluster.status()["operator"]["restarts"] == restarts
