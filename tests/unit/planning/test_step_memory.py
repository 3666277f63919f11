"""The estimate of a step's memory, held to steps that the TPU compiler has compiled."""

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import MeshSpec
from finetune_operator.planning.estimate.activations import POLICIES, kept_values, layer_values
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.estimate.step_memory import TrainStep, step_memory
from finetune_operator.planning.estimate.training_memory import HIGHEST_ERROR, LOWEST_ERROR, MEDIAN_ERROR
from tests.memory_cases import Case, cases, described, model_config
from tests.unit.planning.compiled_steps import estimated, relative_error, train_step

FIT, JUDGE = cases()["fit"], cases()["judge"]
KNOWN = {part: [case for case in rows if "compiled" in case] for part, rows in cases().items()}
#: At most; negative: the estimate is below the compiler.
MEDIAN, LEAST = 0.10, -0.05
MESH = MeshSpec(hosts=1, chips_per_host=4, fsdp=4)


def llama(**changed: object) -> TrainStep:
    step = TrainStep(
        model=ModelShape.of(model_config("Llama-3.2-1B-Instruct")),
        mesh=MESH, rows=2.0, width=2048, scored=2048, lora=None, pairs=False, reference=False, moments=2,
        accumulated=False, weight_bytes=4, value_bytes=2,
    )  # fmt: skip
    return replace(step, **changed)  # type: ignore[arg-type]


def test_twenty_steps_are_fitted_and_fifteen_others_judge() -> None:
    assert (len(FIT), len(JUDGE)) == (20, 15)
    assert len({described(case) for case in (*FIT, *JUDGE)}) == 35
    architectures = {train_step(case).model.architecture for case in JUDGE}
    assert len(architectures - {train_step(case).model.architecture for case in FIT}) >= 3
    assert {"DPO", "ORPO"} <= {case.get("method") for case in JUDGE}
    assert max(case["length"] for case in JUDGE) >= 32768


def test_all_are_compiled() -> None:
    assert (len(KNOWN["fit"]), len(KNOWN["judge"])) == (20, 15), (
        "python -m tests.bench.memory compiles the others"
    )


@pytest.mark.parametrize("part", ["fit", "judge"])
def test_the_estimate_is_close_to_the_compiler_and_hardly_ever_below_it(part: str) -> None:
    errors = {case["name"]: relative_error(case) for case in KNOWN[part]}
    assert median(map(abs, errors.values())) <= MEDIAN, errors
    assert min(errors.values()) >= LEAST, errors


def test_the_stated_error_is_that_of_the_judging_steps() -> None:
    errors = [100 * relative_error(case) for case in KNOWN["judge"]]
    assert median(map(abs, errors)) <= MEDIAN_ERROR
    assert min(errors) >= LOWEST_ERROR
    assert max(errors) <= HIGHEST_ERROR


@pytest.mark.parametrize("case", [*KNOWN["fit"], *KNOWN["judge"]], ids=lambda each: each["name"])
def test_the_state_is_what_the_step_begins_with(case: Case) -> None:
    held, found = case["compiled"].get("arguments"), estimated(case)
    assert case["compiled"]["peak"] > found.parameters + found.optimizer + found.reference
    if held is not None:
        # The compiler pads the shards of narrow models to its tiles: 144 columns of f03 take 256.
        assert found.parameters + found.optimizer + found.reference == pytest.approx(held, rel=0.15)


def test_the_values_of_a_layer() -> None:
    model = ModelShape.of(model_config("Llama-3.2-1B-Instruct"))
    found = layer_values(model, 0)
    assert (found.hidden, found.projections, found.context, found.inner, found.routed) == (
        2048,
        2048 + 2 * 512,
        2048,
        2 * 8192,
        0,
    )
    assert kept_values(model, "offload") == 0
    assert kept_values(model, "full") == 16 * 2048
    assert kept_values(model, "save_qkv_proj") == 16 * (2048 + 3072)
    assert kept_values(model, "minimal_with_context") == 16 * (3 * 2048 + 3072 + 2048 + 16384)


def test_layers_that_are_scanned_together_keep_one_input() -> None:
    model = ModelShape.of(model_config("gemma-3-1b-it"))
    assert kept_values(model, "full") == 5 * 1152, "26 layers in blocks of 6"


def test_only_the_chosen_experts_count() -> None:
    found = layer_values(ModelShape.of(model_config("Mixtral-8x7B-v0.1")), 0)
    assert (found.inner, found.routed) == (2 * 2 * 14336, 2 * 4096)


@given(
    rows=st.integers(1, 64),
    more=st.integers(1, 64),
    remat=st.sampled_from(POLICIES),
    pieces=st.sampled_from([1, 8]),
    pairs=st.booleans(),
    accumulated=st.booleans(),
)
def test_more_rows_never_need_less_and_more_pieces_never_more(
    rows: int, more: int, remat: str, pieces: int, pairs: bool, accumulated: bool
) -> None:
    step = llama(rows=float(rows), pairs=pairs, accumulated=accumulated)
    peak = step_memory(step, remat, pieces).peak
    assert step_memory(replace(step, rows=float(rows + more)), remat, pieces).peak >= peak
    assert step_memory(step, remat, 2 * pieces).peak <= peak


@given(rows=st.integers(1, 64), devices=st.sampled_from([1, 4, 16, 64]))
def test_policies_keep_less_and_less(rows: int, devices: int) -> None:
    step = llama(rows=float(rows), mesh=MESH.model_copy(update={"fsdp": devices}))
    kept = [kept_values(step.model, remat) for remat in POLICIES]
    assert kept == sorted(kept, reverse=True)
    peaks = [step_memory(step, remat, 8).peak for remat in ("save_qkv_proj", "full", "offload")]
    assert peaks == sorted(peaks, reverse=True)


def test_parts_add_up_and_only_a_trained_whole_model_has_all_gradients() -> None:
    step = llama()
    found = step_memory(step, "full", 8)
    assert found.parameters == step.model.parameters * 4 // 4
    assert found.optimizer == 2 * found.gradients == 2 * found.parameters
    parts = (
        found.parameters,
        found.reference,
        found.optimizer,
        found.gradients,
        found.activations,
        found.logits,
    )
    assert found.peak == sum(parts)
    assert found.logits == 0, "they are gone when the gradients of the layers exist"
    assert step_memory(step, "full", 1).gradients == 0, "whole logits are the peak, before any gradient"
