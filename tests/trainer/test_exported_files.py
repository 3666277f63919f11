"""The files beside an export's weights: what a program needs to stop where training taught answers to end."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from devcluster.fixtures.tiny_qwen3 import EOS, TURN_END
from finetune_contract import ExportOutcome, ModelSource, TrainOutcome
from finetune_trainer import families
from finetune_trainer.checkpoints.folder import copy_files, write_config, write_generation_config
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.export.card import CardFacts, render
from finetune_trainer.hub.models import fetch_model
from finetune_trainer.storage import open_store
from finetune_trainer.verification.numpy_reference import NumpyReference
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.stages import Stages
from tests.trainer.stores import BUCKET

QUESTION = "What is the capital of Italy?"
BASE = {"bos_token_id": 5, "do_sample": False}


def generation(folder: Path) -> Any:
    return json.loads((folder / "generation_config.json").read_text())


@pytest.mark.parametrize(
    ("own", "stops", "written"),
    [
        ({**BASE, "eos_token_id": 4}, [4, 3], {**BASE, "eos_token_id": [4, 3]}),
        ({**BASE, "eos_token_id": [4, 7]}, [4, 7, 3], {**BASE, "eos_token_id": [4, 7, 3]}),
        (BASE, [3], {**BASE, "eos_token_id": 3}),
        (None, [3], {"bos_token_id": 5, "eos_token_id": 3}),
        (None, [4, 3], {"bos_token_id": 5, "eos_token_id": [4, 3]}),
        (None, [], {"bos_token_id": 5, "eos_token_id": 3}),
    ],
    ids=["one more", "more than two", "none in the file", "no file", "no file, one more", "nothing trained"],
)
def test_a_generation_config_gets_the_stop_tokens_that_it_lacks(
    own: dict[str, Any] | None, stops: list[int], written: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"bos_token_id": 5, "eos_token_id": 3, "hidden_size": 8})
    )
    if own is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(own))
    (tmp_path / "out").mkdir()
    write_generation_config(tmp_path / "out", tmp_path, stops)
    assert generation(tmp_path / "out") == written


@pytest.mark.parametrize("stops", [[], [3], [4, 3]])
def test_a_generation_config_that_stops_already_is_copied_byte_for_byte(
    stops: list[int], tmp_path: Path
) -> None:
    text = '{"eos_token_id":[4,  3], "top_p": 0.90}'
    (tmp_path / "generation_config.json").write_text(text)
    (tmp_path / "out").mkdir()
    write_generation_config(tmp_path / "out", tmp_path, stops)
    assert (tmp_path / "out/generation_config.json").read_text() == text


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_generation_config_that_cannot_be_read_is_written_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 1}, "eos_token_id": 9}))
    (tmp_path / "generation_config.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "out").mkdir()
    write_generation_config(tmp_path / "out", tmp_path, [1, 106])
    assert generation(tmp_path / "out") == {"eos_token_id": [1, 106]}


@pytest.mark.parametrize("own", [[[4]], [4, [3]], {"a": 4}, "4", ["4"], 4.0, True, -1, None], ids=str)
def test_stop_tokens_of_a_wrong_type_are_none(own: Any, tmp_path: Path) -> None:
    """They must not end a stage after the training, whose results are paid for."""
    (tmp_path / "generation_config.json").write_text(json.dumps({**BASE, "eos_token_id": own}))
    (tmp_path / "out").mkdir()
    write_generation_config(tmp_path / "out", tmp_path, [4, 3])
    assert generation(tmp_path / "out") == {**BASE, "eos_token_id": [4, 3]}


@pytest.mark.parametrize("text", [None, "x", [], {"eos_token_id": 4, "bos_token_id": [[5]]}], ids=str)
def test_a_generation_config_is_derived_from_any_config_that_can_be_read(text: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "pad_token_id": 0}))
    (tmp_path / "out").mkdir()
    write_generation_config(tmp_path / "out", tmp_path, [4])
    assert generation(tmp_path / "out") == {"pad_token_id": 0, "eos_token_id": 4}


@pytest.mark.parametrize(
    ("own", "written"),
    [
        ({"dtype": "float16"}, {"dtype": "float32"}),
        ({"torch_dtype": "float16"}, {"torch_dtype": "float32"}),
        ({"torch_dtype": "float16", "dtype": "float16"}, {"torch_dtype": "float32", "dtype": "float32"}),
        ({"text_config": {"dtype": "float16"}}, {"text_config": {"dtype": "float32"}, "dtype": "float32"}),
        ({"text_config": {}}, {"text_config": {}, "dtype": "float32"}),
    ],
    ids=str,
)
def test_every_dtype_in_the_config_is_the_exported_one(
    own: dict[str, Any], written: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "out").mkdir()
    write_config(tmp_path / "out", tmp_path, "FP32")
    assert json.loads((tmp_path / "out/config.json").read_text()) == written


@pytest.mark.parametrize("place", ["file", "gs"])
def test_the_terms_of_a_model_are_exported_under_whatever_name(
    tmp_path: Path, place: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", TinyModelSpec())
    terms = {"LICENSE", "LICENSE.txt", "LICENSE-MODEL", "LICENCE", "NOTICE.txt", "Notice", "USE_POLICY.md"}
    for name in terms:
        (folder / name).write_text(name)
    uri = f"file://{folder}"
    if place == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
        uri = f"gs://{BUCKET}/{tmp_path.name}"
        open_store().upload_folder(folder, uri)
    found = fetch_model(ModelSource(uri=uri), tmp_path / "scratch", open_store(), weights=False)
    (tmp_path / "out").mkdir()
    copy_files(tmp_path / "out", found.path, found.tokenizer_path)
    assert terms < {path.name for path in (tmp_path / "out").iterdir()}


def test_the_card_of_an_adapter_shows_how_a_server_stops() -> None:
    facts = CardFacts(name="tuned", base_model="acme/base", base_revision="abc")
    adapter, merged = (
        render(facts, licence=None, rank=rank, dtype="BF16", stops={4: "<eos>", 3: "<|im_end|>"})
        for rank in (8, None)
    )
    assert "4 (`<eos>`), 3 (`<|im_end|>`)" in adapter
    assert "--generation-config THIS_FOLDER" in adapter
    assert '"stop_token_ids": [4, 3]' in adapter
    assert "4 (`<eos>`), 3 (`<|im_end|>`)" in merged
    assert "stop_token_ids" not in merged


@pytest.fixture(scope="module")
def base(stages: Stages, converted: str) -> dict[str, Any]:
    """The part of a request that names a base model: its files stop at <eos>, and the template closes with <|im_end|>.

    The weights are those of ``converted``.
    """
    folder = shutil.copytree(stages.root / "models/qwen3", stages.root / "models/base")
    for name, changes in (
        ("config.json", {"eos_token_id": EOS}),
        ("generation_config.json", {"eos_token_id": EOS}),
        ("tokenizer_config.json", {"eos_token": "<eos>"}),
    ):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | changes))
    return {"model": {"uri": f"file://{folder}"}, "converted": converted}


@pytest.fixture(scope="module")
def exported(stages: Stages, base: dict[str, Any]) -> dict[str, Path]:
    """The folders of an export after a short training, by name."""
    method = {"lora": {"rank": 16, "alpha": 32.0}}
    asked = {**base, "method": method, "hyperparameters": {"steps": 60, "learning_rate": 2e-2}}
    trained = stages.run("Train", "ends", **asked).details
    assert isinstance(trained, TrainOutcome)
    assert trained.end_ids == [TURN_END]
    made = stages.run(
        "Export", "ends", **asked, train_step=60, end_ids=trained.end_ids, export={"content": "Both", "dtype": "FP32"}
    ).details  # fmt: skip
    assert isinstance(made, ExportOutcome)
    return {each.name: Path(each.uri.removeprefix("file://")) for each in made.artifacts}


def stops_at(folder: Path, question: str, limit: int, stops: list[int]) -> int | None:
    """The token of ``stops`` at which greedy decoding with the folder's files ends; None if it runs to ``limit``."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plan = families.read(folder)
    weights = open_weights(folder, plan)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    for _ in range(limit):
        ((_, (logits,)),) = NumpyReference(folder, weights.read, [ids]).logits()
        ids = [*ids, int(logits[-1].argmax())]
        if ids[-1] in stops:
            return int(ids[-1])
    return None


def test_a_tuned_base_model_stops_by_its_own_files(exported: dict[str, Path]) -> None:
    """With the base model's only stop token it would run on."""
    folder = exported["model"]
    assert stops_at(folder, QUESTION, 40, generation(folder)["eos_token_id"]) == TURN_END
    assert stops_at(folder, QUESTION, 40, [EOS]) is None


@pytest.mark.parametrize("name", ["model", "adapter"])
def test_all_exports_of_a_tuned_base_model_carry_what_a_server_needs_to_stop(
    exported: dict[str, Path], base: dict[str, Any], name: str
) -> None:
    folder, source = exported[name], Path(base["model"]["uri"].removeprefix("file://"))
    assert generation(folder) == generation(source) | {"eos_token_id": [EOS, TURN_END]}
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / file).read_bytes() == (source / file).read_bytes()
    assert f"{TURN_END} (`<|im_end|>`)" in (folder / "README.md").read_text()
    if name == "model":
        config = json.loads((source / "config.json").read_text())
        assert json.loads((folder / "config.json").read_text()) == config | {"dtype": "float32"}
