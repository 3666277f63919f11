"""A budget on the real control plane: training saves and stops when it is used up, and continues when it is raised."""

from pathlib import Path

from finetune_contract import Stage
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, charged, condition_of, job_path, jobsets, phase


def test_training_stops_with_its_budget_and_continues_when_that_is_raised(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    slow = fake_trainer.install(runs / "spending", seconds=3600, stages=[Stage.TRAIN], saves=True)
    double.add_image(fake_trainer.IMAGE, slow)
    path = job_path(namespace, "thrifty")
    # Four chips for two seconds.
    job = fake_trainer.job(namespace, "thrifty", PROFILE, resources={"tpu": "v6e-4"})
    job["spec"]["budget"] = {"maxChipHours": 0.0022}  # type: ignore[index]
    double.apply(job)
    stopped = double.wait(path, phase("Suspended", "Failed"), seconds=90)
    assert condition_of(stopped, "Suspended")["reason"] == "BudgetExhausted", stopped["status"]["summary"]
    assert float(stopped["status"]["cost"]["chipHours"]) >= 0.0022
    double.patch(path, {"spec": {"budget": {"maxChipHours": 1}}})
    done = double.wait(path, phase("Succeeded", "Failed"), seconds=120)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    train = next(each for each in done["status"]["stages"] if each["name"] == "Train")
    assert (train["attempt"], train["resumedFromStep"]) == (2, fake_trainer.SAVED_STEP)
    assert "thrifty-train-2" in jobsets(double, namespace)
    assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 0}
