"""The operator as its ServiceAccount on the real control plane; stages are played by the trainer's double."""

import os
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster.testing import Cluster
from finetune_contract import RunFolder, Stage
from tests.integration import trainer_double

type Object = dict[str, Any]
PROFILE = "double"


def job_path(namespace: str, name: str) -> str:
    return f"/apis/tpu-finetune.dev/v1alpha1/namespaces/{namespace}/finetunejobs/{name}"


def jobset_path(namespace: str, name: str) -> str:
    return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}"


def condition(found: Object, kind: str) -> str:
    conditions = found.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), "")


def phase(*wanted: str) -> Callable[[Object], bool]:
    return lambda found: found.get("status", {}).get("phase") in wanted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("double")


@pytest.fixture
def double(operator: Cluster, folder: Path) -> Cluster:
    """A cluster with the operator, whose stages take no time."""
    operator.add_image(trainer_double.IMAGE, trainer_double.install(folder / "bin"))
    operator.apply(trainer_double.profile(PROFILE, folder))
    return operator


@pytest.fixture
def held(operator: Cluster, folder: Path) -> Cluster:
    """A cluster with the operator, whose stages last until they are killed."""
    operator.add_image(trainer_double.IMAGE, trainer_double.install(folder / "slow", seconds=3600))
    operator.apply(trainer_double.profile(PROFILE, folder))
    return operator


def jobsets(cluster: Cluster, namespace: str) -> list[str]:
    found = cluster.list(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets")
    return sorted(each["metadata"]["name"] for each in found)


def _await_file(uri: str, seconds: float = 60) -> None:
    """Returns when the double has written it. It has no event that could be awaited."""
    path = Path(uri.removeprefix("file://"))
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} is not there after {seconds:.0f} s"
        time.sleep(0.1)


def uid_of(cluster: Cluster, namespace: str, jobset: str) -> str:
    return str(cluster.get(jobset_path(namespace, jobset))["metadata"]["uid"])


def test_a_job_goes_through_all_stages_once(double: Cluster, namespace: str) -> None:
    double.apply(trainer_double.job(namespace, "whole", PROFILE))
    done = double.wait(
        job_path(namespace, "whole"), lambda job: condition(job, "Finished") == "True", seconds=120
    )
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert [stage["phase"] for stage in done["status"]["stages"]] == ["Succeeded"] * len(Stage)
    assert jobsets(double, namespace) == sorted(f"whole-{stage.short}-1" for stage in Stage)
    assert done["status"]["attempts"]["total"] == len(Stage)
    # Neither spec nor metadata were touched, and no finalizer holds the job.
    assert done["metadata"]["generation"] == 1
    assert "finalizers" not in done["metadata"]
    events = double.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.name=whole")
    assert len({event["metadata"]["name"] for event in events}) == len(events) > 0


def test_a_job_without_its_profile_waits_and_goes_on_when_it_appears(
    double: Cluster, namespace: str, folder: Path
) -> None:
    double.apply(trainer_double.job(namespace, "early", f"late-{namespace}"))
    waiting = double.wait(
        job_path(namespace, "early"), lambda job: condition(job, "Valid") == "False", seconds=30
    )
    assert f"late-{namespace}" in waiting["status"]["summary"]
    double.apply(trainer_double.profile(f"late-{namespace}", folder))
    double.wait(job_path(namespace, "early"), lambda job: condition(job, "Valid") == "True", seconds=30)
    double.delete(job_path(namespace, "early"))


def test_an_operator_that_is_killed_makes_nothing_twice(double: Cluster, namespace: str) -> None:
    double.apply(trainer_double.job(namespace, "survivor", PROFILE))
    for stage in (Stage.PREFLIGHT, Stage.TRAIN):
        # At the very moment at which the next stage exists and its status may not be written yet.
        double.wait(jobset_path(namespace, f"survivor-{stage.short}-1"), lambda _: True, seconds=60)
        double.kill("operator")
    double.wait(job_path(namespace, "survivor"), phase("Succeeded"), seconds=120)
    assert jobsets(double, namespace) == sorted(f"survivor-{stage.short}-1" for stage in Stage)


