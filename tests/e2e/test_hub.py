"""A private model, and data, from the Hugging Face Hub with a token: a fake hub serves the real libraries."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import samples
from finetune_contract import Stage
from tests.doubles.hub import FakeHub
from tests.e2e.user_client import UserClient, finetune_job, stage_of

TOKEN = "hf_canary7d20"
MODEL, DATA = "acme/tiny-qwen3", "acme/capitals"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as served:
        served.tokens[TOKEN] = frozenset({MODEL})
        yield served


@pytest.fixture
def hub_profile(bench: UserClient, hub: FakeHub, tmp_path: Path) -> Iterator[str]:
    """The profile `local` with the hub's address, as a platform team sets the address of its mirror."""
    environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hub")}
    pod = {"env": [{"name": name, "value": value} for name, value in environment.items()]}
    bench.apply_profile("hub", pod=pod)
    yield "hub"
    bench.delete("finetuneprofile", "hub")


def test_a_branch_that_moves_during_the_run_changes_nothing_and_the_token_stays_hidden(
    bench: UserClient, hub: FakeHub, hub_profile: str, tiny_model: Path
) -> None:
    capitals = samples.folder_of(samples.CAPITALS)
    model = hub.push(MODEL, {path.name: path.read_bytes() for path in tiny_model.iterdir()}, private=True)
    # by the hub's naming rules, these files are the splits train and test
    splits = {"train.jsonl": "train.jsonl", "test.jsonl": "eval.jsonl"}
    data = hub.push(
        DATA, {name: (capitals / source).read_bytes() for name, source in splits.items()}, kind="dataset"
    )
    bench.kubectl("create", "secret", "generic", "hf", f"--from-literal=token={TOKEN}")
    bench.apply(
        finetune_job(
            "from-hub",
            profileRef={"name": hub_profile},
            huggingFaceTokenSecretRef={"name": "hf"},
            model={"huggingFace": {"repo": MODEL}},
            datasets={
                "train": [{"huggingFace": {"repo": DATA, "split": "train"}}],
                "validation": [{"huggingFace": {"repo": DATA, "split": "test"}}],
                "maxSeqLength": 64,
            },
        )
    )
    bench.wait("from-hub", lambda job: job.get("status", {}).get("stage") in ("Convert", "Train"))
    hub.push(MODEL, {"README.md": "gone"}, private=True)
    hub.push(DATA, {"README.md": "gone"}, kind="dataset")
    job = bench.succeed("from-hub", patience=600)

    resolved = job["status"]["resolved"]
    assert resolved["model"]["revision"] == model
    assert {dataset["revision"] for dataset in resolved["datasets"]} == {data}
    assert stage_of(job, Stage.EXPORT)["phase"] == "Succeeded"
    assert TOKEN not in json.dumps(job)
    assert any(seen.authorization == f"Bearer {TOKEN}" for seen in hub.seen)
