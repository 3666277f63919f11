"""The operator has the least rights: normal operation uses each one, and no request needs more than them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune_operator.objects import Object
from finetune_operator.runtime.prerequisites import watches
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer, pods
from tests.rbac import CLUSTER_RULES, JOB_RULES, OWN_RULES

PROFILE = "rights"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/finetune-system/leases/finetune-operator"

type Right = tuple[str, str]
"""Resource and verb, as Kubernetes names them."""


def _job(namespace: str, name: str) -> str:
    return f"/apis/tpu-finetune.dev/v1alpha1/namespaces/{namespace}/finetunejobs/{name}"


@pytest.fixture
def newborn(cluster: LocalCluster, namespace: str, tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster whose new operator finds no Lease, has sent no request yet and has not stored the plan of the job
    ``brief``; stages last until they are killed."""
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(tmp_path / "bin", seconds=3600))
    cluster.apply(fake_trainer.profile(PROFILE, tmp_path))
    cluster.start("operator")
    cluster.apply(fake_trainer.job(namespace, "brief", PROFILE))
    cluster.wait(_job(namespace, "brief"), lambda found: "resolved" in found.get("status", {}))
    cluster.stop("operator")
    cluster.delete(LEASE)
    cluster.start("operator")
    yield cluster
    cluster.stop("operator")


def requests(cluster: LocalCluster) -> set[tuple[Right, int]]:
    """The requests of the operator's own client, with the HTTP status of the answers."""
    # To the API server, an apply is a patch.
    verbs = {"apply": "patch"}
    return {
        ((labels["resource"], verbs.get(labels["verb"], labels["verb"])), int(labels["code"]))
        for labels in (
            sample.labels for sample in cluster.metrics("finetune_api_requests_total") if sample.value
        )
    }


def _metadata_of_a_pod(cluster: LocalCluster, namespace: str, name: str) -> Object:
    """Metadata of one more pod of the job's first JobSet, in a new Job that no controller manages."""
    jobset = cluster.get(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/lived-prep-1")
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    template = {"metadata": {}, "spec": {**pods.spec("true"), "restartPolicy": "Never"}}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"lived-prep-1-{name}"},
        "spec": {"managedBy": "tests.example/nobody", "template": template},
    }
    made = cluster.create(path, manifest)
    return {
        "name": name,
        "labels": {**jobset["metadata"]["labels"], "jobset.sigs.k8s.io/jobset-name": "lived-prep-1"},
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": made["metadata"]["name"],
                "uid": made["metadata"]["uid"],
                "controller": True,
            }
        ],
    }


def _fail_a_pod_on_a_slice(cluster: LocalCluster, namespace: str) -> None:
    """Creates a failed pod on a slice, for which the operator lists the slice's nodes."""
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "16x16",
    }
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.create(
        path,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": _metadata_of_a_pod(cluster, namespace, "crashed"),
            "spec": pods.spec("true", nodeSelector=selector),
        },
    )
    cluster.patch(f"{path}/crashed/status", {"status": {"phase": "Failed"}})


def _let_a_pod_wait(cluster: LocalCluster, namespace: str) -> None:
    """Creates an unschedulable pod until the operator has read its Events."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    waiting = {"metadata": _metadata_of_a_pod(cluster, namespace, "waiting")}
    # No scheduler handles this pod, so none overwrites the condition that is set here.
    spec = pods.spec("true", schedulerName="nobody")
    cluster.create(path, {"apiVersion": "v1", "kind": "Pod", **waiting, "spec": spec})
    told = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    cluster.patch(f"{path}/waiting/status", {"status": {"conditions": [told]}})
    cluster.wait(
        _job(namespace, "lived"),
        lambda job: "autoscaler" in job["status"].get("waiting", {}).get("message", ""),
    )
    cluster.delete(f"{path}/waiting")


def test_every_right_is_used_and_none_is_missing(newborn: LocalCluster, namespace: str) -> None:
    # The plan of a job is deleted with the job.
    brief = _job(namespace, "brief")
    stored = newborn.get(brief)["status"]["resolved"]["plan"]["name"]
    newborn.delete(brief)
    newborn.wait_gone(f"/api/v1/namespaces/finetune-system/configmaps/{stored}")
    newborn.apply(fake_trainer.job(namespace, "lived", PROFILE))
    jobset = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/lived-prep-1"
    newborn.wait(jobset, lambda _: True)
    _fail_a_pod_on_a_slice(newborn, namespace)
    _let_a_pod_wait(newborn, namespace)
    # Suspending deletes the JobSet, and the status reports it.
    job = _job(namespace, "lived")
    newborn.patch(job, {"spec": {"suspend": True}})
    newborn.wait_gone(jobset)
    newborn.wait(job, lambda found: found.get("status", {}).get("phase") == "Suspended")
    # The profile shows that one job runs under it.
    profile = f"/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles/{PROFILE}"
    newborn.wait(profile, lambda found: found["status"].get("usedBy") == 1)
    # A leader renews its Lease every few seconds. A request is counted when its answer arrives, which can be after the
    # Lease has changed. By the second renewal, the first one has been counted, and so have all requests before it.
    first = newborn.wait(LEASE, lambda lease: lease["spec"]["renewTime"] != lease["spec"]["acquireTime"])
    newborn.wait(LEASE, lambda lease: lease["spec"]["renewTime"] != first["spec"]["renewTime"])

    made = requests(newborn)
    used = {right for right, _ in made} | {
        (watch.kind.plural, verb) for watch in watches((), kueue=True) for verb in ("list", "watch")
    }
    granted = {
        (rule.resource, verb) for rule in (*JOB_RULES, *CLUSTER_RULES, *OWN_RULES) for verb in rule.verbs
    }
    assert used == granted
    assert not {right for right, code in made if code == 403}
    newborn.delete(job)
