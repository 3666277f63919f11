"""What a job can start from: another job's model, a converted checkpoint, another run. The trainer is a fake."""

from pathlib import Path

from finetune_contract import RunFolder, Stage, StageRequest
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import (
    PROFILE,
    Object,
    charged,
    condition,
    condition_of,
    job_path,
    jobset_path,
    jobsets,
    phase,
    says,
)
from tests.integration.training import pods_of, started, trained


def request(job: Object, stage: str, number: int = 1) -> StageRequest:
    """The request of that attempt of the job."""
    run = RunFolder(job["status"]["resolved"]["runFolder"])
    told = Path(run.request(stage, number).removeprefix("file://"))
    return StageRequest.model_validate_json(told.read_text())


def test_a_job_starts_from_what_another_one_exports_as_soon_as_it_has(
    double: LocalCluster, namespace: str
) -> None:
    chained = fake_trainer.job(namespace, "second", PROFILE, model={"fromJob": {"name": "first"}})
    double.apply(chained)
    double.wait(
        job_path(namespace, "second"),
        lambda job: condition_of(job, "Valid").get("reason") == "SourceJobNotFound",
        seconds=30,
    )
    double.apply(fake_trainer.job(namespace, "first", PROFILE))
    second = double.wait(job_path(namespace, "second"), phase("Succeeded", "Failed"), seconds=120)
    assert second["status"]["phase"] == "Succeeded", second["status"]["summary"]
    first = double.get(job_path(namespace, "first"))
    (model,) = (each for each in first["status"]["artifacts"] if each["type"] == "HuggingFace")
    assert request(second, "prep").model.uri == model["uri"]
    assert second["status"]["resolved"]["model"]["fromJob"] == {
        "name": "first",
        "uid": first["metadata"]["uid"],
        "base": "file:///models/tiny",
        "step": fake_trainer.STEPS,
        "digest": model["digest"],
    }


def test_a_maxtext_checkpoint_is_trained_as_it_is(double: LocalCluster, namespace: str) -> None:
    items = "file:///checkpoints/tiny/0/items"
    model = {
        "orbax": {"uri": items},
        "maxtextModel": "qwen3-0.6b",
        "tokenizer": {"uri": "file:///models/tiny"},
    }
    double.apply(fake_trainer.job(namespace, "given", PROFILE, model=model))
    done = double.wait(job_path(namespace, "given"), phase("Succeeded", "Failed"), seconds=120)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    convert = next(each for each in done["status"]["stages"] if each["name"] == "Convert")
    assert convert == {"name": "Convert", "phase": "Skipped", "reason": "ProvidedCheckpoint"}
    assert jobsets(double, namespace) == [f"given-{stage}-1" for stage in ("eval", "export", "prep", "train")]
    assert request(done, "train").converted == items
    assert condition_of(done, "ExportProven")["reason"] == "NotChecked"


def test_a_job_continues_in_the_run_folder_of_one_that_was_deleted(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    slow = fake_trainer.install(runs / "saving", seconds=3600, stages=[Stage.TRAIN], saves=True)
    double.add_image(fake_trainer.IMAGE, slow)
    begun = started(double, namespace, "begun", tpu="v6e-4")
    double.apply(fake_trainer.job(namespace, "follower", PROFILE, resumeFrom={"runFolder": begun.uri}))
    waiting = double.wait(
        job_path(namespace, "follower"),
        lambda job: condition_of(job, "Valid").get("reason") == "RunFolderInUse",
        seconds=30,
    )
    assert 'FineTuneJob "begun"' in waiting["status"]["summary"]
    double.delete(job_path(namespace, "begun"))
    done = double.wait(job_path(namespace, "follower"), phase("Succeeded", "Failed"), seconds=120)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert done["status"]["resolved"]["runFolder"] == begun.uri
    assert jobsets(double, namespace) == [
        f"follower-{stage}-{number}"
        for stage, number in (("conv", 2), ("eval", 1), ("export", 1), ("prep", 2), ("train", 2))
    ]
    train = next(each for each in done["status"]["stages"] if each["name"] == "Train")
    assert (train["attempt"], train["resumedFromStep"]) == (1, fake_trainer.SAVED_STEP)


def test_a_cancelled_training_saves_and_frees_its_slice_and_another_job_continues_it(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    slow = fake_trainer.install(runs / "saving", seconds=3600, stages=[Stage.TRAIN], saves=True)
    double.add_image(fake_trainer.IMAGE, slow)
    begun, path = started(double, namespace, "begun", tpu="v6e-4"), job_path(namespace, "begun")
    double.patch(path, {"spec": {"cancel": True}})
    ended = double.wait(path, phase("Failed", "Succeeded"), seconds=90)
    failure = ended["status"]["failure"]
    assert (failure["class"], failure["reason"], failure["stage"]) == ("User", "Cancelled", "Train")
    assert (condition(ended, "Finished"), condition_of(ended, "Succeeded")["reason"]) == ("True", "Cancelled")
    assert charged(ended) == {"preemption": 0, "infrastructure": 0, "user": 0}
    assert ended["status"]["attempts"]["history"][-1]["reason"] == "Cancelled"
    double.wait_gone(jobset_path(namespace, "begun-train-1"))
    assert pods_of(double, namespace) == []
    double.patch(path, {"spec": {"retry": {"generation": 1}}})
    double.wait(path, says("Not retried: spec.cancel is true"), seconds=30)
    assert jobsets(double, namespace) == ["begun-conv-1", "begun-prep-1"]
    double.apply(fake_trainer.job(namespace, "follower", PROFILE, resumeFrom={"runFolder": begun.uri}))
    done = double.wait(job_path(namespace, "follower"), phase("Succeeded", "Failed"), seconds=120)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert trained(done)["resumedFromStep"] == fake_trainer.SAVED_STEP
