"""Headers of weight files, compared with config.json."""

import json
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from finetune_contract import ExitCode
from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.errors import StageError
from tests.doubles.tiny_models import TinyModelSpec, write_model


def failure(folder: Path) -> StageError:
    with pytest.raises(StageError) as caught:
        open_weights(folder, families.read(folder), where="gs://m/x")
    assert "gs://m/x" in str(caught.value)
    return caught.value


def rewrite(folder: Path, **changes: np.ndarray | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, array in changes.items():
        tensors.pop(name, None)
        if array is not None:
            tensors[name] = array
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_dtype_and_sharding_reads_back(tmp_path: Path, dtype: str, shards: int) -> None:
    folder = write_model(tmp_path, TinyModelSpec(dtype=dtype, shards=shards))
    weights = open_weights(folder, families.read(folder))
    assert weights.read("model.layers.1.mlp.up_proj.weight").dtype == dtype
    assert weights.dtypes == {{"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[dtype]}


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec())
    rewrite(folder, **{"model.norm.weight": None})
    assert failure(folder).actual == "no model.norm.weight"


def test_experts_that_lie_in_one_tensor_are_named_beside_what_is_missing(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec(family="qwen3-moe", layers=1))
    apart = {
        f"model.layers.0.mlp.experts.{expert}.{part}_proj.weight": None
        for expert, part in product(range(4), ("gate", "up", "down"))
    }
    stacked = {
        f"model.layers.0.mlp.experts.{part}": np.zeros((4, 64, 64)) for part in ("gate_up_proj", "down_proj")
    }
    rewrite(folder, **apart, **stacked)
    assert failure(folder).actual == (
        "no model.layers.0.mlp.experts.0.gate_proj.weight, "
        "but model.layers.0.mlp.experts.down_proj, model.layers.0.mlp.experts.gate_up_proj"
    )


def test_a_tensor_the_architecture_does_not_have_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec())
    rewrite(folder, **{"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)})
    assert "q_proj.bias" in failure(folder).actual


def test_another_shape_than_config_json_says_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec())
    rewrite(folder, **{"model.norm.weight": np.zeros(65, np.float32)})
    error = failure(folder)
    assert (error.actual, error.expected) == ("(65,)", "(64,)")


@pytest.mark.parametrize(("dtype", "actual"), [(np.int8, "I8"), (ml_dtypes.float8_e4m3fn, "F8_E4M3")])
def test_quantized_weights_are_refused(tmp_path: Path, dtype: type, actual: str) -> None:
    folder = write_model(tmp_path, TinyModelSpec())
    rewrite(folder, **{"model.norm.weight": np.zeros(64, dtype)})
    error = failure(folder)
    assert (error.actual, error.expected) == (actual, "BF16, F16, F32")
    assert error.where == "gs://m/x/model.safetensors: model.norm.weight"
    assert "bfloat16" in error.fix


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec())
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert failure(folder).reason == "WeightsMismatch"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec(shards=2))
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = failure(folder)
    assert error.code is ExitCode.INPUT_MISSING
    assert "model-00002-of-00002" in error.where


@pytest.mark.parametrize(
    "index",
    ["{", "{}", '{"weight_map": 3}', "[" * 200_000, '{"weight_map": ' + "[" * 200_000],
    ids=["no JSON", "empty", "a number", "deep", "a deep map"],
)
def test_an_unreadable_index_is_named(tmp_path: Path, index: str) -> None:
    folder = write_model(tmp_path, TinyModelSpec(shards=2))
    (folder / "model.safetensors.index.json").write_text(index)
    assert "index" in failure(folder).where


@pytest.mark.parametrize(
    "name", ["/abs/x.safetensors", "../x.safetensors", "below/x.safetensors", "..", "", "a\0b"]
)
def test_an_index_that_names_a_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, TinyModelSpec(shards=2))
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = name
    index.write_text(json.dumps(content))
    error = failure(folder)
    assert (error.reason, error.actual) == ("WeightsMismatch", repr(name))
    assert error.where == "gs://m/x/model.safetensors.index.json: model.norm.weight"


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def reshard(folder: Path, file: str, **tensors: np.ndarray) -> None:
    """Adds tensors to a shard and leaves the index unchanged."""
    save_file({**load_file(folder / file), **tensors}, folder / file)


@pytest.mark.parametrize("architecture", ["llama", "gemma3-multimodal"])
@pytest.mark.parametrize("name", ["listed for another shard", "listed nowhere", "unlisted though needed"])
def test_a_tensor_that_the_index_does_not_assign_to_its_shard_is_refused(
    tmp_path: Path, name: str, architecture: str
) -> None:
    """transformers loads complete shards, even if the index assigns a tensor to another one."""
    folder = write_model(tmp_path, TinyModelSpec(family=architecture, shards=2))
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    tensor, shard = next(iter(content["weight_map"].items()))
    if name == "unlisted though needed":
        content["weight_map"].pop(tensor)
        index.write_text(json.dumps(content))
    else:
        (other,) = {*SHARDS} - {shard}
        tensor, shard = (tensor if name == "listed for another shard" else f"{tensor}.bias"), other
        reshard(folder, shard, **{tensor: np.zeros((2, 2), np.float32)})
    error = failure(folder)
    assert (error.reason, error.where) == ("WeightsMismatch", f"gs://m/x/{shard}: {tensor}")
    assert "index does not list" in error.what


