"""The chart's objects on a real API server."""

import subprocess

import pytest
import yaml

from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.chart.conftest import CHART, Helm, Render


def test_every_object_is_taken(cluster: LocalCluster, render: Render) -> None:
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
    cluster: LocalCluster, render: Render, namespace: str
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


def _answer(cluster: LocalCluster, *asked: str) -> str:
    command = [str(cluster.kubectl_program), f"--kubeconfig={cluster.kubeconfig}", *asked]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_people_have_what_their_role_gives(cluster: LocalCluster, namespace: str) -> None:
    """The chart is installed on the cluster, and Kubernetes' own roles include its roles."""
    bound = {"edit": "edit", "viewer": "view", "alone": "finetune-operator-edit"}
    for user, role in bound.items():
        cluster.kubectl(
            *("create", "rolebinding", user, f"--clusterrole={role}", f"--user={namespace}-{user}"),
            *("-n", namespace),
        )
    reader, admin = f"{namespace}-reader", f"{namespace}-admin"
    for user, role in ((reader, "profile-view"), (admin, "profile-admin")):
        cluster.kubectl(
            *("create", "clusterrolebinding", user, f"--user={user}"),
            f"--clusterrole=finetune-operator-{role}",
        )
    cluster.wait(
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/edit",
        lambda role: any("finetunejobs" in rule.get("resources", ()) for rule in role["rules"]),
    )

    def may(user: str, verb: str, resource: str, *more: str) -> bool:
        asked = ("auth", "can-i", verb, resource, f"--as={user}", *more)
        # kubectl exits with 1 for `no`
        return _answer(cluster, *asked) == "yes"

    jobs, profiles = "finetunejobs.tpu-finetune.dev", "finetuneprofiles.tpu-finetune.dev"
    for user in ("edit", "alone"):
        assert may(f"{namespace}-{user}", "create", jobs, "-n", namespace)
        assert may(f"{namespace}-{user}", "delete", jobs, "-n", namespace)
        assert not may(f"{namespace}-{user}", "patch", jobs, "--subresource=status", "-n", namespace)
        assert not may(f"{namespace}-{user}", "create", jobs, "-n", "default")
        assert not may(f"{namespace}-{user}", "get", profiles)
    assert may(f"{namespace}-viewer", "watch", jobs, "-n", namespace)
    assert not may(f"{namespace}-viewer", "patch", jobs, "-n", namespace)
    assert may(reader, "list", profiles)
    assert not may(reader, "create", profiles)
    assert may(admin, "create", profiles)
    assert not may(admin, "create", jobs, "-n", namespace)


@pytest.mark.usefixtures("unclaimed")
def test_install_upgrade_and_uninstall(cluster: LocalCluster, helm: Helm, namespace: str) -> None:
    """A separate release, beside the one that grants the cluster's operator its rights."""
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
        ["clusterroles"],
    ]
    assert cluster.find(f"{roles}/namespaces/{namespace}/roles/{name}")

    removed = helm("uninstall", release, "-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
    assert removed.returncode == 0, removed.stderr
    assert cluster.find(f"{roles}/clusterroles/{name}") is None
    assert cluster.find(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/finetunejobs.tpu-finetune.dev"
    )


@pytest.mark.usefixtures("unclaimed")
def test_crds_and_jobs_outlive_the_release(cluster: LocalCluster, helm: Helm, namespace: str) -> None:
    """The cluster's CRDs were applied by hand, so the release takes them over, as docs/install-gke.md describes."""
    cluster.apply(fake_trainer.job(namespace, "kept", "nobody"))
    common = ("-n", namespace, "--kubeconfig", str(cluster.kubeconfig))
    release = f"of-{namespace}"

    refused = helm("install", release, str(CHART), *common)
    assert refused.returncode != 0
    assert "exists and cannot be imported" in refused.stderr
    installed = helm("install", release, str(CHART), *common, "--take-ownership")
    assert installed.returncode == 0, installed.stderr
    assert f"kubectl -n {namespace} rollout status deployment/{release}-finetune-operator" in installed.stdout

    # CRDs that an upgrade removes from the release are not deleted either.
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


@pytest.mark.usefixtures("unclaimed")
def test_a_namespace_is_served_by_one_release(cluster: LocalCluster, helm: Helm, namespace: str) -> None:
    first, second = f"one-{namespace}", f"two-{namespace}"
    common = ("-n", namespace, "--kubeconfig", str(cluster.kubeconfig), "--set", "crds.install=false")

    def serve(release: str, *namespaces: str) -> str:
        """What helm says where it refuses, else nothing."""
        served = ("--set", f"namespaces={{{','.join(namespaces)}}}") if namespaces else ()
        done = helm("upgrade", "--install", release, str(CHART), *common, "--reset-values", *served)
        return done.stderr if done.returncode else ""

    try:
        assert serve(first, namespace) == ""
        assert serve(first, namespace) == "", "an upgrade of the same release"
        said = f"release {first} in namespace {namespace} serves {namespace} already"
        assert said in serve(second, "default", namespace)
        assert said in serve(second), "every namespace includes it"
        assert serve(second, "default") == ""
        assert "already" in serve(second, "default", namespace)
        assert f"release {second} in namespace {namespace} serves default already" in serve(first)
    finally:
        for release in (first, second):
            helm("uninstall", release, *common[:4])
