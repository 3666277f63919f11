"""Where a job may start from: another job's model, a converted checkpoint, another run; stages are the double's."""

from pathlib import Path

from devcluster.testing import Cluster
from finetune_contract import RunFolder, StageRequest
from tests.integration import trainer_double
from tests.integration.jobs import PROFILE, Object, condition_of, job_path, jobsets, phase


def request(job: Object, stage: str, number: int = 1) -> StageRequest:
    """What that attempt of the job was told."""
    run = RunFolder(job["status"]["resolved"]["runFolder"])
    told = Path(run.request(stage, number).removeprefix("file://"))
    return StageRequest.model_validate_json(told.read_text())


def test_a_job_starts_from_what_another_one_exports_as_soon_as_it_has(
    double: Cluster, namespace: str
) -> None:
    chained = trainer_double.job(namespace, "second", PROFILE, model={"fromJob": {"name": "first"}})
    double.apply(chained)
    double.wait(
        job_path(namespace, "second"),
        lambda job: condition_of(job, "Valid").get("reason") == "SourceJobNotFound",
        seconds=30,
    )
    double.apply(trainer_double.job(namespace, "first", PROFILE))
    second = double.wait(job_path(namespace, "second"), phase("Succeeded", "Failed"), seconds=120)
    assert second["status"]["phase"] == "Succeeded", second["status"]["summary"]
    first = double.get(job_path(namespace, "first"))
    (model,) = (each for each in first["status"]["artifacts"] if each["type"] == "HuggingFace")
    assert request(second, "prep").model.uri == model["uri"]
    assert second["status"]["resolved"]["model"]["fromJob"] == {
        "name": "first",
        "uid": first["metadata"]["uid"],
        "base": "file:///models/tiny",
        "step": trainer_double.STEPS,
        "digest": model["digest"],
    }


def test_a_maxtext_checkpoint_is_trained_as_it_is(double: Cluster, namespace: str) -> None:
    items = "file:///checkpoints/tiny/0/items"
    model = {
        "orbax": {"uri": items},
        "maxtextModel": "qwen3-0.6b",
        "tokenizer": {"uri": "file:///models/tiny"},
    }
    double.apply(trainer_double.job(namespace, "given", PROFILE, model=model))
    done = double.wait(job_path(namespace, "given"), phase("Succeeded", "Failed"), seconds=120)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    convert = next(each for each in done["status"]["stages"] if each["name"] == "Convert")
    assert convert == {"name": "Convert", "phase": "Skipped", "reason": "ProvidedCheckpoint"}
    assert jobsets(double, namespace) == [f"given-{stage}-1" for stage in ("eval", "export", "prep", "train")]
    assert request(done, "train").converted == items
    assert condition_of(done, "ExportProven")["reason"] == "NotChecked"
