"""What the chart renders, judged by a real API server."""

import yaml

from devcluster.testing import Cluster
from tests.integration import trainer_double
from tests.integration.chart.conftest import CHART, Helm, Render


def test_every_object_is_taken(cluster: Cluster, render: Render) -> None:
    objects = render("networkPolicy.enabled=true", "namespaces={default}")
    applied = cluster.kubectl(
        *(
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--warnings-as-errors",
            "-f",
            "-",
        ),
        stdin=yaml.safe_dump_all(objects),
    )
    assert len(applied.splitlines()) == len(objects)


def test_the_operators_pod_passes_the_restricted_standard(
    cluster: Cluster, render: Render, namespace: str
) -> None:
    (deployment,) = (found for found in render() if found["kind"] == "Deployment")
    spec = {**deployment["spec"]["template"]["spec"], "serviceAccountName": "default"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": namespace},
        "spec": spec,
    }
    assert (
        cluster.kubectl("create", "--dry-run=server", "-o", "name", "-f", "-", stdin=yaml.safe_dump(pod))
        == "pod/operator\n"
    )


def test_install_upgrade_and_uninstall(cluster: Cluster, helm: Helm, namespace: str) -> None:
    """A release of its own beside the one that the cluster's operator has its rights from."""
    release = f"of-{namespace}"
    name = f"{release}-finetune-operator"
    common = ("-n", namespace, "--kubeconfig", str(cluster.kubeconfig), "--set", "crds.install=false")

    installed = helm("install", release, str(CHART), *common)
    assert installed.returncode == 0, installed.stderr
    assert "serves every namespace" in installed.stdout
    roles = "/apis/rbac.authorization.k8s.io/v1"
    resources = [rule["resources"] for rule in cluster.get(f"{roles}/clusterroles/{name}")["rules"]]
    assert ["finetunejobs"] in resources

    upgraded = helm("upgrade", release, str(CHART), *common, "--set", f"namespaces={{{namespace}}}")
    assert upgraded.returncode == 0, upgraded.stderr
    assert [rule["resources"] for rule in cluster.get(f"{roles}/clusterroles/{name}")["rules"]] == [
        ["finetuneprofiles"],
        ["finetuneprofiles/status"],
        ["nodes"],
    ]
    assert cluster.find(f"{roles}/namespaces/{namespace}/roles/{name}")

    removed = helm("uninstall", release, "-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
    assert removed.returncode == 0, removed.stderr
    assert cluster.find(f"{roles}/clusterroles/{name}") is None
    assert cluster.find(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/finetunejobs.tpu-finetune.dev"
    )


def test_crds_and_jobs_outlive_the_release(cluster: Cluster, helm: Helm, namespace: str) -> None:
    """The cluster's CRDs were applied by hand, so the release takes them over, as docs/install-gke.md says."""
    cluster.apply(trainer_double.job(namespace, "kept", "nobody"))
    common = ("-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
    release = f"of-{namespace}"

    refused = helm("install", release, str(CHART), *common)
    assert refused.returncode != 0
    assert "exists and cannot be imported" in refused.stderr
    installed = helm("install", release, str(CHART), *common, "--take-ownership")
    assert installed.returncode == 0, installed.stderr
    assert f"kubectl -n {namespace} rollout status deployment/{release}-finetune-operator" in installed.stdout

    # What left the chart's hands in an upgrade is not deleted either.
    upgraded = helm("upgrade", release, str(CHART), *common, "--set", "crds.install=false")
    assert upgraded.returncode == 0, upgraded.stderr
    back = helm("upgrade", release, str(CHART), *common, "--set", "crds.install=true", "--take-ownership")
    assert back.returncode == 0, back.stderr

    removed = helm("uninstall", release, *common)
    assert removed.returncode == 0, removed.stderr
    assert "[CustomResourceDefinition] finetunejobs.tpu-finetune.dev" in removed.stdout
    job = f"/apis/tpu-finetune.dev/v1alpha1/namespaces/{namespace}/finetunejobs/kept"
    assert "deletionTimestamp" not in cluster.get(job)["metadata"]
    cluster.delete(job)
