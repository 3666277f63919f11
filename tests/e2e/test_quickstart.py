"""The unchanged quickstart example, and the same job on plain files."""

from pathlib import Path

import pytest
import yaml

from finetune_contract import RunFolder, Stage, StageProgress
from tests.e2e.user_client import Object, UserClient, condition, stage_of

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


@pytest.fixture(scope="module")
def quickstart(bench: UserClient) -> Object:
    """The job of the example, once it has succeeded."""
    bench.kubectl("apply", "-f", str(QUICKSTART))
    bench.kubectl("wait", "finetunejob/quickstart", "--for=condition=Succeeded", "--timeout=240s")
    return bench.get("finetunejob", "quickstart")


@pytest.mark.matrix
def test_the_tuned_model_answers_right_where_the_base_does_not(
    bench: UserClient, quickstart: Object, capitals: dict[str, str]
) -> None:
    assert len(QUICKSTART.read_text().splitlines()) <= 15
    evaluation = quickstart["status"]["evaluation"]
    assert evaluation["result"]["loss"] < evaluation["baseline"]["loss"]
    details = bench.result(quickstart, Stage.EVALUATE).details
    assert details is not None
    assert details.kind == "Evaluate"
    assert details.samples
    for sample in details.samples:
        answer = capitals[sample.prompt]
        assert answer in (sample.tuned or ""), sample
        assert answer not in (sample.baseline or ""), sample


@pytest.mark.matrix
def test_the_status_of_a_succeeded_job_shows_every_stage_and_where_the_model_lies(
    bench: UserClient, quickstart: Object
) -> None:
    status = quickstart["status"]
    assert [s["name"] for s in status["stages"]] == list(Stage)
    assert {s["phase"] for s in status["stages"]} == {"Succeeded"}
    expected = {
        "Valid": "True",
        "DataReady": "True",
        "ExportProven": "True",
        "Succeeded": "True",
        "Finished": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }
    assert {kind: condition(quickstart, kind) for kind in expected} == expected
    exported = next(a for a in status["artifacts"] if a["type"] == "HuggingFace")
    assert bench.read(f"{exported['uri']}/config.json")
    assert bench.read(f"{exported['uri']}/model.safetensors")


def test_every_stage_has_reported_what_it_did(bench: UserClient, quickstart: Object) -> None:
    run = RunFolder(quickstart["status"]["resolved"]["runFolder"])
    for stage in Stage:
        told = StageProgress.model_validate_json(bench.read(run.stage_progress(stage.short, 1)) or b"")
        assert told.doing, stage
        assert told.since <= told.updated
    assert all("progress" not in each for each in quickstart["status"]["stages"])


def test_the_second_job_with_the_same_model_reuses_the_conversion(
    bench: UserClient, quickstart: Object
) -> None:
    manifest = yaml.safe_load(QUICKSTART.read_text())
    bench.apply(manifest | {"metadata": {"name": "second"}})
    second = bench.succeed("second")

    cache = stage_of(second, Stage.CONVERT)["cache"]
    assert cache["result"] == "Hit"
    assert float(cache["savedSeconds"]) > 0
    assert cache["fingerprint"] == stage_of(quickstart, Stage.CONVERT)["cache"]["fingerprint"]
    assert not bench.list("jobsets", job="second", stage="Convert")


@pytest.mark.usefixtures("files_profile")
def test_quickstart_on_plain_files(bench: UserClient, files: Path) -> None:
    text = QUICKSTART.read_text().replace("gs://", f"file://{files}/")
    manifest = yaml.safe_load(text)
    manifest["spec"]["profileRef"] = {"name": "files"}
    manifest["metadata"]["name"] = "on-files"
    bench.apply(manifest)
    job = bench.succeed("on-files")

    exported = next(a["uri"] for a in job["status"]["artifacts"] if a["type"] == "HuggingFace")
    assert exported.startswith("file://")
    assert (Path(exported.removeprefix("file://")) / "model.safetensors").stat().st_size > 0
