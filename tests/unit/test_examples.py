"""Every example is one that the API server and the operator would take."""

import json
import re
from pathlib import Path

import pytest
import yaml

from devcluster.gcs import BUCKETS
from finetune_operator.cli.checks import check_files
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
