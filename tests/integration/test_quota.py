"""Quotas of Kubernetes on the real control plane: a job whose pods are refused says so, lets go, and tries again."""

from pathlib import Path

from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import (
    PROFILE,
    Object,
    charged,
    condition,
    condition_of,
    job_path,
    jobsets,
    phase,
    says,
)

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
    wanted = {"resources": {"tpu": "v6e-8"}, "hangPolicy": {"refusedPodsSeconds": 5}}
    first, second = job_path(namespace, "first"), job_path(namespace, "second")
    double.apply(fake_trainer.job(namespace, "first", PROFILE, **wanted))
    double.wait(first, lambda found: bool(found.get("status", {}).get("resolved")), seconds=60)
    # From admission on, one of two hosts fits, as beside another job.
    double.patch(quota, {"spec": {"hard": {CHIPS: "4"}}})
    queued = double.wait(
        first,
        lambda found: "PodsRefused" in history(found) and phase("Queued")(found),
        seconds=120,
    )
    assert queued["status"]["waiting"]["reason"] == "PodsRefused"
    expected = says("had 1 of 2 pods", "exceeded quota: tpu", "spec.hangPolicy.refusedPodsSeconds")
    assert expected(queued), queued["status"]["summary"]
    double.patch(quota, {"spec": {"hard": {CHIPS: "8"}}})
    double.apply(fake_trainer.job(namespace, "second", PROFILE, **wanted))
    for path in (first, second):
        done = double.wait(path, phase("Succeeded", "Failed"), seconds=180)
        assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
        assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 0}


def test_a_quota_of_zero_is_named_before_anything_starts(double: LocalCluster, namespace: str) -> None:
    quota, path = limit(double, namespace, 0), job_path(namespace, "none")
    double.apply(fake_trainer.job(namespace, "none", PROFILE, resources={"tpu": "v6e-8"}))
    refused = double.wait(path, lambda found: condition(found, "Valid") == "False", seconds=60)
    valid = condition_of(refused, "Valid")
    assert valid["reason"] == "QuotaTooSmall"
    assert (
        f"ResourceQuota tpu of namespace {namespace} allows 0 of {CHIPS}, and v6e-8 needs 8"
        in valid["message"]
    )
    assert jobsets(double, namespace) == []
    double.patch(quota, {"spec": {"hard": {CHIPS: "8"}}})
    done = double.wait(path, phase("Succeeded", "Failed"), seconds=120)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
