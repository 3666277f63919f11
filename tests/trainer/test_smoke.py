"""Preflight's smoke test: all stages of the job with a tiny model, before a slice is claimed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import PreflightOutcome, SmokeOutcome
from finetune_trainer import families
from finetune_trainer.stages import smoke
from finetune_trainer.verification import tiny_model
from tests.doubles.tiny_models import ARCHITECTURES, TinyModelSpec, config_of, write_model
from tests.trainer.requests import request
from tests.trainer.stages import Stages

#: Larger in every dimension than the tiny model that the smoke test derives from it.
LARGE = TinyModelSpec(
    hidden=256, heads=8, kv_heads=4, head_dim=32, intermediate=512, layers=12, experts=8, vocab=509
)
FAMILIES = tuple(ARCHITECTURES)


def tried(stages: Stages, run: str, **changes: Any) -> SmokeOutcome:
    changes.setdefault("smoke", {"steps": 3, "examples": 8})
    result = stages.run("Preflight", run, **changes)
    assert isinstance(result.details, PreflightOutcome), result.failure
    assert result.details.smoke is not None
    return result.details.smoke


@pytest.mark.parametrize("family", FAMILIES)
def test_a_miniature_is_small_and_of_the_same_kind(tmp_path: Path, family: Any) -> None:
    model = write_model(tmp_path / "model", replace(LARGE, family=family))
    plan = families.read(model)
    small = families.read(tiny_model.write(tmp_path / "small", model, plan, seed=0))
    assert (small.family, small.architecture, small.vocab_size) == (
        plan.family,
        plan.architecture,
        plan.vocab_size,
    )
    assert small.tied_embeddings == plan.tied_embeddings
    assert small.layers <= 6
    assert small.parameters < plan.parameters / 4
    sizes = {"base_emb_dim", "base_mlp_dim", "base_num_decoder_layers", "base_num_query_heads", "base_num_kv_heads",
             "head_dim", "num_experts", "base_moe_mlp_dim", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
             "v_head_dim"}  # fmt: skip
    assert {k: v for k, v in small.overrides.items() if k not in sizes} == {
        k: v for k, v in plan.overrides.items() if k not in sizes
    }


@pytest.mark.parametrize(("heads", "kv_heads", "small"), [(32, 8, 2), (32, 32, 4), (8, 1, 1), (64, 4, 2)])
def test_heads_share_keys_as_the_model_has_them(heads: int, kv_heads: int, small: int) -> None:
    config = config_of(replace(LARGE, heads=heads, kv_heads=kv_heads))
    assert tiny_model.shrink_config(config, families.resolve(config))["num_key_value_heads"] == small


def test_the_same_seed_makes_the_same_bytes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", LARGE)
    plan = families.read(model)
    first, second, other = (
        (tiny_model.write(tmp_path / str(i), model, plan, seed=seed) / "model.safetensors").read_bytes()
        for i, seed in enumerate((1, 1, 2))
    )
    assert first == second != other


def test_the_whole_chain_runs_in_small(stages: Stages) -> None:
    found = tried(
        stages, "smoke-full", data={"packing": True}, hyperparameters={"gradient_accumulation_steps": 4}
    )
    assert (found.steps, found.max_seq_length) == (3, 64)
    assert found.examples == 8
    assert found.first_loss == pytest.approx(6.2, abs=0.5), "the loss of 509 equally likely tokens"
    assert found.last_loss is not None
    left = {path.name for path in (stages.root / "smoke-full").iterdir()}
    assert left == {"attempts", "preflight"}, "the smoke test leaves no files in the run folder"


METHODS: dict[str, dict[str, Any]] = {
    "LoRA": {"method": {"lora": {"rank": 8, "alpha": 16.0}}, "export": {"content": "Both"}},
    "QLoRA": {"method": {"lora": {"rank": 4, "alpha": 8.0, "quantization": "NF4"}}},
    "DPO": {"method": {"type": "DPO", "max_prompt_length": 600}, "data": {"max_seq_length": 1024}},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tried_out_as_asked(stages: Stages, name: str, tmp_path: Path) -> None:
    changes = dict(METHODS[name])
    if name == "DPO":
        rows = tmp_path / "pairs.jsonl"
        pair = {"prompt": "What is the capital of France?", "chosen": "Paris.", "rejected": "Rome."}
        rows.write_text(
            "".join(json.dumps({**pair, "prompt": f"{i}. {pair['prompt']}"}) + "\n" for i in range(8))
        )
        source = {"path": "spec.datasets.train[0]", "name": "pairs", "uri": f"file://{rows}"}
        changes["data"] = {**changes["data"], "train": [source], "validation": []}
    assert tried(stages, f"smoke-{name}", **changes).last_loss is not None


@pytest.mark.thorough
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "qwen3"])
def test_every_family_is_tried_out(stages: Stages, family: Any, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", replace(LARGE, family=family))
    assert tried(stages, f"smoke-{family}", model={"uri": f"file://{model}"}).last_loss is not None


def test_what_fails_in_small_ends_preflight_with_the_stage_that_failed(stages: Stages) -> None:
    result = stages.run(
        "Preflight", "smoke-diverges", smoke={"steps": 3, "examples": 8},
        hyperparameters={"learning_rate": 1e30, "optimizer": "SGD", "max_grad_norm": 0.0},
    )  # fmt: skip
    assert result.failure is not None
    assert (result.failure.reason, result.failure.code) == ("Diverged", 70)
    assert result.failure.where.startswith("smoke test, Train: step ")


def test_rows_that_are_cut_away_are_tried_longer(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "long.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": f"{i} " * 60, "completion": "yes"}) + "\n" for i in range(8))
    )
    source = {"path": "spec.datasets.train[0]", "name": "train-0", "uri": f"file://{data}"}
    made = {"train": [source], "validation": [], "max_seq_length": 1024}
    found = tried(stages, "smoke-long", data=made)
    assert found.max_seq_length == 512, "the shortest length that the smoke test tries fits these rows"


def test_it_asks_for_nothing_of_the_slice(tmp_path: Path) -> None:
    made = request(
        tmp_path, "Preflight", smoke={"steps": 2, "examples": 4},
        mesh={"hosts": 4, "chips_per_host": 4, "fsdp": 16}, engine_overrides={"remat_policy": "full"},
        hyperparameters={"steps": None, "epochs": 3.0, "global_batch_size": 64, "gradient_accumulation_steps": 4},
        export={"destinations": [{"path": "spec.export.destinations[0]", "uri": "gs://elsewhere/model"}]},
        evaluation={"gates": [{"metric": "loss", "op": "LessOrEqual", "value": 0.1}]},
    )  # fmt: skip
    small = smoke.smoke_request(made, tmp_path / "m", tmp_path / "t", tmp_path / "small", devices=1)
    assert (
        small.mesh.devices,
        small.engine_overrides,
        small.export.destinations,
        small.evaluation.gates,
    ) == (1, {}, [], [])
    assert (small.hyperparameters.steps, small.hyperparameters.epochs) == (2, None)
    assert (small.hyperparameters.global_batch_size, small.hyperparameters.gradient_accumulation_steps) == (
        2,
        2,
    )
    assert small.run_folder.startswith(f"file://{tmp_path}/small/")
    assert [each.max_examples for each in (*small.data.train, *small.data.validation)] == [4, 4]
