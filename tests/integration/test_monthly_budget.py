"""Budgets of namespaces on the real control plane: at its limit one namespace waits, and the other one continues."""

import time
from pathlib import Path
from typing import Any

from finetune_contract import Stage
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import condition_of, job_path, jobsets, phase
from tests.integration.test_cli import finetune

#: Four chips for nine seconds.
LIMIT = 0.01


def waits(job: Any) -> bool:
    status = job.get("status", {})
    return bool(status.get("waiting", {}).get("reason") == "WaitingForBudget")


def trains(job: Any) -> bool:
    status = job.get("status", {})
    return (status.get("stage"), status.get("phase")) == ("Train", "Running")


def month_of(cluster: LocalCluster, namespace: str, seconds: float = 30) -> float:
    """The chip hours of a namespace in the operator's metrics, as soon as the operator has read the ledger."""
    deadline = time.monotonic() + seconds
    while True:
        for sample in cluster.metrics("finetune_month_chip_hours"):
            if sample.labels == {"namespace": namespace, "profile": "metered"}:
                return sample.value
        assert time.monotonic() < deadline, "the usage of the month is unknown"
        time.sleep(0.1)


def test_a_namespace_that_has_used_up_its_month_waits_until_the_limit_is_raised(
    double: LocalCluster, runs: Path
) -> None:
    poor, rich = double.namespace(), double.namespace()
    slow = fake_trainer.install(runs / "metered", seconds=3600, stages=[Stage.TRAIN], saves=True)
    double.add_image(fake_trainer.IMAGE, slow)
    profile: Any = fake_trainer.profile("metered", runs)
    profile["spec"] |= {"owner": {"team": "ml-platform", "contact": "#ml-help"}}
    profile["spec"]["constraints"]["chipHoursPerMonth"] = LIMIT
    double.apply(profile)

    def apply(namespace: str, name: str) -> str:
        double.apply(fake_trainer.job(namespace, name, "metered", resources={"tpu": "v6e-4"}))
        return job_path(namespace, name)

    first = apply(poor, "first")
    stopped = double.wait(first, lambda job: waits(job) or phase("Failed")(job), seconds=90)
    assert stopped["status"]["phase"] == "Queued", stopped["status"]["summary"]
    # The training has saved, and everything that it used is recorded.
    assert float(stopped["status"]["ledger"]["chipHours"]) >= LIMIT

    following = apply(poor, "following")
    waiting_job = double.wait(following, lambda job: waits(job) or phase("Failed")(job), seconds=60)
    within = condition_of(waiting_job, "WithinBudget")
    assert (within["status"], within["reason"]) == ("False", "MonthlyBudgetExhausted")
    assert f"of the {LIMIT} chip hours" in waiting_job["status"]["waiting"]["message"]
    assert "ask #ml-help" in waiting_job["status"]["waiting"]["message"]
    assert "following-train-1" not in jobsets(double, poor)
    other = apply(rich, "other")
    running = double.wait(other, lambda job: trains(job) or waits(job), seconds=60)
    assert trains(running), running["status"]["summary"]

    shown = finetune(double, "status", "following", "-n", poor)
    assert f"of {LIMIT:.2f} chip hours of the namespace used in" in shown.stdout, shown.stdout
    profiles = finetune(double, "profiles", "metered", "-n", poor)
    assert "chip hours per namespace and month" in profiles.stdout, profiles.stdout
    assert ", 0 left until" in profiles.stdout, profiles.stdout

    # Another operator reads from the ledger what has been used, also by a job that is deleted.
    double.delete(first)
    double.wait_gone(first)
    used = month_of(double, poor)
    double.stop("operator")
    double.start("operator")
    assert month_of(double, poor) == used >= LIMIT
    assert waits(double.get(following))

    double.patch("/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles/metered", raised(1))
    double.wait(following, trains, seconds=60)
    double.delete(following)
    double.delete(other)


def raised(limit: float) -> dict[str, Any]:
    return {"spec": {"constraints": {"chipHoursPerMonth": limit}}}
