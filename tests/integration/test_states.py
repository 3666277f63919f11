"""What kstatus, Argo CD and kubectl wait report for a job, in every state of the API's table and on a real cluster."""

import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from devcluster.layout import ROOT
from finetune_contract import ExitCode, Stage
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, Object, condition, condition_of, job_path, jobset_path, phase
from tests.judges.run import HealthResult, check_health
from tests.unit.lifecycle.states import FAILED, STATES, SUCCEEDED, UNSEEN, Row, reach

# The program that evaluates the health is built on first use, which can take minutes without a build cache.
pytestmark = pytest.mark.timeout(600)

PROFILES = "/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles"
FAILING = "localhost/trainer-failing:test"


@pytest.fixture(scope="module")
def verdicts() -> Mapping[str, HealthResult]:
    return dict(zip(STATES, check_health([reach(state) for state in STATES]), strict=True))


@pytest.mark.parametrize("state", STATES)
def test_kstatus_and_argo_cd_say_what_the_table_says(
    state: str, verdicts: Mapping[str, HealthResult]
) -> None:
    row, said = STATES[state][1], verdicts[state]
    assert (said.kstatus, said.argo) == (row.kstatus, row.argo)
    assert said.message


# --- on the real control plane


def waits(cluster: LocalCluster, namespace: str, job: str, wanted: str, seconds: int) -> bool:
    """Whether kubectl wait succeeds within so many seconds; 0: whether the condition already holds."""
    try:
        cluster.kubectl(
            "wait",
            f"--for=condition={wanted}",
            f"finetunejob/{job}",
            "-n",
            namespace,
            f"--timeout={seconds}s",
        )
    except AssertionError as error:
        if "timed out" in str(error) or "condition not met" in str(error):
            return False
        raise
    return True


def agrees(found: Object, row: Row) -> bool:
    (said,) = check_health([found])
    return (said.kstatus, said.argo) == (row.kstatus, row.argo)


