"""The operator under its ServiceAccount on the real control plane; a fake trainer runs the stages."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

from finetune_contract import RunFolder, Stage
from finetune_operator.lifecycle.run_record import RunRecord
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import (
    PROFILE,
    await_file,
    condition,
    condition_of,
    job_path,
    jobset_path,
    jobsets,
    phase,
    uid_of,
)

type Object = dict[str, Any]


def test_a_job_goes_through_all_stages_once(double: LocalCluster, namespace: str) -> None:
    double.apply(fake_trainer.job(namespace, "whole", PROFILE))
    done = double.wait(
        job_path(namespace, "whole"), lambda job: condition(job, "Finished") == "True", seconds=120
    )
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert [stage["phase"] for stage in done["status"]["stages"]] == ["Succeeded"] * len(Stage)
    assert jobsets(double, namespace) == sorted(f"whole-{stage.short}-1" for stage in Stage)
    assert done["status"]["attempts"]["total"] == len(Stage)
    # The operator has not changed the spec, and has added no finalizer.
    assert done["metadata"]["generation"] == 1
    assert "finalizers" not in done["metadata"]
    events = double.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.name=whole")
    assert len({event["metadata"]["name"] for event in events}) == len(events) > 0


def test_the_end_of_a_job_outlives_it(double: LocalCluster, namespace: str) -> None:
    made = fake_trainer.job(namespace, "recorded", PROFILE)
    made["metadata"] |= {"labels": {"team": "a"}, "annotations": {"note": "of the user"}}  # type: ignore[operator]
    double.apply(made)
    path = job_path(namespace, "recorded")
    done = double.wait(path, phase("Succeeded"), seconds=120)
    double.delete(path)
    double.wait_gone(path)
    run = RunFolder(done["status"]["resolved"]["runFolder"])
    record = RunRecord.model_validate_json(Path(run.status.removeprefix("file://")).read_text())
    assert record.job.status == {name: each for name, each in done["status"].items() if name != "ledger"}
    assert record.job.spec == done["spec"]
    assert record.job.metadata.uid == done["metadata"]["uid"]
    assert record.job.metadata.labels == {"team": "a"}
    assert record.job.metadata.annotations["note"] == "of the user"
    for stage in Stage:
        jobset = json.loads(Path(run.jobset(stage.short, 1).removeprefix("file://")).read_bytes())
        assert jobset["metadata"]["name"] == f"recorded-{stage.short}-1"


def test_a_job_ends_although_its_end_cannot_be_recorded(double: LocalCluster, namespace: str) -> None:
    path = job_path(namespace, "unrecorded")
    double.apply(fake_trainer.job(namespace, "unrecorded", PROFILE))
    started = double.wait(path, lambda job: "resolved" in job.get("status", {}), seconds=120)
    run = RunFolder(started["status"]["resolved"]["runFolder"])
    # A folder is where the file would be.
    Path(run.status.removeprefix("file://")).mkdir(parents=True)
    done = double.wait(path, phase("Succeeded"), seconds=120)
    assert f"This status could not be recorded: {run.status}:" in done["status"]["summary"]


def test_jobs_of_one_name_in_two_namespaces_share_nothing_and_the_longest_name_fits(
    double: LocalCluster, namespace: str
) -> None:
    name = "as-long-a-name-as-is-allowed"
    assert len(name) == 28
    namespaces = [namespace, double.namespace()]
    for each in namespaces:
        double.apply(fake_trainer.job(each, name, PROFILE))
    folders = set()
    for each in namespaces:
        done = double.wait(job_path(each, name), phase("Succeeded", "Failed"), seconds=120)
        assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
        assert done["status"]["attempts"]["total"] == len(Stage)
        assert jobsets(double, each) == sorted(f"{name}-{stage.short}-1" for stage in Stage)
        folders.add(done["status"]["resolved"]["runFolder"])
    assert len(folders) == len(namespaces)


def test_a_job_without_its_profile_waits_and_continues_when_it_appears(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    double.apply(fake_trainer.job(namespace, "early", f"late-{namespace}"))
    waiting = double.wait(
        job_path(namespace, "early"), lambda job: condition(job, "Valid") == "False", seconds=30
    )
    assert f"late-{namespace}" in waiting["status"]["summary"]
    double.apply(fake_trainer.profile(f"late-{namespace}", runs))
    double.wait(job_path(namespace, "early"), lambda job: condition(job, "Valid") == "True", seconds=30)
    double.delete(job_path(namespace, "early"))


def test_an_operator_that_is_killed_makes_nothing_twice(double: LocalCluster, namespace: str) -> None:
    double.apply(fake_trainer.job(namespace, "survivor", PROFILE))
    for stage in (Stage.PREFLIGHT, Stage.TRAIN):
        # Exactly when the stage's JobSet exists and the status may not be written yet.
        double.wait(jobset_path(namespace, f"survivor-{stage.short}-1"), lambda _: True, seconds=60)
        double.kill("operator")
    double.wait(job_path(namespace, "survivor"), phase("Succeeded"), seconds=120)
    assert jobsets(double, namespace) == sorted(f"survivor-{stage.short}-1" for stage in Stage)


def test_a_stopped_operator_lets_go_of_its_lease_and_exits_with_zero(operator: LocalCluster) -> None:
    lease = "/apis/coordination.k8s.io/v1/namespaces/finetune-system/leases/finetune-operator"
    assert operator.get(lease)["spec"]["holderIdentity"] == "finetune-operator-local"
    operator.stop("operator")
    assert operator.get(lease)["spec"]["holderIdentity"] == ""
    assert '"message": "stopped"' in operator.log("operator")
    operator.start("operator")


def test_a_jobset_that_vanished_unseen_is_missed_and_made_again(held: LocalCluster, namespace: str) -> None:
    """The JobSet is deleted while the operator is halted, and its cache still has the JobSet when it continues."""
    held.apply(fake_trainer.job(namespace, "ghost", PROFILE))
    started = held.wait(job_path(namespace, "ghost"), phase("Running", "Validating"), seconds=30)
    await_file(RunFolder(started["status"]["resolved"]["runFolder"]).request("prep", 1))
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


def test_a_lost_api_server_costs_no_attempt(held: LocalCluster, namespace: str) -> None:
    held.apply(fake_trainer.job(namespace, "patient", PROFILE))
    held.wait(jobset_path(namespace, "patient-prep-1"), lambda _: True, seconds=30)
    before = uid_of(held, namespace, "patient-prep-1")
    held.stop("kube-apiserver")
    held.start("kube-apiserver")
    # The progress of another job shows that the operator works again, whether it survived the outage or was restarted.
    held.apply(fake_trainer.job(namespace, "later", PROFILE))
    held.wait(jobset_path(namespace, "later-prep-1"), lambda _: True, seconds=90)
    assert uid_of(held, namespace, "patient-prep-1") == before
    assert jobsets(held, namespace) == ["later-prep-1", "patient-prep-1"]
    for name in ("patient", "later"):
        held.delete(job_path(namespace, name))


def test_deleting_a_job_takes_its_children_and_leaves_no_trace(held: LocalCluster, namespace: str) -> None:
    held.apply(fake_trainer.job(namespace, "brief", PROFILE))
    held.wait(jobset_path(namespace, "brief-prep-1"), lambda _: True, seconds=30)
    uid = held.get(job_path(namespace, "brief"))["metadata"]["uid"]
    plan = f"/api/v1/namespaces/finetune-system/configmaps/finetune-plan-{uid}"
    held.get(plan)
    held.delete(job_path(namespace, "brief"))
    held.wait_gone(jobset_path(namespace, "brief-prep-1"))
    held.wait_gone(plan)


def test_without_kueue_a_queued_stage_does_not_run_past_the_quota(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    profile: Object = fake_trainer.profile(f"queued-{namespace}", runs)
    profile["spec"]["queue"] = {"localQueue": "team-tpu"}
    double.apply(profile)
    double.apply(fake_trainer.job(namespace, "queued", profile["metadata"]["name"]))
    path = job_path(namespace, "queued")
    stuck = double.wait(path, lambda found: condition(found, "Stalled") == "True", seconds=90)
    assert condition_of(stuck, "Stalled")["reason"] == "KueueNotInstalled"
    assert condition(stuck, "QuotaReserved") == "False"
    assert double.get(jobset_path(namespace, "queued-train-1"))["spec"]["suspend"] is True
    assert (
        double.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="tpu-finetune.dev/stage=Train")
        == []
    )
    double.delete(path)


def test_metrics_and_probes_of_a_leader(double: LocalCluster, namespace: str) -> None:
    double.apply(fake_trainer.job(namespace, "measured", PROFILE))
    double.wait(job_path(namespace, "measured"), phase("Succeeded"), seconds=120)

    for path in ("healthz", "readyz"):
        with urllib.request.urlopen(f"http://127.0.0.1:{double.ports['operator-health']}/{path}") as answer:
            assert answer.read() == b"ok\n"
    assert "jobsets" in {sample.labels["watch"] for sample in double.metrics("finetune_watch_age_seconds")}
    (handovers,) = double.metrics("finetune_stage_handover_seconds_count")
    assert handovers.value >= len(Stage) - 1
    asked = [sample.labels for sample in double.metrics("finetune_api_requests_total")]
    assert {"code": "201", "resource": "jobsets", "verb": "create"} in asked
    assert not [labels for labels in asked if labels["resource"] == "secrets"]