def test_a_stopped_operator_lets_go_of_its_lease_and_exits_with_zero(operator: Cluster) -> None:
    lease = "/apis/coordination.k8s.io/v1/namespaces/finetune-system/leases/finetune-operator"
    assert operator.get(lease)["spec"]["holderIdentity"] == "finetune-operator-local"
    operator.stop("operator")
    assert operator.get(lease)["spec"]["holderIdentity"] == ""
    assert '"message": "stopped"' in operator.log("operator")
    operator.start("operator")


def test_a_jobset_that_vanished_unseen_is_missed_and_made_again(held: Cluster, namespace: str) -> None:
    """The watch's cache still has it (the operator is frozen while it goes): the live look decides."""
    held.apply(trainer_double.job(namespace, "ghost", PROFILE))
    started = held.wait(job_path(namespace, "ghost"), phase("Running", "Validating"), seconds=30)
    _await_file(RunFolder(started["status"]["resolved"]["runFolder"]).request("prep", 1))
    process = int(held.status()["operator"]["pid"])
    os.kill(process, signal.SIGSTOP)
    try:
        held.delete(jobset_path(namespace, "ghost-prep-1"), propagationPolicy="Background")
        held.wait_gone(jobset_path(namespace, "ghost-prep-1"))
    finally:
        os.kill(process, signal.SIGCONT)
    held.wait(jobset_path(namespace, "ghost-prep-2"), lambda _: True, seconds=60)
    assert jobsets(held, namespace) == ["ghost-prep-2"]
    held.delete(job_path(namespace, "ghost"))


def test_a_lost_api_server_costs_no_attempt(held: Cluster, namespace: str) -> None:
    held.apply(trainer_double.job(namespace, "patient", PROFILE))
    held.wait(jobset_path(namespace, "patient-prep-1"), lambda _: True, seconds=30)
    before = uid_of(held, namespace, "patient-prep-1")
    held.stop("kube-apiserver")
    held.start("kube-apiserver")
    # Another job that goes on shows that the operator is back, whether it outlived the outage or was restarted.
    held.apply(trainer_double.job(namespace, "later", PROFILE))
    held.wait(jobset_path(namespace, "later-prep-1"), lambda _: True, seconds=90)
    assert uid_of(held, namespace, "patient-prep-1") == before
    assert jobsets(held, namespace) == ["later-prep-1", "patient-prep-1"]
    for name in ("patient", "later"):
        held.delete(job_path(namespace, name))


def test_deleting_a_job_takes_its_children_and_leaves_no_trace(held: Cluster, namespace: str) -> None:
    held.apply(trainer_double.job(namespace, "brief", PROFILE))
    held.wait(jobset_path(namespace, "brief-prep-1"), lambda _: True, seconds=30)
    held.delete(job_path(namespace, "brief"))
    held.wait_gone(jobset_path(namespace, "brief-prep-1"))
    held.wait_gone(f"/api/v1/namespaces/{namespace}/configmaps/brief-plan")


def test_metrics_and_probes_of_a_leader(double: Cluster, namespace: str) -> None:
    double.apply(trainer_double.job(namespace, "measured", PROFILE))
    double.wait(job_path(namespace, "measured"), phase("Succeeded"), seconds=120)

    def fetch(component: str, path: str) -> str:
        url = f"http://127.0.0.1:{double.ports[component]}{path}"
        with urllib.request.urlopen(url) as answer:
            return str(answer.read().decode())

    assert fetch("operator-health", "/healthz") == "ok\n"
    assert fetch("operator-health", "/readyz") == "ok\n"
    metrics = fetch("operator-metrics", "/metrics")
    assert 'finetune_watch_age_seconds{watch="jobsets"}' in metrics
    assert 'code="201",resource="jobsets",verb="create"' in metrics
    handovers = next(
        line for line in metrics.splitlines() if line.startswith("finetune_stage_handover_seconds_count")
    )
    assert float(handovers.split()[1]) >= len(Stage) - 1
    assert "secrets" not in metrics
