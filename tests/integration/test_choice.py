"""A job that names no slice, on the real control plane: it runs on the cheapest slice that preflight finds to fit."""

from pathlib import Path

from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, condition, job_path, jobset_path, jobsets, phase
from tests.stage_outcomes import DOES_NOT_FIT


def test_training_runs_on_the_slice_that_preflight_chose_and_the_status_says_why(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    double.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "choosing", least_chips=8))
    double.apply(fake_trainer.job(namespace, "bot", PROFILE))
    done = double.wait(job_path(namespace, "bot"), phase("Succeeded", "Failed"), seconds=120)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    resources = done["status"]["resolved"]["resources"]
    assert (resources["tpu"], resources["hosts"]) == ("v6e-8", 2)
    assert f"v6e-4 {DOES_NOT_FIT}" in resources["why"]
    assert condition(done, "MemoryFits") == "True"
    for name in ("bot-train-1", "bot-eval-1"):
        (replicated,) = double.get(jobset_path(namespace, name))["spec"]["replicatedJobs"]
        assert replicated["template"]["spec"]["completions"] == 2
    assert len(jobsets(double, namespace)) == 5, "nothing was started on the slice that is too small"
