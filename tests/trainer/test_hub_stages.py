"""Whole stages with the fake hub: the published example, a branch that moves between two stages, and the token."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from devcluster.fixtures.chat_data import CAPITALS, row
from finetune_contract import ExitCode, StageRequest, StageResult
from tests.doubles.hub import FakeHub
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request

ROOT = Path(__file__).parents[2]
MODEL, DATA = "Qwen/Qwen3-0.6B", "HuggingFaceH4/ultrachat_200k"
TOKEN = "hf_canary0123456789"
#: A shortened copy of the dataset's own README.
README = """---
language: [en]
license: mit
configs:
- config_name: default
  data_files:
  - {split: train_sft, path: data/train_sft-*}
  - {split: test_sft, path: data/test_sft-*}
  - {split: train_gen, path: data/train_gen-*}
  - {split: test_gen, path: data/test_gen-*}
dataset_info:
  features:
  - {name: prompt, dtype: string}
  - {name: prompt_id, dtype: string}
  - name: messages
    list:
    - {name: content, dtype: string}
    - {name: role, dtype: string}
  splits:
  - {name: train_sft, num_bytes: 1397058554, num_examples: 207865}
  - {name: test_sft, num_bytes: 154695659, num_examples: 23110}
  - {name: train_gen, num_bytes: 1347396812, num_examples: 256032}
  - {name: test_gen, num_bytes: 148276089, num_examples: 28304}
---
# UltraChat 200k
"""


class Ran:
    """A finished stage that ran as in its container: request and token in the environment, records in its folder."""

    def __init__(self, request: StageRequest, root: Path, environment: Mapping[str, str]) -> None:
        done = subprocess.run(
            [Path(sys.executable).with_name("finetune-stage")],
            env={
                **os.environ,
                "FINETUNE_REQUEST": request.to_json(),
                "TERMINATION_MESSAGE_PATH": str(root / "termination"),
                "TMPDIR": str(root),
                "HF_HOME": str(root / "home"),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.code = done.returncode
        self.folder = Path(request.run_folder.removeprefix("file://"))
        written = [path for path in (*self.folder.rglob("*"), root / "termination") if path.is_file()]
        self.told = done.stdout + done.stderr + "".join(path.read_text() for path in written)
        record = self.folder / "attempts" / f"{request.stage.short}-{request.attempt}" / "result.json"
        self.result = StageResult.model_validate_json(record.read_bytes())

    @property
    def details(self) -> Any:
        assert self.result.details is not None, self.told
        return self.result.details


def rows(count: int) -> bytes:
    out = io.BytesIO()
    conversations = [row(list(CAPITALS)[at % len(CAPITALS)]) for at in range(count)]
    # As published: the prompt is the first message.
    listed = [
        {"prompt": talk["messages"][0]["content"], "prompt_id": str(at), **talk}
        for at, talk in enumerate(conversations)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(listed), out)
    return out.getvalue()


def push_model(hub: FakeHub, folder: Path, **spec: Any) -> str:
    written = write_model(folder, TinyModelSpec(**spec))
    return hub.push(MODEL, {path.name: path.read_bytes() for path in written.iterdir()})


def push_data(hub: FakeHub, *, train: int) -> str:
    shards = {f"data/train_sft-{at:05}-of-00003.parquet": rows(train) for at in range(3)}
    test = {"data/test_sft-00000-of-00001.parquet": rows(8)}
    other = {f"data/{name}_gen-00000-of-00001.parquet": b"large" for name in ("train", "test")}
    return hub.push(DATA, {"README.md": README, **shards, **test, **other}, kind="dataset")


def example(root: Path) -> StageRequest:
    """Returns preflight's request of the example, as ``finetune plan`` prints it, with folders of this machine."""
    program = ROOT / ".venv/bin/finetune"
    if not program.exists():
        pytest.skip("the operator's environment is not installed: make install")
    job, profile = ROOT / "examples/huggingface.yaml", ROOT / "examples/profiles/gke-v6e.yaml"
    page = subprocess.run(
        [program, "plan", "-f", job, "--profile", profile, "-o", "yaml"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    jobset = next(yaml.safe_load_all(page))
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (text,) = [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "FINETUNE_REQUEST"]
    planned = StageRequest.model_validate_json(text.replace("$$", "$"))
    return planned.model_copy(update={"run_folder": f"file://{root}/run", "cache": f"file://{root}/cache"})


def pinned(planned: StageRequest, found: Any) -> StageRequest:
    """Returns the request with pinned revisions, as the operator passes it to later stages."""
    told = planned.model_dump()
    told["model"]["hugging_face"]["revision"] = found.model.revision
    told["data"]["train"][0]["hugging_face"]["revision"] = found.train[0].revision
    return StageRequest.model_validate({**told, "stage": "Convert"})


@pytest.mark.thorough
def test_the_example_is_checked_and_converted_at_the_commits_that_preflight_found(
    hub: FakeHub, tmp_path: Path
) -> None:
    model, data = push_model(hub, tmp_path / "first"), push_data(hub, train=16)
    planned = example(tmp_path)
    found = Ran(planned, tmp_path, {})
    assert found.code == 0, found.told
    details = found.details
    assert (details.model.source, details.model.revision) == (MODEL, model)
    assert (details.train[0].revision, details.validation[0].revision) == (data, data)
    assert (details.train[0].rows, details.validation[0].rows) == (48, 8)
    assert not any("_gen-" in name for name in hub.requested_files(DATA))
    assert not any(name.endswith(".safetensors") for name in hub.requested_files(MODEL))

    push_model(hub, tmp_path / "second", seed=1, std=0.5)
    push_data(hub, train=1)
    converted = Ran(pinned(planned, details), tmp_path, {})
    assert converted.code == 0, converted.told
    assert converted.details.manifest.fingerprint == details.fingerprint
    assert converted.details.manifest.export_proven
    revisions = {match for seen in hub.seen for match in re.findall(r"/resolve/([^/]+)/", seen.path)}
    assert revisions == {model, data}


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(True, id="a token that opens it"),
        pytest.param(False, id="a token that the hub refuses", marks=pytest.mark.thorough),
    ],
)
def test_a_token_is_printed_nowhere(hub: FakeHub, tmp_path: Path, known: bool) -> None:
    push_model(hub, tmp_path / "model")
    push_data(hub, train=1)
    hub.tokens = {TOKEN: frozenset({MODEL})} if known else {}
    # an intermediate server might return the token in its response
    if not known:
        hub.fail(403, headers={"X-Error-Message": f"no access for {TOKEN}"})
    asked = request(
        tmp_path,
        "Preflight",
        model={"uri": None, "hugging_face": {"repo": MODEL}},
        data={"train": [source("train_sft")], "validation": []},
    )
    ran = Ran(asked, tmp_path, {"HF_TOKEN": TOKEN})
    of_repositories = [seen for seen in hub.seen if MODEL in seen.path or DATA in seen.path]
    assert {seen.authorization for seen in of_repositories} == {f"Bearer {TOKEN}"}
    assert ran.code == (0 if known else ExitCode.PERMISSION_DENIED), ran.told
    assert TOKEN not in ran.told
    if not known:
        assert ran.result.failure is not None
        assert "no access for [redacted]" in ran.result.failure.message
        assert json.loads((ran.folder / "attempts/prep-1/failure.json").read_text())["code"] == 77


def source(split: str) -> dict[str, Any]:
    return {
        "path": "spec.datasets.train[0]",
        "name": "train-0",
        "hugging_face": {"repo": DATA},
        "split": split,
    }