def test_what_does_no_harm_in_one_file_does_none_in_shards(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec(family="qwen3", shards=2))
    whole = open_weights(folder, families.read(folder))
    embeddings = whole.read("model.embed_tokens.weight")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8)}
    for shard in SHARDS:
        reshard(folder, shard, **buffer)
    reshard(folder, SHARDS[1], **{"lm_head.weight": embeddings})
    assert set(open_weights(folder, families.read(folder)).text) == set(whole.text)
    reshard(folder, SHARDS[1], **{"lm_head.weight": embeddings + 1})
    assert "ties the embeddings" in failure(folder).what
    reshard(folder, SHARDS[0], **{"lm_head.weight": embeddings})
    assert "twice" in failure(folder).what


def test_a_shard_without_a_tensor_that_the_index_lists_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec(shards=2))
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    (file,) = {*SHARDS} - {content["weight_map"]["model.norm.weight"]}
    content["weight_map"]["model.norm.weight"] = file
    index.write_text(json.dumps(content))
    error = failure(folder)
    assert error.where.startswith("gs://m/x/model-0000")
    assert "model.norm.weight" in error.actual


def test_one_tensor_under_two_spellings_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec(family="gemma3-multimodal", spelling="v4"))
    rewrite(folder, **{"model.language_model.norm.weight": np.zeros(64, np.float32)})
    assert "twice" in failure(folder).what


def test_weights_in_another_format_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = failure(folder)
    assert error.code is ExitCode.INPUT_MISSING
    assert error.actual == "pytorch_model.bin"


TIED = ["qwen3", "gemma2", "gemma3-multimodal"]


@pytest.mark.parametrize("family", TIED)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_copy_of_tied_embeddings_and_old_buffers_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, dtype: str
) -> None:
    monkeypatch.setattr("finetune_trainer.checkpoints.weights._PIECE", 1000)
    folder = write_model(tmp_path, TinyModelSpec(family=family))
    embeddings = open_weights(folder, families.read(folder)).read("model.embed_tokens.weight")
    rewrite(
        folder,
        **{
            "lm_head.weight": embeddings.astype(dtype),
            "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8),
        },
    )
    assert "lm_head.weight" not in open_weights(folder, families.read(folder)).text


@pytest.mark.parametrize("family", TIED)
@pytest.mark.parametrize("difference", ["last value", "rows", "dtype"])
def test_an_output_layer_of_its_own_beside_tied_embeddings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, difference: str
) -> None:
    """transformers uses the separate output layer; its values are compared if they are available."""
    monkeypatch.setattr("finetune_trainer.checkpoints.weights._PIECE", 1000)
    folder = write_model(tmp_path, TinyModelSpec(family=family))
    head = open_weights(folder, families.read(folder)).read("model.embed_tokens.weight").copy()
    if difference == "last value":
        head[-1, -1] += 1
    else:
        head = head[:-1] if difference == "rows" else np.zeros(head.shape, np.int8)
    rewrite(folder, **{"lm_head.weight": head})
    error = failure(folder)
    assert error.reason == "WeightsMismatch"
    assert error.where == "gs://m/x/model.safetensors: lm_head.weight"
    assert ("tie_word_embeddings to false" in error.fix) == (family == "qwen3")
    open_weights(folder, families.read(folder), headers_only=True)


def test_parts_for_images_are_kept_apart(tmp_path: Path) -> None:
    folder = write_model(tmp_path, TinyModelSpec(family="gemma3-multimodal", spelling="v4"))
    weights = open_weights(folder, families.read(folder))
    assert set(weights.foreign) == {
        "multi_modal_projector.mm_input_projection_weight",
        "multi_modal_projector.mm_soft_emb_norm.weight",
    }
    assert weights.text["model.norm.weight"].name == "language_model.model.norm.weight"
    assert json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"] == 512


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0", "C64"])
def test_a_part_for_images_that_export_could_not_copy_is_refused_before_training(
    tmp_path: Path, dtype: str
) -> None:
    folder = write_model(tmp_path, TinyModelSpec(family="gemma3-multimodal", spelling="v4"))
    file = folder / "model.safetensors"
    content = file.read_bytes()
    past = 8 + int.from_bytes(content[:8], "little")
    size = len(content) - past
    header = json.loads(content[8:past])
    header["vision_tower.scale"] = {"dtype": dtype, "shape": [0], "data_offsets": [size, size]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[past:])
    error = failure(folder)
    assert (error.reason, error.actual) == ("WeightsMismatch", dtype)
    assert error.where == "gs://m/x/model.safetensors: vision_tower.scale"
