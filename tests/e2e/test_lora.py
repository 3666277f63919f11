"""LoRA on one host, after a smoke test: the exported model is the trained one."""

import json
import subprocess
from pathlib import Path

import pytest

from finetune_contract import Stage
from tests.e2e.user_client import Object, UserClient, finetune_job, folder_of


@pytest.fixture(scope="module")
def job(bench: UserClient) -> Object:
    smoke = {"smoke": {"steps": 2, "examples": 8}}
    bench.apply(finetune_job("lora", lora=True, export={"content": "Both"}, preflight=smoke))
    return bench.succeed("lora")


def test_the_exported_model_loads_back_and_has_the_loss_that_training_ended_with(
    bench: UserClient, job: Object, stage_program: Path, tmp_path: Path
) -> None:
    trained = bench.result(job, Stage.TRAIN).details
    evaluated = bench.result(job, Stage.EVALUATE).details
    assert trained is not None
    assert trained.kind == "Train"
    assert evaluated is not None
    assert evaluated.kind == "Evaluate"
    model = bench.download(folder_of(job).model, tmp_path / "model")
    data = tmp_path / "eval.jsonl"
    data.write_bytes(bench.read("gs://ft-data.invalid/capitals/eval.jsonl") or b"")
    done = subprocess.run(
        [stage_program, "evaluate", "--model", model, "--data", data, "--max-seq-length", "64", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HOME": str(tmp_path)},
    )
    again = json.loads(done.stdout.splitlines()[-1])

    assert again["loss"] == pytest.approx(trained.evaluation_loss, rel=1e-3)
    assert evaluated.tuned is not None
    assert again["loss"] == pytest.approx(evaluated.tuned.loss, rel=1e-3)
    assert evaluated.baseline is not None
    assert again["loss"] < evaluated.baseline.loss


def test_preflight_has_tried_the_chain_out_in_small(job: Object) -> None:
    preflight = next(each for each in job["status"]["stages"] if each["name"] == "Preflight")
    assert preflight["message"].startswith(
        "The smoke test ran all stages: 2 steps on 8 examples of at most 64 tokens, in "
    )


def test_model_and_adapter_are_listed_as_artifacts_with_their_digests(bench: UserClient, job: Object) -> None:
    artifacts = {a["type"]: a for a in job["status"]["artifacts"]}
    assert {"HuggingFace", "Adapter"} <= artifacts.keys()
    adapter = json.loads(bench.read(f"{artifacts['Adapter']['uri']}/adapter_config.json") or b"{}")
    assert adapter["r"] == 4
    assert adapter["lora_alpha"] == 8
    for exported in (artifacts["HuggingFace"], artifacts["Adapter"]):
        assert exported["digest"].startswith("sha256:")
        assert exported["sizeBytes"] > 0
