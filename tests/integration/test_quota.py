"""Quotas of Kubernetes on the real control plane: a job whose pods are refused says so, lets go, and tries again."""

from pathlib import Path

from devcluster.testing import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, Object, charged, job_path, phase, says

CHIPS = "requests.google.com/tpu"


def limit(cluster: LocalCluster, namespace: str, chips: int) -> str:
    """Limits the chips of the namespace; returns when the quota is counted."""
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/tpu"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"namespace": namespace, "name": "tpu"},
        "spec": {"hard": {CHIPS: str(chips)}},
    }
    cluster.apply(quota)
    cluster.wait(path, lambda found: found.get("status", {}).get("hard") == {CHIPS: str(chips)}, seconds=60)
    return path


def history(found: Object) -> list[str]:
    return [each["reason"] for each in found.get("status", {}).get("attempts", {}).get("history", [])]


def test_two_jobs_of_two_hosts_under_a_quota_of_one_slice_both_finish(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    double.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "together", together=True))
    quota = limit(double, namespace, 8)
    names = ("first", "second")
    for name in names:
        slices = {"tpu": "v6e-8"}
        job = fake_trainer.job(
            namespace, name, PROFILE, resources=slices, hangPolicy={"refusedPodsSeconds": 5}
        )
        double.apply(job)
    # From admission on, one host of one job fits.
    for name in names:
        double.wait(
            job_path(namespace, name), lambda found: bool(found["status"].get("resolved")), seconds=60
        )
    double.patch(quota, {"spec": {"hard": {CHIPS: "4"}}})
    paths = [job_path(namespace, name) for name in names]
    held = double.wait(
        f"/apis/tpu-finetune.dev/v1alpha1/namespaces/{namespace}/finetunejobs",
        lambda found: any(
            "PodsRefused" in history(each) and each["status"]["phase"] == "Queued" for each in found["items"]
        ),
        seconds=120,
    )
    queued = next(each for each in held["items"] if each["status"]["phase"] == "Queued")
    assert queued["status"]["waiting"]["reason"] == "PodsRefused"
    assert says("had 1 of 2 pods", "exceeded quota: tpu", "spec.hangPolicy.refusedPodsSeconds")(queued)
    double.patch(quota, {"spec": {"hard": {CHIPS: "8"}}})
    for path in paths:
        done = double.wait(path, phase("Succeeded", "Failed"), seconds=240)
        assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
        assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 0}
