"""Every example is one that the API server and the operator would take."""

import json
import re
from pathlib import Path

import pytest
import yaml

from devcluster.gcs import BUCKETS
from finetune_operator.cli.manifests.checks import check_files
from finetune_operator.cli.manifests.plan import planned_jobs
from finetune_operator.cli.manifests.plan_report import KnownInputs
from tests.plan_pages import plan_page

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
JOBS = [path for path in EXAMPLES if re.search(r"^kind: FineTuneJob$", path.read_text(), re.MULTILINE)]
LOCAL = ROOT / "devcluster" / "manifests" / "profile-local.yaml"
PROFILES = ROOT / "examples" / "profiles"


@pytest.mark.parametrize("path", [*JOBS, *PROFILES.glob("*.yaml"), LOCAL], ids=lambda path: path.name)
def test_validates(path: Path) -> None:
    assert not any(check_files([path]).problems.values())


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_can_be_planned(path: Path, tmp_path: Path) -> None:
    *others, job = yaml.safe_load_all(path.read_text())  # what a job names stands before it
    named = job["spec"].get("profileRef")
    profile = PROFILES / f"{named['name']}.yaml" if named else LOCAL
    job["metadata"]["namespace"] = "team-a"
    manifest = tmp_path / path.name
    manifest.write_text("\n---\n".join(json.dumps(each) for each in (*others, job)))
    shown = plan_page(manifest, profile)
    assert "Train" in shown


#: What each example shows: words of its plan, and fields of its spec.
SHOWN = {
    "dpo-llama": ("DPO, beta 0.1", "meta-llama/Llama-3.2-1B-Instruct", "(Preference)", "v6e-4 2x2"),
    "orpo-gemma": ("ORPO, lambda 0.1", "google/gemma-3-1b-it", "5 % of the training rows", "LoRA, rank 32"),
    "gated-push": ("Evaluate", "Qwen/Qwen3-0.6B", "LoRA, rank 16"),
}


@pytest.mark.parametrize(("name", "words"), SHOWN.items(), ids=SHOWN)
def test_the_plan_of_an_example_shows_its_method_and_model(name: str, words: tuple[str, ...]) -> None:
    page = plan_page(ROOT / "examples" / f"{name}.yaml", PROFILES / "gke-v6e.yaml")
    assert [each for each in words if each not in page] == []


def test_an_example_has_gates_a_benchmark_and_a_push_to_the_hub() -> None:
    path = ROOT / "examples" / "gated-push.yaml"
    (report,) = planned_jobs([path], PROFILES / "gke-v6e.yaml", known=KnownInputs()).jobs
    evaluation, (hub, bucket) = report.plan.evaluation, report.plan.export.destinations
    assert [benchmark.name for benchmark in evaluation.benchmarks] == ["gsm8k"]
    assert [gate.metric for gate in evaluation.gates] == [
        "faq/exact_match", "loss", "gsm8k/exact_match,strict-match",
    ]  # fmt: skip
    assert hub.hub is not None
    assert hub.hub.repo == "acme/support-bot"
    assert bucket.uri == "gs://my-project-models/team-a/support-bot"


def test_a_plan_names_the_queues(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "examples" / "huggingface.yaml").read_text())
    job["metadata"]["namespace"], job["spec"]["profileRef"] = "team-a", {"name": "gke-v6e-queued"}
    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps(job))
    page = plan_page(manifest, PROFILES / "gke-v6e-queued.yaml")
    assert "tpu: team-tpu · priority: research" in page


def test_the_quickstart_fits_on_fifteen_lines_and_names_no_profile() -> None:
    text = (ROOT / "examples" / "quickstart.yaml").read_text()
    assert len(text.splitlines()) <= 15
    assert "profileRef" not in text
    assert "file://" not in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_no_bucket_of_an_example_can_be_another_owners(path: Path) -> None:
    """Names of buckets are global. Google gives none below a domain that is not recognized, as .invalid never is."""
    buckets = set(re.findall(r"gs://([^/\s\"'}*]+)", path.read_text()))
    assert [name for name in buckets if not name.endswith(".invalid") and "my-project" not in name] == []


@pytest.mark.parametrize("name", ["quickstart", "lora-smollm2-gsm8k"])
def test_the_local_cluster_has_the_buckets_of_the_examples_for_it(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.yaml").read_text()
    assert set(re.findall(r"gs://([^/]+)", text)) == {"ft-data.invalid", "ft-models.invalid"} < set(BUCKETS)
