"""The JobSets that the operator renders, against the CRDs of the JobSet releases in use: no field is dropped."""

from collections.abc import Iterator

import pytest
import yaml

from finetune_contract import Stage
from tests.doubles.local_cluster import LocalCluster
from tests.go_modules import module_folder
from tests.integration.jobs import Object
from tests.unit.lifecycle.world import job, profile
from tests.unit.rendering.golden_jobsets import plan_offline

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD_FILE = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"


@pytest.fixture(scope="module", params=["0.8.0", "0.10.1", "0.12.0"])
def group(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[str]:
    """A separate API group with that release's JobSet CRD, beside the group of the release that the cluster runs."""
    text = (module_folder("sigs.k8s.io/jobset", request.param) / CRD_FILE).read_text()
    name = f"v{request.param.replace('.', '-')}.jobset.example"
    crd: Object = yaml.safe_load(text.replace("jobset.x-k8s.io", name))
    crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
    cluster.apply(crd)
    path = f"{CRDS}/jobsets.{name}"
    cluster.wait(
        path,
        lambda found: any(
            each["type"] == "Established" and each["status"] == "True"
            for each in found.get("status", {}).get("conditions") or []
        ),
    )
    yield name
    cluster.delete(path)


@pytest.mark.parametrize("tpu", ["v6e-4", "v6e-8"])
def test_every_field_of_every_stage_is_known(
    cluster: LocalCluster, namespace: str, group: str, tpu: str
) -> None:
    for stage, jobset in plan_offline(job(resources={"tpu": tpu}), profile()):
        moved = {
            **jobset,
            "apiVersion": f"{group}/v1alpha2",
            "metadata": {key: value for key, value in jobset["metadata"].items() if key != "ownerReferences"}
            | {"namespace": namespace},
        }
        shown = cluster.kubectl(
            "create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(moved)
        )
        assert "created (server dry run)" in shown, Stage(stage)


def test_a_field_that_a_release_does_not_know_would_be_reported(
    cluster: LocalCluster, namespace: str, group: str
) -> None:
    jobset = dict(plan_offline(job(), profile()))[Stage.TRAIN]
    jobset["spec"]["replicatedJobs"][0]["fromTheFuture"] = "x"
    moved = {
        **jobset,
        "apiVersion": f"{group}/v1alpha2",
        "metadata": {"name": "future", "namespace": namespace},
    }
    with pytest.raises(AssertionError, match="fromTheFuture"):
        cluster.kubectl(
            "create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(moved)
        )
