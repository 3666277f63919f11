"""What ``finetune plan`` knows of the CPU stages' memory and disk without a cluster, and that text and JSON agree."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from finetune_operator.cli.main import app

ROOT = Path(__file__).parents[3]
CLOUD = ROOT / "examples" / "profiles" / "gke-v6e.yaml"
PIECE = (
    "Convert and Export need memory for the model's largest piece (a tensor, in most models the embeddings, or one "
    "projection of all experts of a layer)"
)


def plan(
    folder: Path,
    *options: str,
    max_memory: str | None = "115Gi",
    max_ephemeral_storage: str | None = "151Gi",
    **spec: Any,
) -> Result:
    """Of a job with these parts of its spec, under the example's profile with other limits."""
    profile = yaml.safe_load(CLOUD.read_text())
    limits = {"maxMemory": max_memory, "maxEphemeralStorage": max_ephemeral_storage}
    pool = {name: each for name, each in (profile["spec"]["cpuPool"] | limits).items() if each is not None}
    profile["spec"]["cpuPool"] = pool
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
    file = folder / "both.yaml"
    file.write_text(yaml.safe_dump_all([job, profile]))
    return CliRunner().invoke(app, ["plan", "-f", str(file), *options])


def facts(folder: Path, **options: Any) -> dict[str, Any]:
    done = plan(folder, "-o", "json", **options)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    return found


def row(done: Result, label: str) -> str:
    """What stands behind a label of the page."""
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(label))
    return line.removeprefix(label).strip()


def model(repo: str) -> dict[str, Any]:
    return {"model": {"huggingFace": {"repo": repo}}}


@pytest.mark.parametrize(
    ("max_memory", "holds"), [("115Gi", 7_583_000_000), ("16Gi", 671_000_000), ("256Gi", 16_173_000_000)]
)
def test_the_plan_says_which_pieces_the_profiles_cpu_nodes_hold(
    tmp_path: Path, max_memory: str, holds: int
) -> None:
    done = plan(tmp_path, max_memory=max_memory)
    assert done.exit_code == 0
    assert row(done, "Host memory") == (
        f"{PIECE}; cpuPool.maxMemory {max_memory} is enough for one of {holds / 1e9:.2f} billion parameters, and "
        "Preflight checks it"
    )
    assert facts(tmp_path, max_memory=max_memory)["hostMemory"] == {"largestPiece": holds}


def test_without_a_limit_the_plan_names_none(tmp_path: Path) -> None:
    done = plan(tmp_path, max_memory=None)
    assert row(done, "Host memory") == f"{PIECE}, which Preflight reads"
    assert facts(tmp_path, max_memory=None)["hostMemory"] == {}


def test_the_plan_says_how_much_disk_the_profile_gives(tmp_path: Path) -> None:
    need = "Convert and Export need scratch space for weights and the exported model"
    assert row(plan(tmp_path, max_ephemeral_storage="40Gi"), "Disk") == (
        f"{need}; cpuPool.maxEphemeralStorage 40Gi is the most that each may request, and Preflight checks it"
    )
    unlimited = plan(tmp_path, max_ephemeral_storage=None)
    assert row(unlimited, "Disk") == f"{need}, whose sizes Preflight reads"


def test_the_page_names_units_and_the_price(tmp_path: Path) -> None:
    done = plan(
        tmp_path,
        **model("Qwen/Qwen3-0.6B"),
        resources={"tpu": "v6e-4"},
        budget={"maxChipHours": 1000000, "maxCost": 100},
        hyperparameters={"epochs": 1},
    )
    assert done.exit_code == 0, done.output
    flavors = yaml.safe_load(CLOUD.read_text())["spec"]["flavors"]
    price = flavors[0]["chipHourPrice"]
    assert row(done, "Price") == f"{price * 4:.2f} USD per hour (4 chips x {price:.2f})"
    assert "at most 100 USD (spec.budget.maxCost)" in row(done, "Budget")
    assert " chip hours (" in row(done, "Budget")
    assert row(done, "Length") == "1 epoch; Preflight counts the steps"
    for internal in ("fingerprint", "train_step", "hyperparameters.", "converted (from"):
        assert internal not in row(done, "Known later")


def test_a_file_without_a_job_gets_a_hint_where_job_and_profile_are_named() -> None:
    done = CliRunner().invoke(app, ["plan", "-f", str(CLOUD)])
    assert done.exit_code == 1
    assert "contains no FineTuneJob; plan takes one." in done.stderr
    assert "--profile" in done.stderr


def test_a_profile_that_holds_no_stage_is_refused_with_what_to_change(tmp_path: Path) -> None:
    done = plan(tmp_path, max_memory="1Gi")
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


def test_a_job_that_names_no_slice_shows_which_one_is_tried_first_and_which_follow(tmp_path: Path) -> None:
    hyperparameters = {"steps": 10, "globalBatchSize": 16}
    memory = facts(tmp_path, hyperparameters=hyperparameters)["memory"]
    page = plan(tmp_path, hyperparameters=hyperparameters)
    first, *others = facts(tmp_path)["resources"]["tpu"], *memory["candidates"]
    assert others
    assert f"where the training does not fit it, preflight tries {', '.join(others)}" in page.stdout
    assert first in row(page, "  Train")
    assert "slice (from Preflight)" in row(page, "Known later")
    named = plan(tmp_path, hyperparameters=hyperparameters, resources={"tpu": first})
    assert "slice (from Preflight)" not in named.stdout
