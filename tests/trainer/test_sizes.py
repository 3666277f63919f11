"""The sizes of the parts of published models, and that a common node has enough memory for their stages on CPU."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import ModelSizes, ModelSource, host_memory
from finetune_trainer import families
from finetune_trainer.families.plan import ModelPlan
from finetune_trainer.hub.models import fetch_model
from finetune_trainer.storage import open_store
from finetune_trainer.training import flops
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.snapshots import check

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
#: Memory in GiB that GKE leaves to pods on a node with 16 GiB and on one with 32 GiB.
NODE_16, NODE_32 = 13.3, 28.3
LLAMA: Mapping[str, object] = {"head_dim": 128, "num_key_value_heads": 8, "tie_word_embeddings": False}
QWEN3: Mapping[str, object] = {"head_dim": 128, "num_key_value_heads": 8, "tie_word_embeddings": False}
#: For each model, a published model of its family and the fields that differ.
OTHERS: dict[str, tuple[str, dict[str, object]]] = {
    "Llama-3.1-8B": ("Llama-3.2-1B-Instruct", {
        **LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    }),
    "Llama-3.1-70B": ("Llama-3.2-1B-Instruct", {
        **LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    }),
    "Qwen3-14B": ("Qwen3-4B-2507", {
        **QWEN3, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
        "layer_types": ["full_attention"] * 40, "max_window_layers": 40,
    }),
    "Qwen3-235B-A22B": ("Qwen3-30B-A3B", {
        "hidden_size": 4096, "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64,
    }),
}  # fmt: skip


def test_sizes_of_published_models_are_those_that_the_operator_reads() -> None:
    """tests/unit/planning/test_model_shape.py holds the operator to the same file."""
    found = {}
    for name, published in PUBLISHED.items():
        plan = families.resolve(published["config"])
        figures = plan.sizes().model_dump(exclude={"weights_bytes"})
        forward = flops.forward_flops(plan, rows=1, length=1)
        attention = plan.layers * plan.heads * (plan.latent.value_dim if plan.latent else plan.head_dim)
        attention += plan.layers * plan.heads * plan.head_dim
        found[name] = {"parameters": plan.parameters, **figures, "matrices": round((forward - attention) / 2)}
    check(Path(__file__).parent / "golden" / "model_sizes.json", json.dumps(found, indent=1) + "\n")


def plan_of(name: str, folder: Path, **changed: object) -> ModelPlan:
    base, differs = OTHERS.get(name, (name, {}))
    config: dict[str, Any] = {**PUBLISHED[base]["config"], **differs, **changed}
    (folder / "config.json").write_text(json.dumps(config))
    return families.read(folder)


@pytest.mark.parametrize(
    ("name", "billions", "piece", "left"),
    [
        ("Llama-3.1-8B", 8.03, 128256 * 4096, NODE_16),
        ("Llama-3.1-70B", 70.55, 128256 * 8192, NODE_32),
        ("Qwen3-14B", 14.77, 151936 * 5120, NODE_32),
        ("Qwen3-30B-A3B", 30.53, 151936 * 2048, NODE_16),
        ("Qwen3-235B-A22B", 235.09, 128 * 1536 * 4096, NODE_32),
        ("gemma-3-27b-it", 27.01, 262208 * 5376, NODE_32),
        ("Mixtral-8x7B-v0.1", 46.70, 8 * 14336 * 4096, NODE_16),
        ("DeepSeek-V2-Lite", 15.71, 102400 * 2048, NODE_16),
    ],
)
def test_the_stages_of_a_published_model_fit_a_common_node_by_its_largest_piece(
    name: str, billions: float, piece: int, left: float, tmp_path: Path
) -> None:
    plan = plan_of(name, tmp_path)
    assert plan.parameters / 1e9 == pytest.approx(billions, abs=0.006)
    assert plan.sizes().largest_piece == piece
    assert (host_memory.FIXED + host_memory.PIECE * piece) / 2**30 <= left - 1, "1 GiB is left for DaemonSets"


def test_the_parts_of_a_dense_model(tmp_path: Path) -> None:
    assert plan_of("Llama-3.1-8B", tmp_path).sizes(weights_bytes=7) == ModelSizes(
        largest_piece=128256 * 4096,
        largest_stack=32 * 14336 * 4096,
        largest_block=2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096,
        lora_width=32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)),
        weights_bytes=7,
    )


def test_the_experts_of_a_layer_are_one_piece_and_those_of_all_layers_one_stack(tmp_path: Path) -> None:
    found = plan_of("Mixtral-8x7B-v0.1", tmp_path).sizes()
    assert found.largest_stack == 32 * found.largest_piece == 32 * 8 * 14336 * 4096
    assert found.lora_width == 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024)), "only attention has adapters"


def test_gemma_3_stacks_every_sixth_layer(tmp_path: Path) -> None:
    plan = plan_of("gemma-3-27b-it", tmp_path)
    found = plan.sizes()
    assert (plan.layers, plan.block_layers) == (62, 6)
    assert found.largest_stack == 11 * 21504 * 5376, "ten blocks, and a remainder that counts as one"
    assert found.largest_block > 6 * 3 * 21504 * 5376


@pytest.mark.parametrize("shards", [1, 2])
def test_preflight_counts_the_bytes_of_the_weight_files_without_fetching_them(
    shards: int, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", TinyModelSpec(family="llama", shards=shards))
    found = fetch_model(
        ModelSource(uri=f"file://{tmp_path}/model"), tmp_path / "scratch", open_store(), weights=False
    )
    files = list((tmp_path / "model").glob("*.safetensors"))
    assert len(files) == shards
    reported = found.identity(families.read(found.path)).sizes
    assert reported is not None
    assert reported.weights_bytes == sum(file.stat().st_size for file in files)
