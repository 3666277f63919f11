"""Under vLLM and its OpenAI-compatible API, an exported model gives the answers that our own evaluation reported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.fixtures.chat_data import CAPITALS, row
from finetune_contract import ConvertOutcome, EvaluateOutcome, ExportOutcome, Sample
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.serving.server import serve
from tests.trainer.stages import Stages

NEW_TOKENS = 24
QUESTIONS = [f"What is the capital of {country}?" for country in CAPITALS]
#: vLLM's attention on CPU has kernels only for heads of size 64 and larger.
MODEL = TinyModelSpec(hidden=128, heads=2, kv_heads=1, head_dim=64)
#: The number of steps after which the answers are certain, and the other fields of the request.
METHODS: dict[str, tuple[int, dict[str, Any]]] = {
    "full": (100, {"export": {"serving_account": "default"}}),
    "lora": (400, {"method": {"lora": {"rank": 16, "alpha": 32.0}}, "export": {"content": "Both"}}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    folders: dict[str, Path]
    """By name: model, adapter."""
    samples: list[Sample]
    """Of the Evaluate stage: question, answer of the base model, answer of the tuned one."""


@pytest.fixture(scope="module")
def base(stages: Stages) -> dict[str, Any]:
    """Returns the part of a request that names the model, after converting it."""
    folder = write_model(stages.root / "models/served", MODEL)
    model = {"model": {"uri": f"file://{folder}"}}
    converted = stages.run("Convert", "served", **model).details
    assert isinstance(converted, ConvertOutcome)
    return {**model, "converted": converted.manifest.items}


@pytest.fixture(scope="module", params=METHODS)
def exported(request: pytest.FixtureRequest, stages: Stages, base: dict[str, Any]) -> Exported:
    run = f"served-{request.param}"
    steps, method = METHODS[request.param]
    asked = {**base, **method, "train_step": steps, "hyperparameters": {"steps": steps}}
    asked["evaluation"] = {"prompts": QUESTIONS, "max_new_tokens": NEW_TOKENS}
    stages.run("Train", run, **asked)
    evaluated = stages.run("Evaluate", run, **asked).details
    assert isinstance(evaluated, EvaluateOutcome)
    done = stages.run("Export", run, **asked).details
    assert isinstance(done, ExportOutcome)
    folders = {each.name: Path(each.uri.removeprefix("file://")) for each in done.artifacts}
    return Exported(folders=folders, samples=evaluated.samples)


def test_vllm_answers_as_the_evaluation_did(exported: Exported, stages: Stages) -> None:
    wanted = {sample.prompt: sample.tuned for sample in exported.samples}
    # the answers are the trained ones, so that none depends on the last bit of a logit
    assert wanted == {asked["content"]: told["content"] for asked, told in map(turns, CAPITALS)}
    model, adapter = exported.folders["model"], exported.folders.get("adapter")
    if adapter is None:
        arguments, name = of_manifest(model), "tiny"
    else:  # the adapter on the base model, besides the merged model
        name = "tuned"
        arguments = [
            f"--model={stages.root}/models/served", "--max-model-len=256", "--enable-lora", "--max-lora-rank=16",
            "--lora-modules", f"{name}={adapter}",
        ]  # fmt: skip
    with serve(arguments, model.parent / "vllm.log") as server:
        assert name in server.models()
        answers = {question: server.answer(name, question, max_tokens=NEW_TOKENS) for question in wanted}
    assert answers == wanted


def of_manifest(model: Path) -> list[str]:
    """Returns the arguments that the exported manifest passes to vLLM, except for its mount path and its port."""
    deployment, _ = yaml.safe_load_all((model / "serving/gpu.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"][0]["hostPath"]["path"] == str(model)
    told: list[str] = [each for each in pod["containers"][0]["args"] if not each.startswith("--port")]
    return [f"--model={model}" if each == "--model=/model" else each for each in told]


def turns(country: str) -> list[dict[str, str]]:
    """Returns the question about a country, and its answer."""
    conversation: Any = row(country)
    return list(conversation["messages"])
