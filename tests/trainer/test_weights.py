"""Headers of the weights against config.json."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from devcluster.fixtures.tiny_models import Spec, write_model
from finetune_contract import ExitCode
from finetune_trainer import families
from finetune_trainer.errors import StageError
from finetune_trainer.weights import open_weights


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
    folder = write_model(tmp_path, Spec(dtype=dtype, shards=shards))
    weights = open_weights(folder, families.read(folder))
    assert weights.read("model.layers.1.mlp.up_proj.weight").dtype == dtype
    assert weights.dtypes == {{"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[dtype]}


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec())
    rewrite(folder, **{"model.norm.weight": None})
    assert failure(folder).saw == "no model.norm.weight"


def test_a_tensor_the_architecture_does_not_have_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec())
    rewrite(folder, **{"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)})
    assert "q_proj.bias" in failure(folder).saw


def test_another_shape_than_config_json_says_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec())
    rewrite(folder, **{"model.norm.weight": np.zeros(65, np.float32)})
    error = failure(folder)
    assert (error.saw, error.expected) == ("(65,)", "(64,)")


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec())
    rewrite(folder, **{"model.norm.weight": np.zeros(64, np.int8)})
    assert failure(folder).saw == "I8"


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec())
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert failure(folder).reason == "WeightsMismatch"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec(shards=2))
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = failure(folder)
    assert error.code is ExitCode.INPUT_MISSING
    assert "model-00002-of-00002" in error.where


@pytest.mark.parametrize("index", ["{", "{}", '{"weight_map": 3}'])
def test_an_unreadable_index_is_named(tmp_path: Path, index: str) -> None:
    folder = write_model(tmp_path, Spec(shards=2))
    (folder / "model.safetensors.index.json").write_text(index)
    assert "index" in failure(folder).where


def test_weights_in_another_format_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = failure(folder)
    assert error.code is ExitCode.INPUT_MISSING
    assert error.saw == "pytorch_model.bin"


def test_a_copy_of_tied_embeddings_and_old_buffers_do_no_harm(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec())
    rewrite(
        folder,
        **{
            "lm_head.weight": np.zeros((512, 64), np.float32),
            "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8),
        },
    )
    assert "lm_head.weight" not in open_weights(folder, families.read(folder)).text


def test_parts_for_images_are_kept_apart(tmp_path: Path) -> None:
    folder = write_model(tmp_path, Spec(family="gemma3-multimodal", spelling="v4"))
    weights = open_weights(folder, families.read(folder))
    assert set(weights.foreign) == {
        "multi_modal_projector.mm_input_projection_weight",
        "multi_modal_projector.mm_soft_emb_norm.weight",
    }
    assert weights.text["model.norm.weight"].name == "language_model.model.norm.weight"
    assert json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"] == 512
