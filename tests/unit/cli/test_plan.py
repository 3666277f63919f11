"""What ``finetune plan`` knows of the CPU stages' memory without a cluster, and that text and JSON agree."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from finetune_operator.cli.host_memory import by_name
from finetune_operator.cli.main import app

ROOT = Path(__file__).parents[3]
CLOUD = ROOT / "examples" / "profiles" / "gke-v6e.yaml"


def plan(
    folder: Path, *options: str, max_memory: str | None = "115Gi", status: Any = None, **spec: Any
) -> Result:
    """Of a job with these parts of its spec, under the example's profile with another limit."""
    profile = yaml.safe_load(CLOUD.read_text())
    profile["spec"]["cpuPool"]["maxMemory"] = max_memory
    if max_memory is None:
        del profile["spec"]["cpuPool"]["maxMemory"]
    job: dict[str, Any] = {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "bot", "namespace": "team-a"},
        "spec": {
            "model": {"huggingFace": {"repo": "Qwen/Qwen3-14B"}},
            "datasets": {"train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}]},
            "method": {"type": "SFT"},
            **spec,
        },
    }
    if status is not None:
        job["status"] = status
    file = folder / "both.yaml"
    file.write_text(yaml.safe_dump_all([job, profile]))
    return CliRunner().invoke(app, ["plan", "-f", str(file), *options])


def facts(folder: Path, **options: Any) -> dict[str, Any]:
    done = plan(folder, "-o", "json", **options)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == ("reason" in found["hostMemory"]), done.output
    return found


def row(done: Result, label: str) -> str:
    """What stands behind a label of the page."""
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(label))
    return line.removeprefix(label).strip()


def model(repo: str) -> dict[str, Any]:
    return {"model": {"huggingFace": {"repo": repo}}}


def test_a_model_whose_export_no_node_could_hold_is_named_before_the_job_exists(tmp_path: Path) -> None:
    done = plan(tmp_path)
    assert done.exit_code == 1
    assert "by the model's name" in row(done, "Host memory")
    for word in ("CpuPoolTooSmall", "Convert about 152 GiB", "give a pod 152 GiB: cpuPool.maxMemory 180Gi"):
        assert word in row(done, "Problem")
    assert facts(tmp_path)["hostMemory"]["reason"] == "CpuPoolTooSmall"
    written = plan(tmp_path, "-o", "yaml")
    assert written.exit_code == 1
    assert len(list(yaml.safe_load_all(written.stdout))) == 4
    assert "CpuPoolTooSmall" in written.stderr


def test_the_page_names_units_and_the_price(tmp_path: Path) -> None:
    done = plan(
        tmp_path,
        **model("Qwen/Qwen3-0.6B"),
        resources={"tpu": "v6e-4"},
        budget={"maxChipHours": "1000000", "maxCost": "100"},
        hyperparameters={"epochs": 1},
    )
    assert done.exit_code == 0, done.output
    flavors = yaml.safe_load(CLOUD.read_text())["spec"]["flavors"]
    price = flavors[0]["chipHourPrice"]
    assert row(done, "Price") == f"{Decimal(price) * 4:f} USD an hour (4 chips x {price})"
    assert "at most 100 USD (spec.budget.maxCost)" in row(done, "Budget")
    assert " chip hours (" in row(done, "Budget")
    assert row(done, "Length") == "1 epoch; Preflight counts the steps"
    for internal in ("fingerprint", "train_step", "hyperparameters.", "converted (from"):
        assert internal not in row(done, "Known later")


def test_a_model_that_fits_is_told_what_its_stages_request(tmp_path: Path) -> None:
    found = facts(tmp_path, **model("Qwen/Qwen3-8B"))["hostMemory"]
    assert found["convert"] == "115Gi"
    assert found["export"] == "87Gi"
    assert "reason" not in found


def test_without_a_size_the_plan_says_what_the_profile_holds(tmp_path: Path) -> None:
    spec = {"model": {"uri": "gs://my-project-models/team-a/ours"}}
    assert "models of up to 10.4 billion parameters" in plan(tmp_path, **spec).stdout
    assert facts(tmp_path, **spec)["hostMemory"] == {"largestModel": 10_444_000_000}
    assert facts(tmp_path, max_memory=None, **spec)["hostMemory"] == {}


def test_what_an_earlier_run_found_is_better_than_the_name(tmp_path: Path) -> None:
    resolved = {"model": {"source": "Qwen/Qwen3-14B", "parameters": 1_000_000_000}}
    found = facts(tmp_path, status={"resolved": resolved})["hostMemory"]
    assert (found["parameters"], found["knownFrom"]) == (1_000_000_000, "status")
    resolved["model"]["source"] = "another/model"
    assert facts(tmp_path, status={"resolved": resolved})["hostMemory"]["knownFrom"] == "name"


@pytest.mark.parametrize(
    "status", [[], "x", {"resolved": 3}, {"resolved": {"model": {"parameters": "many"}}}]
)
def test_a_status_of_another_shape_is_not_read(tmp_path: Path, status: Any) -> None:
    assert facts(tmp_path, status=status)["hostMemory"]["knownFrom"] == "name"


@pytest.mark.parametrize(
    ("address", "parameters"),
    [
        ("Qwen/Qwen3-0.6B", 600_000_000),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135_000_000),
        ("mistralai/Mixtral-8x7B-v0.1", 46_480_000_000),
        ("Qwen/Qwen3-30B-A3B", 30_000_000_000),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_000_000_000),
        ("gradientai/Llama-3-8B-Instruct-1M", 8_000_000_000),
        ("gs://models/gemma-3-27b-it/", 27_000_000_000),
        ("google/gemma-3n-E2B-it", None),
        ("acme/support-bot", None),
        ("deepseek-ai/DeepSeek-V2-Lite", None),
        ("70b/llama", None),
    ],
)
def test_the_size_that_a_name_speaks_of(address: str, parameters: int | None) -> None:
    assert by_name(address) == parameters


def test_a_profile_that_holds_no_stage_is_refused_with_what_to_change(tmp_path: Path) -> None:
    done = plan(tmp_path, max_memory="4Gi")
    assert done.exit_code == 1
    assert "CpuPoolTooSmall" in done.stderr
    assert "Traceback" not in done.output


def test_text_and_json_name_the_same_checkpoint(tmp_path: Path) -> None:
    datasets = {
        "train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}],
        "validation": [{"uri": "gs://my-project-data/team-a/held-back.jsonl"}],
    }
    measured = {"datasets": datasets, "evaluation": {"everySteps": 100}}
    assert "the best is exported" in plan(tmp_path, **measured).stdout
    assert facts(tmp_path, **measured)["checkpoint"] == "Best"
    assert facts(tmp_path)["checkpoint"] == "Last"
