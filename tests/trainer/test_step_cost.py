"""Operations, bytes and duration of a train step, from sizes alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_trainer import families
from finetune_trainer.commands import compile as compile_cli
from finetune_trainer.compiled.compile_protocol import Candidate
from finetune_trainer.compiled.cost import StepCost, step_cost
from finetune_trainer.compiled.search import LAST_RESORT, REMAT
from finetune_trainer.training.flops import attention_flops, forward_flops, step_flops
from tests.memory_cases import cases, compile_arguments, model_config
from tests.trainer.requests import method as method_of
from tests.trainer.requests import request

LAYERS, HIDDEN, INNER, VOCABULARY, LENGTH, DEVICES = 4, 1024, 3072, 8192, 1024, 4
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": VOCABULARY, "tie_word_embeddings": False,
}  # fmt: skip
QUERIES, KEYS = HIDDEN * 1024, HIDDEN * 512
BATCH = 8
ONE_DEVICE: dict[str, Any] = {"data": 1, "fsdp": 1, "tensor": 1}


def cost(
    remat: dict[str, str] | None = None, *, mesh: dict[str, int] | None = None, **changes: Any
) -> StepCost:
    """Returns the cost on one device, of a batch of eight rows of 1,024 tokens in bfloat16."""
    config, batch = changes.pop("config", {}), changes.pop("batch", BATCH)
    axes = mesh or {"fsdp": DEVICES}
    base: dict[str, Any] = {
        "mesh": {"hosts": 1, "chips_per_host": 4, **axes},
        "data": {"max_seq_length": LENGTH, "packing": "method" not in changes},
    }
    numbers = {
        "compute_precision": "BF16",
        "weight_precision": "FP32",
        "global_batch_size": batch,
        "optimizer": "AdamW",
    }
    base["hyperparameters"] = numbers | changes.pop("hyperparameters", {})
    made = request(Path("/tmp"), "Preflight", **{**base, **changes})
    place = {"name": "v6e-4", "family": "v6e", "topology": "2x2", "hosts": 1, "chips": 4, "devices": 4}
    candidate = Candidate.model_validate(
        {
            "slice": place,
            "mesh": made.mesh,
            "global_batch": batch,
            "tuning": REMAT[0] if remat is None else remat,
        }
    )
    return step_cost(families.resolve(CONFIG | config), made, candidate)


PLAN = families.resolve(CONFIG)
TOKENS = BATCH * LENGTH / DEVICES
ATTENTION = BATCH * attention_flops(PLAN, LENGTH) / DEVICES
STEP = step_flops(PLAN, method_of(), rows=BATCH, length=LENGTH) / DEVICES


def test_a_step_is_the_models_arithmetic_and_the_scores_that_kernels_compute_again() -> None:
    assert cost().flops == pytest.approx(STEP + 1.5 * ATTENTION)


@pytest.mark.parametrize(
    ("remat", "weights"),
    [
        (REMAT[1], QUERIES + 2 * HIDDEN * INNER),
        (REMAT[2], 2 * QUERIES + 2 * KEYS + 2 * HIDDEN * INNER),
        (LAST_RESORT, 2 * QUERIES + 2 * KEYS + 2 * HIDDEN * INNER),
    ],
)
def test_a_policy_adds_what_it_does_not_keep(remat: dict[str, str], weights: int) -> None:
    """The MLP's last product is not computed again: no gradient needs its result."""
    added = cost(remat).flops - cost().flops
    assert added == pytest.approx(2 * TOKENS * LAYERS * weights + ATTENTION)


def test_the_policies_of_the_search_are_in_the_order_of_their_durations() -> None:
    durations = [cost(dict(remat)).seconds("v6e") for remat in REMAT]
    assert durations == sorted(durations)  # type: ignore[type-var]
    assert len(set(durations)) == len(REMAT)


@pytest.mark.parametrize(
    "settings", [{"remat_policy": "minimal"}, {"remat_policy": "custom", "context": "device"}]
)
def test_of_a_policy_of_the_users_own_nothing_is_known_to_be_computed_again(settings: dict[str, str]) -> None:
    assert cost({}, engine_overrides=settings).flops == cost().flops


def test_logits_in_pieces_are_computed_again() -> None:
    tiled = cost({**REMAT[0], "num_vocab_tiling": "8"}).flops
    assert tiled - cost().flops == pytest.approx(2 * TOKENS * HIDDEN * VOCABULARY)


def test_where_results_are_normalized_every_product_is_computed_again() -> None:
    gemma: dict[str, Any] = {
        "architectures": ["Gemma2ForCausalLM"],
        "sliding_window": LENGTH,
        "query_pre_attn_scalar": 128,
    }
    gemma["tie_word_embeddings"] = True
    plan = families.resolve(CONFIG | gemma)
    added = cost(dict(REMAT[2]), config=gemma).flops - cost(config=gemma).flops
    layers = plan.matrices - plan.embedding
    assert added == pytest.approx(2 * TOKENS * layers + BATCH * attention_flops(plan, LENGTH) / DEVICES)