def events(cluster: LocalCluster, namespace: str, job: str) -> list[Object]:
    return cluster.list(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={job}")


def test_kubectl_waits_for_a_job_until_it_has_succeeded(double: LocalCluster, namespace: str) -> None:
    double.apply(fake_trainer.job(namespace, "good", PROFILE))
    assert waits(double, namespace, "good", "Succeeded", 180)
    assert waits(double, namespace, "good", "Finished", 0)
    assert agrees(double.get(job_path(namespace, "good")), SUCCEEDED)


def test_kubectl_sees_a_failed_job_as_finished_and_not_as_succeeded(
    operator: LocalCluster, namespace: str, runs: Path
) -> None:
    program = runs / "failing" / "finetune-stage"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexit {ExitCode.BAD_DATA}\n")
    program.chmod(0o755)
    operator.add_image(FAILING, program.parent)
    profile = fake_trainer.profile(f"failing-{namespace}", runs)
    profile["spec"]["images"] = {"trainer": FAILING}  # type: ignore[index]
    operator.apply(profile)
    operator.apply(fake_trainer.job(namespace, "bad", f"failing-{namespace}"))
    assert waits(operator, namespace, "bad", "Finished", 120)
    assert waits(operator, namespace, "bad", "Succeeded=False", 0)
    assert not waits(operator, namespace, "bad", "Succeeded", 0)
    assert agrees(operator.get(job_path(namespace, "bad")), FAILED)


def test_what_an_older_generation_said_ends_no_wait(double: LocalCluster, namespace: str) -> None:
    path = job_path(namespace, "edited")
    double.apply(fake_trainer.job(namespace, "edited", PROFILE))
    double.wait(path, phase("Succeeded"), seconds=180)
    double.stop("operator")
    double.patch(path, {"spec": {"cache": "Refresh"}})
    assert not waits(double, namespace, "edited", "Succeeded", 0)
    assert agrees(double.get(path), UNSEEN)
    double.start("operator")
    assert waits(double, namespace, "edited", "Succeeded", 60)
    assert agrees(double.get(path), SUCCEEDED)


def test_one_event_reports_each_transition_however_often_the_operator_dies(
    double: LocalCluster, namespace: str
) -> None:
    path = job_path(namespace, "told")
    double.apply(fake_trainer.job(namespace, "told", PROFILE))
    for stage in list(Stage)[1:]:
        # The next stage has started: Event and status of the previous one are being written.
        double.wait(jobset_path(namespace, f"told-{stage.short}-1"), lambda _: True, seconds=120)
        double.kill("operator")
    double.wait(path, phase("Succeeded"), seconds=120)
    double.kill("operator")
    # The end of another job shows that the new process has observed all jobs.
    double.await_ready("operator")
    double.apply(fake_trainer.job(namespace, "after", PROFILE))
    double.wait(job_path(namespace, "after"), phase("Succeeded"), seconds=180)
    told = events(double, namespace, "told")
    assert Counter(event["reason"] for event in told) == Counter(("Checked", "Proven", "Succeeded"))
    assert {event["count"] for event in told} == {1}


# --- profiles


def column(cluster: LocalCluster, name: str) -> list[str]:
    """What kubectl shows under Valid and Used By."""
    header, row = cluster.kubectl("get", "finetuneprofile", name).splitlines()
    at = [header.index(title) for title in ("VALID", "USED BY", "AGE")]
    return [row[start:end].strip() for start, end in pairwise(at)]


def test_a_mistyped_profile_says_so_and_is_valid_when_it_is_mended(
    operator: LocalCluster, namespace: str, runs: Path
) -> None:
    name, path = f"typo-{namespace}", f"{PROFILES}/typo-{namespace}"
    profile = fake_trainer.profile(name, runs)
    profile["spec"]["constraints"] = {"limits": [{"path": "hyperparameters.epoch", "max": 5}]}  # type: ignore[index]
    operator.apply(profile)
    wrong = operator.wait(path, lambda found: condition(found, "Valid") == "False", seconds=30)
    assert "spec.constraints.limits[0].path" in condition_of(wrong, "Valid")["message"]
    assert "did you mean hyperparameters.epochs?" in condition_of(wrong, "Valid")["message"]
    (said,) = check_health([wrong])
    assert (said.kstatus, said.argo) == ("Failed", "Degraded")
    del profile["spec"]["constraints"]  # type: ignore[attr-defined]
    operator.apply(profile)
    mended = operator.wait(path, lambda found: condition(found, "Valid") == "True", seconds=30)
    (said,) = check_health([mended])
    assert (said.kstatus, said.argo) == ("Current", "Healthy")
    assert mended["status"]["observedGeneration"] == mended["metadata"]["generation"] == 2


def test_a_profile_counts_the_jobs_that_have_not_finished(
    held: LocalCluster, namespace: str, runs: Path
) -> None:
    name, path = f"counted-{namespace}", f"{PROFILES}/counted-{namespace}"

    def used_by(number: int) -> None:
        held.wait(path, lambda found: found["status"].get("usedBy") == number, seconds=60)

    held.apply(fake_trainer.profile(name, runs))
    used_by(0)
    for job in ("one", "two"):
        held.apply(fake_trainer.job(namespace, job, name))
    used_by(2)
    assert column(held, name) == ["True", "2"]
    # A new operator process counts the jobs again.
    held.kill("operator")
    held.delete(job_path(namespace, "one"))
    used_by(1)
    held.delete(job_path(namespace, "two"))
    used_by(0)


def test_a_profile_that_no_operator_has_observed_is_in_progress_for_every_tool(
    operator: LocalCluster, namespace: str, runs: Path
) -> None:
    operator.stop("operator")
    operator.apply(fake_trainer.profile(f"unseen-{namespace}", runs))
    (said,) = check_health([operator.get(f"{PROFILES}/unseen-{namespace}")])
    assert (said.kstatus, said.argo) == ("InProgress", "Progressing")
    operator.start("operator")


# --- the documented way to install the scripts


def test_the_scripts_are_added_to_argo_cds_configuration(cluster: LocalCluster) -> None:
    page = (ROOT / "docs" / "gitops.md").read_text()
    (command,) = [block.partition("```")[0] for block in page.split("```bash\n") if "argocd-cm.yaml" in block]
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "argocd"}})
    cluster.kubectl("-n", "argocd", "create", "configmap", "argocd-cm", "--from-literal=url=https://argo")
    programs = f"{cluster.kubectl_program.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "KUBECONFIG": str(cluster.kubeconfig)}
    for _ in range(2):
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, env=environment, check=True)
    found = yaml.safe_load(cluster.kubectl("-n", "argocd", "get", "configmap", "argocd-cm", "-o", "yaml"))
    shipped = yaml.safe_load((ROOT / "examples" / "argo-cd" / "argocd-cm.yaml").read_text())
    assert found["data"] == {"url": "https://argo"} | shipped["data"]
    scripts = ROOT / "examples" / "argo-cd" / "tpu-finetune.dev"
    for kind in ("FineTuneJob", "FineTuneProfile"):
        health = found["data"][f"resource.customizations.health.tpu-finetune.dev_{kind}"]
        assert health == (scripts / kind / "health.lua").read_text()