def test_only_answers_of_pairs_have_logits_and_a_reference_is_one_more_pass() -> None:
    pairs = {"max_prompt_length": LENGTH // 2}
    orpo, dpo = (cost(method={"type": kind, **pairs}) for kind in ("ORPO", "DPO"))
    prompts = 2 * TOKENS * (1 - 1 / 2) * HIDDEN * VOCABULARY
    assert orpo.flops == pytest.approx(2 * (STEP + 1.5 * ATTENTION) - 6 * prompts)
    forward = 2 * forward_flops(PLAN, rows=BATCH, length=LENGTH) / DEVICES
    assert dpo.flops - orpo.flops == pytest.approx(forward - 2 * prompts)
    assert dpo.network_bytes > orpo.network_bytes


def test_an_adapter_has_no_gradients_of_the_base() -> None:
    lora = cost(method={"lora": {"rank": 8, "alpha": 16.0}})
    assert 0.6 < lora.flops / cost().flops < 0.75
    assert lora.network_bytes < cost().network_bytes
    assert lora.state_bytes < cost().state_bytes
    base = cost(method={"lora": {"rank": 8, "alpha": 16.0, "quantization": "NF4"}})
    assert lora.state_bytes - base.state_bytes == pytest.approx(3.5 * PLAN.layer_parameters / DEVICES)


WEIGHTS = PLAN.layer_parameters + PLAN.embedding


def test_devices_gather_weights_and_add_up_gradients() -> None:
    assert cost(mesh=ONE_DEVICE).network_bytes == 0
    fsdp = cost(mesh={"fsdp": 4})
    assert fsdp.network_bytes == pytest.approx(4 * 2 * WEIGHTS)
    parts = cost(hyperparameters={"gradient_accumulation_steps": 2})
    assert parts.network_bytes == pytest.approx(2 * fsdp.network_bytes)
    copies = cost(mesh={"data": 4, "fsdp": 1})
    assert copies.network_bytes == pytest.approx(4 * PLAN.parameters)
    assert copies.state_bytes == pytest.approx(4 * fsdp.state_bytes)


def test_devices_that_share_rows_exchange_activations_and_fewer_weights() -> None:
    shared = cost(mesh={"fsdp": 2, "tensor": 2})
    hidden = BATCH / 2 * LENGTH * HIDDEN * 2
    assert shared.network_bytes == pytest.approx(4 * 2 * WEIGHTS / 2 + 12 * LAYERS * hidden)
    assert shared.flops == pytest.approx(cost().flops)


def test_no_step_is_faster_than_its_arithmetic_or_its_state() -> None:
    busy = StepCost(flops=918e12, hbm_bytes=1638e9, network_bytes=224e9, state_bytes=1000)
    assert busy.seconds("v6e") == (pytest.approx(1.0), pytest.approx(3.0))
    idle = StepCost(flops=0, hbm_bytes=0, network_bytes=0, state_bytes=1638e9)
    assert idle.seconds("v6e") == (pytest.approx(1.0), pytest.approx(1.0))
    assert busy.seconds("tpu7") is None, "no rates are published"


#: Operations, bytes of memory and of network of one step on one device, as counted in the text of the programs that
#: libtpu 0.0.44.1 compiled for cases of ``tests/memory_cases.json``, with bodies of loops as often as they run.
COUNTED: list[tuple[str, dict[str, Any], tuple[float, float, float]]] = [
    ("f01", {}, (2.292e13, 1.493e11, 3.198e9)),
    ("f10", {}, (1.389e14, 9.064e11, 4.667e10)),
    ("f10", {"tensor": 2}, (1.387e14, 5.235e11, 4.648e10)),
    ("f10", {"remat": "save_qkv_proj"}, (1.764e14, 8.293e11, 4.613e10)),
    ("f12", {}, (1.831e14, 9.319e11, 4.610e10)),
    (
        "f12",
        {"model": "Llama-3.2-1B-Instruct", "slice": "v5p:4x4x4", "batch": 64},
        (1.584e13, 1.419e11, 9.664e9),
    ),
    ("f13", {}, (1.991e14, 1.149e12, 6.991e10)),
    ("f14", {}, (1.949e14, 6.123e11, 6.834e10)),
]


@pytest.mark.parametrize(("name", "changes", "figures"), COUNTED)
def test_the_estimate_is_near_the_count_of_the_compiled_program(
    name: str, changes: dict[str, Any], figures: tuple[float, float, float], tmp_path: Path
) -> None:
    """``docs/compiled-proof.md`` has the table."""
    case = next(each for part in cases().values() for each in part if each["name"] == name) | changes
    (tmp_path / "config.json").write_text(json.dumps(model_config(case["model"])))
    options = compile_cli._parser().parse_args(["--model", str(tmp_path), *compile_arguments(case)])
    candidate = compile_cli._candidate(options)
    made = compile_cli._request(options, candidate, str(tmp_path))
    estimate, family = step_cost(families.read(tmp_path), made, candidate), candidate.slice.family
    flops, memory, network = figures
    counted = StepCost(flops=flops, hbm_bytes=memory, network_bytes=network, state_bytes=0).seconds(family)
    found = estimate.seconds(family)
    assert counted is not None
    assert found is not None
    assert found[0] == pytest.approx(counted[0], rel=0.01)
    assert found[1] == pytest.approx(counted[1], rel=0.11)
