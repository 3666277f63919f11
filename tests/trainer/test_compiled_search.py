"""Which candidates are compiled and which one is chosen, with a simulated compiler; and how its output is parsed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import pytest

from finetune_contract import ExitCode, MeshSpec, SliceShape, StageRequest
from finetune_trainer import families
from finetune_trainer.compiled import check
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileSuccess,
    MemoryExceeded,
    SliceProgram,
)
from finetune_trainer.compiled.cost import StepCost, cost_of, roofline
from finetune_trainer.compiled.evaluation_programs import needed_bytes
from finetune_trainer.compiled.remedies import remedies
from finetune_trainer.compiled.search import ModelBounds, SearchSpace, search
from finetune_trainer.engine.chips import CHIPS
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from tests.trainer.requests import request

GIB = 2**30
ALL = SearchSpace(remat=True, tiles=True, parallelism=True)
MODEL = ModelBounds(heads=16, kv_heads=8, vocab_size=150_000, sequence=2048)


def shape(chips: int, name: str = "") -> SliceShape:
    return SliceShape(
        name=name or f"v6e-{chips}", family="v6e", topology="2x2", hosts=max(1, chips // 4), chips=chips,
        devices=chips, hbm_gib=32,
    )  # fmt: skip


def candidate(batch: int = 16, chips: int = 4) -> Candidate:
    mesh = MeshSpec(hosts=1, chips_per_host=4, fsdp=chips)
    return Candidate(slice=shape(chips), mesh=mesh, global_batch=batch)


def measured(peak: float, seconds: float) -> CompileSuccess:
    return CompileSuccess(
        peak_bytes=int(peak * GIB), limit_bytes=31 * GIB, arguments_bytes=GIB, temporaries_bytes=GIB, flops=1.0,
        hbm_bytes=1.0, network_bytes=1.0, step_seconds=(seconds / 2, seconds),
    )  # fmt: skip


def exceeded(needed: float) -> MemoryExceeded:
    return MemoryExceeded(needed_bytes=int(needed * GIB), limit_bytes=31 * GIB, arguments_bytes=GIB)


def by_rule(peak: Callable[[Candidate], float], seconds: dict[str, float]) -> Callable[[Candidate], Answer]:
    def ask(asked: Candidate) -> Answer:
        needed = peak(asked)
        policy = str(asked.tuning.get("remat_policy", "full"))
        return measured(needed, seconds[policy]) if needed <= 31 else exceeded(needed)

    return ask


def what_would_fit(
    start: Candidate,
    choices: SearchSpace,
    model: ModelBounds,
    ask: Callable[[Candidate], Answer],
    larger: Sequence[SliceShape] = (),
) -> tuple[str, ...]:
    """Returns the remedies that the search finds, after it has found no candidate that fits."""
    found = search(start, choices, model, ask)
    assert found.best is None
    assert isinstance(found.refusal, MemoryExceeded)
    return remedies(start, found.refusal, choices, model, ask, larger=larger)


SECONDS = {"minimal_with_context": 1.0, "save_qkv_proj": 1.2, "full": 1.4, "custom": 1.4}
PEAKS = {"minimal_with_context": 3.0, "save_qkv_proj": 2.0, "full": 1.0, "custom": 0.5}


def grows(asked: Candidate) -> float:
    """Returns a memory need that is proportional to a device's rows and to what the policy keeps."""
    rows = asked.global_batch / (asked.mesh.data * asked.mesh.fsdp * asked.mesh.tensor)
    return rows * PEAKS[str(asked.tuning.get("remat_policy", "full"))]


@pytest.mark.parametrize(
    ("batch", "policy"),
    [(16, "minimal_with_context"), (56, "save_qkv_proj"), (100, "full"), (200, "custom")],
)
def test_the_fastest_policy_that_fits_is_taken(batch: int, policy: str) -> None:
    found = search(candidate(batch), ALL, MODEL, by_rule(grows, SECONDS))
    assert found.best is not None
    assert found.best.tuning["remat_policy"] == policy


def test_of_equally_fast_ones_the_thriftiest_is_taken() -> None:
    found = search(candidate(), ALL, MODEL, by_rule(grows, dict.fromkeys(SECONDS, 1.0)))
    assert found.best is not None
    assert found.best.tuning["remat_policy"] == "full"


def test_what_the_user_has_set_is_compiled_as_it_is() -> None:
    fixed = SearchSpace(remat=False, tiles=False, parallelism=False)
    found = search(candidate(), fixed, MODEL, by_rule(grows, SECONDS))
    assert (found.best, len(found.tried)) == (candidate(), 1)


def test_a_faster_mesh_is_taken_where_the_user_has_set_none() -> None:
    def ask(asked: Candidate) -> Answer:
        return measured(1, 1.0 if asked.mesh.tensor == 2 else 2.0)

    found = search(candidate(), ALL, MODEL, ask)
    assert found.best is not None
    assert (found.best.mesh.fsdp, found.best.mesh.tensor) == (2, 2)


def test_once_it_is_late_what_fits_is_taken() -> None:
    found = search(candidate(), ALL, MODEL, by_rule(grows, SECONDS), late=lambda: True)
    assert found.best is not None
    assert len(found.tried) == 1


def counting(rule: Callable[[Candidate], Answer], asked: list[Candidate]) -> Callable[[Candidate], Answer]:
    def ask(candidate: Candidate) -> Answer:
        asked.append(candidate)
        return rule(candidate)

    return ask


def test_a_refusal_names_what_was_compiled_and_fits() -> None:
    choices = SearchSpace(remat=True, tiles=True, parallelism=False)
    asked: list[Candidate] = []
    ask = counting(by_rule(grows, SECONDS), asked)
    assert what_would_fit(candidate(512), choices, MODEL, ask, (shape(8), shape(16))) == (
        "hyperparameters.globalBatchSize 248 with remat_policy custom",
        "resources.tpu v6e-16 with remat_policy custom",
    )
    assert len(asked) <= 12


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize(("fixed", "each"), [(0.0, 0.9), (8.0, 0.5), (20.0, 0.3), (2.0, 8.0)])
@pytest.mark.parametrize("batch", [24, 96, 480, 4800])
def test_the_largest_batch_is_found_where_memory_grows_in_a_line(
    batch: int, fixed: float, each: float, accumulation: int
) -> None:
    """``each``: GiB per row of a device in one forward pass."""
    unit = 4 * accumulation

    def needs(asked: Candidate) -> float:
        return fixed + each * asked.global_batch / unit

    fits = int((31 - fixed) / each) * unit
    choices = SearchSpace(remat=False, tiles=False, parallelism=False)
    model = replace(MODEL, accumulation=accumulation)
    rule = by_rule(needs, SECONDS)
    wanted = candidate(batch // unit * unit)
    if batch // unit * unit <= fits:
        assert search(wanted, choices, model, rule).best is not None
    else:
        assert what_would_fit(wanted, choices, model, rule) == (f"hyperparameters.globalBatchSize {fits}",)


def test_where_the_job_sets_the_policy_another_one_that_fits_is_named() -> None:
    """``without``: the candidate is compiled without the policy that the job sets."""

    def rule(asked: Candidate) -> Answer:
        policy = asked.tuning.get("remat_policy") if "remat_policy" in asked.without else "minimal"
        return measured(30, 1.0) if policy == "full" and asked.global_batch == 64 else exceeded(60)

    fixed = SearchSpace(remat=False, tiles=False, parallelism=True)
    assert what_would_fit(candidate(64), fixed, MODEL, rule) == ("engineOverrides.remat_policy full",)


def test_where_only_the_last_resort_fits_all_of_its_settings_are_named() -> None:
    def rule(asked: Candidate) -> Answer:
        offloads = asked.tuning.get("decoder_layer_input") == "offload"
        return measured(30, 1.0) if offloads else exceeded(60)

    fixed = SearchSpace(remat=False, tiles=False, parallelism=True)
    assert what_would_fit(candidate(16), fixed, MODEL, rule) == (
        "engineOverrides.remat_policy custom and engineOverrides.decoder_layer_input offload",
    )


@pytest.mark.parametrize(
    ("batch", "fits", "remedy"),
    [
        (16, (4, 1), ("resources.parallelism data 1, fsdp 4, tensor 1",)),
        (16, (2, 2), ("resources.parallelism data 1, fsdp 2, tensor 2",)),
        (
            6,
            (2, 2),
            ("resources.parallelism data 1, fsdp 2, tensor 2",),
        ),  # the only mesh in which 4 devices can share the batch
        (16, (1, 1), ()),
    ],
)
def test_where_the_job_sets_the_mesh_another_one_that_fits_is_named(
    batch: int, fits: tuple[int, int], remedy: tuple[str, ...]
) -> None:
    def rule(asked: Candidate) -> Answer:
        same = asked.global_batch == batch
        return measured(30, 1.0) if same and (asked.mesh.fsdp, asked.mesh.tensor) == fits else exceeded(60)

    copies = MeshSpec(hosts=1, chips_per_host=4, data=2, fsdp=2)
    start = candidate(batch).model_copy(update={"mesh": copies})
    fixed = SearchSpace(remat=True, tiles=False, parallelism=False)
    assert what_would_fit(start, fixed, MODEL, rule) == remedy


@pytest.mark.parametrize(("batch", "named"), [(24, "v6e-16 with"), (20, "v6e-16 (globalBatchSize 32) with")])
def test_a_larger_slice_is_named_with_a_batch_that_it_can_divide(batch: int, named: str) -> None:
    """24 rows fit on 16 devices if two devices share a row; 20 rows do not divide among them in any way."""

    def rule(asked: Candidate) -> Answer:
        assert asked.global_batch % (asked.mesh.data * asked.mesh.fsdp) == 0
        return measured(30, 1.0) if asked.slice.chips == 16 else exceeded(60)

    model = replace(MODEL, heads=2, kv_heads=2)
    (remedy,) = what_would_fit(candidate(batch), ALL, model, rule, (shape(16),))
    assert remedy == f"resources.tpu {named} remat_policy custom"


def test_a_slice_that_does_not_hold_the_parameters_is_given_up_after_one_compilation() -> None:
    hopeless = exceeded(60).model_copy(update={"arguments_bytes": 40 * GIB})
    found = search(candidate(), ALL, MODEL, lambda _: hopeless)
    assert (found.best, len(found.tried)) == (None, 1)


def test_when_it_is_late_a_slice_is_judged_by_what_takes_the_least_memory() -> None:
    asked: list[Candidate] = []
    ask = counting(by_rule(grows, SECONDS), asked)
    found = search(candidate(200), ALL, MODEL, ask, late=lambda: True)
    assert found.best is not None
    assert [each.tuning["remat_policy"] for each in asked] == ["full", "custom"]


def test_devices_share_rows_only_where_all_heads_divide_among_them() -> None:
    """In the job's mesh two devices share each row already."""
    shared = MeshSpec(hosts=2, chips_per_host=4, fsdp=4, tensor=2)
    start = Candidate(slice=shape(8), mesh=shared, global_batch=16)
    asked: list[Candidate] = []
    search(start, ALL, replace(MODEL, heads=4, kv_heads=2), counting(lambda _: measured(1, 1.0), asked))
    assert {each.mesh.tensor for each in asked} == {2}


def test_tiles_are_of_the_logits_of_one_forward_pass() -> None:
    """A device's 100 positions at a time cannot be cut into eight tiles, but 800 could."""
    model = replace(MODEL, vocab_size=262_144, sequence=100, accumulation=8)
    asked: list[Candidate] = []
    search(candidate(32), ALL, model, counting(lambda _: measured(1, 1.0), asked))
    assert not any("num_vocab_tiling" in each.tuning for each in asked)


@pytest.mark.parametrize("devices", [4, 12])
def test_a_larger_slice_of_fewer_devices_than_the_jobs_own_mesh_needs_is_no_remedy(devices: int) -> None:
    """Four chips of v5p have more memory than sixteen of v5e."""
    mesh = MeshSpec(hosts=4, chips_per_host=4, fsdp=2, tensor=8)
    start = Candidate(slice=shape(16), mesh=mesh, global_batch=2)
    asked: list[Candidate] = []
    ask = counting(lambda _: exceeded(1000), asked)
    fixed = replace(ALL, parallelism=False)
    assert what_would_fit(start, fixed, MODEL, ask, (shape(devices, name="v5p-8"),)) == ()
    assert {each.slice.name for each in asked} == {"v6e-16"}


def test_a_batch_that_may_not_be_the_largest_is_reported_so() -> None:
    """The compiler does not report how much memory is needed, so the search halves the batch."""

    def ask(asked: Candidate) -> Answer:
        if asked.global_batch <= 900:
            return measured(30, 1.0)
        return MemoryExceeded(needed_bytes=None, limit_bytes=31 * GIB, arguments_bytes=GIB)

    fixed = SearchSpace(remat=False, tiles=False, parallelism=False)
    (remedy,) = what_would_fit(candidate(4000), fixed, MODEL, ask)
    assert remedy.endswith(" (perhaps more)")


def test_where_nothing_fits_the_search_ends() -> None:
    asked: list[Candidate] = []
    ask = counting(lambda _: exceeded(1000), asked)
    assert what_would_fit(candidate(256), ALL, MODEL, ask, (shape(8), shape(16))) == ()
    assert len(asked) <= 12


def test_a_refusal_for_another_reason_is_no_lack_of_memory() -> None:
    found = search(candidate(), ALL, MODEL, lambda asked: CompileFailure(message="no"))
    assert isinstance(found.refusal, CompileFailure)


MESSAGES: list[tuple[str, float | None]] = [
    (
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (318.68G) "
            "exceeds available HBM (31.24G)."
        ),
        318.68,
    ),
    (
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 34.20G of "
            "15.75G hbm. Exceeded hbm capacity by 18.45G."
        ),
        34.2,
    ),
    ("RESOURCE_EXHAUSTED: something else", None),
]


@pytest.mark.parametrize(("message", "needed"), MESSAGES)
def test_the_compilers_message_is_read(message: str, needed: float | None) -> None:
    assert needed_bytes(message) == (None if needed is None else int(needed * GIB))


@pytest.mark.parametrize("layers", [1, 3, 28])
def test_a_loops_body_counts_as_often_as_it_runs(layers: int) -> None:
    def run(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, weight: (carry @ weight, None), x, weights)[0]

    sizes = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((layers, 64, 64), jnp.float32)
    program = jax.jit(run).lower(*sizes).compile().as_text()
    assert program is not None
    assert cost_of(program).flops == pytest.approx(layers * 2 * 64**3, rel=0.02)


#: libtpu's text of a matrix product that overlaps with communication: each iteration multiplies 4 of 16 shards, and the
#: counter is raised by 2 to a limit of 8; every scalar is copied first. Dots replace its convolutions.
WINDOWED = """HloModule recorded, is_scheduled=true

%windowed_cond (wide.param.164: (bf16[64,64], bf16[64,32], u32[], /*index=3*/u32[])) -> pred[] {
  %constant.2585 = u32[]{:T(128)} constant(8)
  %wide.param.164 = (bf16[64,64]{1,0:T(8,128)(2,1)S(1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]{:T(128)}, /*index=3*/u32[]{:T(128)}) parameter(0)
  %get-tuple-element.2467 = u32[]{:T(128)} get-tuple-element(%wide.param.164), index=2
  ROOT %compare.67 = pred[]{:T(512)} compare(%get-tuple-element.2467, %constant.2585), direction=LT
}

%windowed_body.sunk (wide.param.9: (bf16[64,64], bf16[64,32], u32[], /*index=3*/u32[])) -> (bf16[64,64], bf16[64,32], u32[], /*index=3*/u32[]) {
  %constant.2778..sunk.13 = u32[]{:T(128)} constant(2)
  %wide.param.9 = (bf16[64,64]{1,0:T(8,128)(2,1)S(1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]{:T(128)}, /*index=3*/u32[]{:T(128)}) parameter(0)
  %get-tuple-element.3598 = u32[]{:T(128)} get-tuple-element(%wide.param.9), index=2
  %copy.384 = u32[]{:T(128)S(6)} copy(%get-tuple-element.3598)
  %add.1598 = u32[]{:T(128)} add(%copy.384, %constant.2778..sunk.13)
  %get-tuple-element.3604 = bf16[64,64]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%wide.param.9), index=0
  %get-tuple-element.3597 = bf16[64,32]{1,0:T(8,128)(2,1)} get-tuple-element(%wide.param.9), index=1
  %dot.1 = bf16[64,32]{1,0:T(8,128)(2,1)} dot(%get-tuple-element.3604, %get-tuple-element.3597), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %get-tuple-element.3609 = u32[]{:T(128)} get-tuple-element(%wide.param.9), index=3
  ROOT %tuple.636 = (bf16[64,64]{1,0:T(8,128)(2,1)S(1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]{:T(128)}, /*index=3*/u32[]{:T(128)}) tuple(%get-tuple-element.3604, %dot.1, %add.1598, /*index=3*/%get-tuple-element.3609)
}

ENTRY %main (p.0: bf16[64,64], p.1: bf16[64,32]) -> bf16[64,32] {
  %p.0 = bf16[64,64]{1,0:T(8,128)(2,1)} parameter(0)
  %p.1 = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(1)
  %constant.15 = u32[]{:T(128)} constant(0)
  %copy.678 = u32[]{:T(128)} copy(%constant.15)
  %copy.380 = u32[]{:T(128)} copy(%copy.678)
  %tuple.634 = (bf16[64,64]{1,0:T(8,128)(2,1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]{:T(128)}, /*index=3*/u32[]{:T(128)}) tuple(%p.0, %p.1, %copy.380, /*index=3*/%constant.15)
  %while.193 = (bf16[64,64]{1,0:T(8,128)(2,1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]{:T(128)}, /*index=3*/u32[]{:T(128)}) while(%tuple.634), condition=%windowed_cond, body=%windowed_body.sunk, metadata={op_name="jit(step)/while" stack_frame_id=166}
  ROOT %get-tuple-element.1 = bf16[64,32]{1,0:T(8,128)(2,1)} get-tuple-element(%while.193), index=1
}
"""


def test_a_loop_that_is_unrolled_counts_by_its_steps() -> None:
    assert cost_of(WINDOWED).flops == pytest.approx(4 * 2 * 64 * 64 * 32, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("direction=LT", "direction=NE"),
        # a limit that is known only at run time
        ("compare(%get-tuple-element.2467, %constant.2585)", "compare(%get-tuple-element.2467, %get-tuple-element.2467)"),
    ],
)  # fmt: skip
def test_a_loop_without_a_counter_counts_once_and_is_reported(
    old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    endless = WINDOWED.replace(old, new)
    assert endless != WINDOWED
    assert cost_of(endless).flops == pytest.approx(2 * 64 * 64 * 32, rel=0.01)
    assert "windowed_body.sunk" in caplog.text


#: 4 query heads of size 128, 2 key and value heads, 256 tokens; ``rows`` is a leading dimension, if there is one.
KERNEL = """HloModule recorded

ENTRY %main (p.0: bf16[{rows}4,256,128], p.1: bf16[{rows}2,256,128], p.2: bf16[{rows}2,256,128]) -> bf16[{rows}4,256,128] {{
  %p.0 = bf16[{rows}4,256,128] parameter(0)
  %p.1 = bf16[{rows}2,256,128] parameter(1)
  %p.2 = bf16[{rows}2,256,128] parameter(2)
  ROOT %splash_mha_{kind}_residuals.3 = bf16[{rows}4,256,128] custom-call(%p.0, %p.1, /*index=2*/%p.2), custom_call_target="tpu_custom_call", operand_layout_constraints={{bf16[{rows}4,256,128]{{{order}}}, bf16[{rows}2,256,128]{{{order}}}, bf16[{rows}2,256,128]{{{order}}}}}
}}
"""


@pytest.mark.parametrize(("kind", "products"), [("fwd", 2), ("dq", 3), ("dkv", 4)])
@pytest.mark.parametrize(("rows", "order", "number"), [("", "2,1,0", 1), ("3,", "3,2,1,0", 3)])
def test_attention_kernels_count_half_of_their_products(
    kind: str, products: int, rows: str, order: str, number: int
) -> None:
    counted = cost_of(KERNEL.format(kind=kind, rows=rows, order=order)).flops
    assert counted == pytest.approx(products * number * 4 * 256 * 256 * 128, rel=1e-6)


#: As libtpu 0.0.44.1 compiles it: 4096 tokens in blocks of 512, of which the causal kernel's grid has all, and that of a
#: sliding window of 512 tokens two for each block of queries (dkv: of keys).
BLOCKS = """HloModule recorded

ENTRY %main (p.0: s8[1,{grid}], p.1: bf16[2,4,4096,256], p.2: bf16[2,4,4096,256], p.3: s32[2,8,4096], p.4: {mask}) -> bf16[2,4,4096,256] {{
  %p.0 = s8[1,{grid}] parameter(0)
  %p.1 = bf16[2,4,4096,256] parameter(1)
  %p.2 = bf16[2,4,4096,256] parameter(2)
  %p.3 = s32[2,8,4096] parameter(3)
  %p.4 = {mask} parameter(4)
  ROOT %splash_mha_{kind}_segmented.1 = bf16[2,4,4096,256] custom-call(%p.0, %p.1, %p.2, %p.3, %p.4), custom_call_target="tpu_custom_call", operand_layout_constraints={{s8[1,{grid}]{{2,1,0}}, bf16[2,4,4096,256]{{3,2,1,0}}, bf16[2,4,4096,256]{{3,2,1,0}}, s32[2,8,4096]{{2,1,0}}, {mask}}}
}}
"""


@pytest.mark.parametrize(
    ("kind", "products", "grid", "mask", "share"),
    [
        ("fwd", 2, "8,8", "s32[4096,128]{1,0}", 1.0),
        ("fwd", 2, "8,2", "s32[2,512,512]{2,1,0}", 1 - 0.75**2),
        ("dkv", 4, "2,8", "s32[2,512,512]{2,1,0}", 1 - 0.75**2),
        # A window as wide as the row hides nothing.
        ("dq", 3, "8,8", "s32[2,512,512]{2,1,0}", 1.0),
    ],
)
def test_attention_in_a_sliding_window_counts_the_blocks_that_the_kernel_visits(
    kind: str, products: int, grid: str, mask: str, share: float
) -> None:
    counted = cost_of(BLOCKS.format(kind=kind, grid=grid, mask=mask)).flops
    assert counted == pytest.approx(products * 2 * 4 * 4096**2 * 256 * share, rel=1e-6)


#: 512 tokens of width 64, each multiplied by the 64 by 32 matrix of one of 8 experts; and the gradient of the experts.
GROUPED = """HloModule recorded

ENTRY %main (p.0: {left}, p.1: {right}) -> {out} {{
  %p.0 = {left} parameter(0)
  %p.1 = {right} parameter(1)
  ROOT %{name}.3 = {out} custom-call(%p.0, %p.1), custom_call_target="tpu_custom_call", operand_layout_constraints={{{left}{{1,0}}, {right}{{{order}}}}}
}}
"""


@pytest.mark.parametrize(
    ("name", "left", "right", "out"),
    [
        ("gmm", "bf16[512,64]", "bf16[8,64,32]", "bf16[512,32]"),
        ("gmm", "bf16[512,32]", "bf16[8,64,32]", "bf16[512,64]"),
        ("tgmm", "bf16[512,64]", "bf16[512,32]", "bf16[8,64,32]"),
        ("tgmm", "f32[512,64]", "f32[512,32]", "f32[8,64,32]"),
    ],
)
def test_experts_kernels_count_the_one_that_each_token_goes_through(
    name: str, left: str, right: str, out: str
) -> None:
    order = "1,0" if name == "tgmm" else "2,1,0"
    text = GROUPED.format(name=name, left=left, right=right, out=out, order=order)
    assert cost_of(text).flops == pytest.approx(2 * 512 * 64 * 32, rel=1e-6)


def test_no_step_is_faster_than_its_arithmetic_or_its_state() -> None:
    cost = StepCost(flops=918e12, hbm_bytes=1638e9, network_bytes=224e9)
    interval = roofline(cost, state_bytes=1000, chip=CHIPS["v6e"])
    assert interval.low == pytest.approx(1.0)
    assert interval.high == pytest.approx(3.0)
    idle = roofline(StepCost(flops=0, hbm_bytes=0, network_bytes=0), int(1638e9), CHIPS["v6e"])
    assert idle.low == pytest.approx(1.0)


# --- preflight's memory check


class ByRule:
    """Replaces the real compiler: a rule computes the answers."""

    compiled = 1

    def __init__(self, rule: Callable[[Candidate], Answer]) -> None:
        self._rule = rule

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing, because no process was started."""

    def __call__(self, candidate: Candidate) -> Answer:
        return self._rule(candidate)

    def keep(self, candidate: Candidate) -> None:
        """Does nothing, because no program was compiled."""


def judged(
    made: StageRequest,
    rule: Callable[[Candidate], Answer],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    programs: Sequence[SliceProgram] = (),
    **model: Any,
) -> Any:
    """Runs ``check_memory`` for a Qwen3 of two layers, changed by ``model``, with ``rule`` as the compiler."""
    monkeypatch.setattr(check, "CompileClient", lambda *_, **__: ByRule(rule))
    plan = families.resolve({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2} | model)
    return check.check_memory(made, plan, folder, open_store(), {}, programs=lambda: programs)


def checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: Callable[[Candidate], Answer],
    programs: Sequence[SliceProgram] = (),
) -> Any:
    """Runs ``check_memory`` for batch 64 of a Qwen3 on v6e-4, in a profile that also has v6e-8 and v6e-16."""
    made = request(
        tmp_path,
        "Preflight",
        mesh={"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        memory={"source": "Compile", "slice": shape(4), "larger": [shape(8), shape(16)]},
        hyperparameters={"global_batch_size": 64},
        data={"max_seq_length": 2048},
    )
    return judged(made, rule, monkeypatch, tmp_path, programs)


def a_gigabyte_a_row(asked: Candidate) -> Answer:
    needed = 2.5 + asked.global_batch / asked.slice.devices
    return measured(needed, 1.0) if needed <= 31 else exceeded(needed)


def test_a_step_that_exceeds_the_chips_is_refused_with_the_batch_and_the_slice_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled(asked: Candidate) -> Answer:
        needed = 2.5 + 2 * asked.global_batch / asked.slice.devices
        return measured(needed, 1.0) if needed <= 31 else exceeded(needed)

    with pytest.raises(StageError) as caught:
        checked(tmp_path, monkeypatch, doubled)
    error = caught.value
    assert (error.code, error.reason) == (ExitCode.OUT_OF_MEMORY, "MemoryExceeded")
    for told in ("spec.resources", "34.50 GiB of 31.00 GiB per device with batch 64 and remat_policy custom on v6e-4", "globalBatchSize 56",
                 "resources.tpu v6e-8", "No TPU time was used."):  # fmt: skip
        assert told in str(error)
    assert error.failure().code == 78


def test_a_step_that_fits_on_nothing_is_refused_without_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match="No smaller batch and no slice of the profile") as caught:
        checked(tmp_path, monkeypatch, lambda _: exceeded(100))
    assert caught.value.code == ExitCode.OUT_OF_MEMORY


def test_a_need_that_the_compiler_does_not_name_is_refused_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsaid = MemoryExceeded(needed_bytes=None, limit_bytes=31 * GIB, arguments_bytes=GIB)
    with pytest.raises(StageError, match=r"more than available of 31\.00 GiB") as caught:
        checked(tmp_path, monkeypatch, lambda _: unsaid)
    assert caught.value.reason == "MemoryExceeded"


def test_one_refusal_for_memory_is_enough_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that does not compile shows nothing about memory, but one that does not fit does."""

    def mixed(asked: Candidate) -> Answer:
        full = asked.tuning.get("remat_policy") == "full"
        return exceeded(40) if full else CompileFailure(message="not taken")

    with pytest.raises(StageError) as caught:
        checked(tmp_path, monkeypatch, mixed)
    assert caught.value.reason == "MemoryExceeded"


def test_what_does_not_compile_for_another_reason_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = checked(tmp_path, monkeypatch, lambda _: CompileFailure(message="not taken"))
    assert "not taken" in outcome.unknown
    assert outcome.peak_bytes is None


def test_a_step_that_fits_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = checked(tmp_path, monkeypatch, a_gigabyte_a_row)
    assert outcome.unknown == ""
    assert outcome.peak_bytes == int(18.5 * GIB)


def test_a_step_that_the_slice_would_refuse_alike_is_the_users_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = CompileFailure(message="bkv_compute=100 must be a multiple of 128", certain=True)
    with pytest.raises(StageError, match=r"bkv_compute=100 .* engineOverrides") as caught:
        checked(tmp_path, monkeypatch, lambda _: refusal)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "ProgramRefused")


LOSS = SliceProgram(kind="Loss")
ANSWERS = SliceProgram(kind="Generate", width=1024, new_tokens=128, count=40, longest=4000)
CHOICES = SliceProgram(kind="Likelihood", width=512, count=400, longest=4096)


def others(rule: Callable[[SliceProgram], Answer]) -> Callable[[Candidate], Answer]:
    """Returns a rule by which the train step fits, and ``rule`` answers for the other programs."""
    return lambda asked: measured(10, 1.0) if asked.program is None else rule(asked.program)


def test_every_other_program_of_the_job_is_compiled_for_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Candidate] = []

    def rule(candidate: Candidate) -> Answer:
        asked.append(candidate)
        return measured(10, 1.0).model_copy(update={"rows": 16 if candidate.program == ANSWERS else None})

    outcome = checked(tmp_path, monkeypatch, rule, [LOSS, ANSWERS, CHOICES])
    step = next(each for each in asked if each.program is None)
    assert [each.program for each in asked if each.program is not None] == [LOSS, ANSWERS, CHOICES]
    assert all(each.mesh == outcome.mesh for each in asked if each.program is not None)
    assert step.global_batch == 64
    assert outcome.uncompiled == []
    assert [line.partition(":")[0] for line in outcome.programs] == [
        "loss on the validation rows",
        "answers of 128 tokens to prompts of 1024",
        "log-probabilities of texts of 512 tokens",
    ]
    assert outcome.programs[1].endswith("16 rows at a time")


@pytest.mark.parametrize(("program", "fix"), [(LOSS, "globalBatchSize"), (ANSWERS, "maxNewTokens")])
def test_an_evaluation_that_does_not_fit_is_refused_before_training_is_paid_for(
    program: SliceProgram, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = others(lambda asked: exceeded(40) if asked == program else measured(10, 1.0))
    with pytest.raises(StageError, match=fix) as caught:
        checked(tmp_path, monkeypatch, rule, [LOSS, ANSWERS])
    assert (caught.value.code, caught.value.reason) == (ExitCode.OUT_OF_MEMORY, "MemoryExceeded")
    assert str(program) in str(caught.value)


def test_an_evaluation_that_the_compiler_refuses_is_refused_before_training_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = others(
        lambda _: CompileFailure(message="q_block_size=512 should divide q_seq_len=1152", certain=True)
    )
    with pytest.raises(StageError, match="q_seq_len=1152") as caught:
        checked(tmp_path, monkeypatch, rule, [ANSWERS])
    assert caught.value.code == ExitCode.BAD_REQUEST


def test_what_was_not_compiled_is_reported_the_largest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_PATIENCE_SECONDS", -1.0)
    late = checked(tmp_path, monkeypatch, others(lambda _: measured(1, 1.0)), [ANSWERS, CHOICES])
    assert late.uncompiled == [str(ANSWERS), str(CHOICES)]
    assert late.programs == []
    monkeypatch.setattr(check, "_PATIENCE_SECONDS", 600.0)
    failed = checked(
        tmp_path, monkeypatch, others(lambda _: CompileFailure(message="INTERNAL: no")), [ANSWERS]
    )
    (line,) = failed.uncompiled
    assert "INTERNAL: no" in line
    assert failed.peak_bytes is not None, "the train step is still known to fit"


# --- jobs that name no slice

CHOICE = [4, 8, 16]


def chosen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: Callable[[Candidate], Answer],
    programs: Sequence[SliceProgram] = (),
    **changes: Any,
) -> Any:
    """Runs ``check_memory`` for batch 8 of a Qwen3 that may run on v6e-4, v6e-8 or v6e-16.

    The model has 16 query heads and 8 key and value heads; on v6e-16 two devices share a row.
    """
    model = changes.pop("model", {})
    meshes = {
        4: {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        8: {"hosts": 2, "chips_per_host": 4, "fsdp": 8},
        16: {"hosts": 4, "chips_per_host": 4, "fsdp": 8, "tensor": 2},
    }
    asked = {
        "source": "Compile",
        "slice": shape(4),
        "candidates": [
            {
                "slice": shape(chips).model_copy(update={"flags": {"XLA_FLAGS": f"--x={chips}"}}),
                "mesh": meshes[chips],
            }
            for chips in (8, 16)
        ],
        "larger": [shape(8), shape(16), shape(32)],
        "choose_parallelism": True,
        **changes,
    }
    made = request(
        tmp_path, "Preflight", mesh=meshes[4], memory=asked, hyperparameters={"global_batch_size": 8},
        data={"max_seq_length": 2048},
    )  # fmt: skip
    return judged(made, rule, monkeypatch, tmp_path, programs, **model)


def holding(least: int) -> Callable[[Candidate], Answer]:
    """Returns a rule by which the job fits on slices of at least ``least`` chips."""
    return lambda asked: (
        measured(30, 1.0) if asked.slice.chips >= least else exceeded(160 / asked.slice.chips)
    )


@pytest.mark.parametrize("least", CHOICE)
def test_the_first_slice_that_holds_the_training_is_chosen_and_the_others_are_named(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = chosen(tmp_path, monkeypatch, holding(least))
    assert (outcome.slice, outcome.chosen) == (f"v6e-{least}", shape(least))
    assert outcome.mesh.devices == least
    smaller = [chips for chips in CHOICE if chips < least]
    assert [(each.slice.chips, each.why) for each in outcome.unfit] == [
        (chips, f"does not fit, {160 / chips:.2f} GiB of 31.00 GiB") for chips in smaller
    ]
    assert {line.partition(",")[0] for line in outcome.tried} == {
        f"v6e-{chips}" for chips in (*smaller, least)
    }


def test_a_program_that_does_not_fit_moves_the_job_to_the_next_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        return exceeded(40) if asked.program == ANSWERS and asked.slice.chips < 16 else measured(10, 1.0)

    outcome = chosen(tmp_path, monkeypatch, rule, [LOSS, ANSWERS])
    assert outcome.slice == "v6e-16"
    assert [each.why.partition(":")[0] for each in outcome.unfit] == [str(ANSWERS)] * 2
    assert len(outcome.programs) == 2


def test_an_evaluation_that_fits_no_slice_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = others(lambda _: exceeded(40))
    with pytest.raises(StageError, match="maxNewTokens") as caught:
        chosen(tmp_path, monkeypatch, rule, [ANSWERS])
    assert caught.value.reason == "MemoryExceeded"
    assert "on v6e-16" in str(caught.value)


def test_a_refusal_of_all_slices_names_each_and_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        needed = 40 * asked.global_batch / asked.slice.chips
        return measured(needed, 1.0) if needed <= 31 or asked.slice.chips == 32 else exceeded(needed + 12)

    with pytest.raises(StageError) as caught:
        chosen(
            tmp_path,
            monkeypatch,
            lambda asked: rule(asked.model_copy(update={"global_batch": asked.global_batch * 2})),
        )
    error = caught.value
    assert (error.code, error.reason) == (ExitCode.OUT_OF_MEMORY, "MemoryExceeded")
    for told in (
        "v6e-4 does not fit, 172.00 GiB of 31.00 GiB; v6e-8 does not fit, 92.00 GiB", "v6e-16 does not fit, 52.00 GiB",
        "with batch 8 and remat_policy custom", "resources.tpu v6e-32 with remat_policy custom",
    ):  # fmt: skip
        assert told in str(error)


def test_a_batch_that_fits_the_largest_of_the_slices_is_named_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device of v6e-8 has memory for one row, if eight devices share the batch; the job needs two rows on each."""

    def rule(asked: Candidate) -> Answer:
        rows = asked.global_batch / (asked.mesh.data * asked.mesh.fsdp)
        return measured(20, 1.0) if rows <= 1 and asked.slice.chips == 8 else exceeded(40 * rows)

    four, eight = ({"hosts": each // 4, "chips_per_host": 4, "fsdp": each} for each in (4, 8))
    made = request(
        tmp_path, "Preflight", mesh=four, hyperparameters={"global_batch_size": 16}, data={"max_seq_length": 512},
        memory={"source": "Compile", "slice": shape(4), "candidates": [{"slice": shape(8), "mesh": eight}]},
    )  # fmt: skip
    with pytest.raises(StageError, match="globalBatchSize 8 with remat_policy custom on v6e-8"):
        judged(made, rule, monkeypatch, tmp_path)


def test_a_slice_of_which_nothing_is_known_ends_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike the cheaper slice, this one is not known to be too small."""

    def rule(asked: Candidate) -> Answer:
        return exceeded(40) if asked.slice.chips == 4 else CompileFailure(message="INTERNAL: no")

    outcome = chosen(tmp_path, monkeypatch, rule)
    assert (outcome.slice, [each.slice.name for each in outcome.unfit]) == ("v6e-8", ["v6e-4"])
    assert "INTERNAL: no" in outcome.unknown
    assert outcome.peak_bytes is None


def test_without_time_the_next_slice_is_taken_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_PATIENCE_SECONDS", -1.0)
    outcome = chosen(tmp_path, monkeypatch, holding(16))
    assert (outcome.slice, [each.slice.name for each in outcome.unfit]) == ("v6e-8", ["v6e-4"])
    assert "not compiled in time" in outcome.unknown


def test_a_setting_that_the_compiler_refuses_is_the_users_error_on_the_first_slice_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = CompileFailure(message="Mosaic failed", certain=True)
    with pytest.raises(StageError, match="Mosaic failed") as caught:
        chosen(tmp_path, monkeypatch, lambda _: refused)
    assert caught.value.reason == "ProgramRefused"

    def later(asked: Candidate) -> Answer:
        return refused if asked.slice.chips == 8 else holding(16)(asked)

    outcome = chosen(tmp_path, monkeypatch, later)
    assert outcome.slice == "v6e-16"
    assert "Mosaic failed" in outcome.unfit[1].why


UNEVEN = CompileFailure(
    message="logits_dense does not divide among fsdp 2, tensor 2", certain=True, of_mesh=True
)


def test_a_mesh_on_which_the_model_cannot_be_loaded_passes_its_slice_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = chosen(
        tmp_path,
        monkeypatch,
        lambda asked: UNEVEN if asked.slice.chips == 4 else holding(8)(asked),
    )
    assert outcome.slice == "v6e-8"
    assert "does not divide" in outcome.unfit[0].why


@pytest.mark.parametrize("run", [checked, chosen], ids=["one slice", "several"])
def test_where_the_model_can_be_loaded_on_no_mesh_the_refusal_says_what_to_change(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match=r"logits_dense .*globalBatchSize") as caught:
        run(tmp_path, monkeypatch, lambda _: UNEVEN)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "MeshNotDivisible")


def test_a_program_that_the_compiler_refuses_on_a_later_slice_passes_that_slice_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        if asked.program == ANSWERS and asked.slice.chips == 8:
            return CompileFailure(message="Mosaic failed", certain=True)
        return holding(8)(asked)

    outcome = chosen(tmp_path, monkeypatch, rule, [LOSS, ANSWERS])
    assert (outcome.slice, len(outcome.programs)) == ("v6e-16", 2)
    assert "Mosaic failed" in outcome.unfit[1].why


def test_devices_share_rows_on_a_later_slice_where_the_first_has_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes = {
        1: {"hosts": 1, "chips_per_host": 1},
        4: {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        16: {"hosts": 4, "chips_per_host": 4, "fsdp": 8, "tensor": 2},
    }
    others = [{"slice": shape(chips), "mesh": meshes[chips]} for chips in (4, 16)]
    made = request(
        tmp_path, "Preflight", mesh=meshes[1], hyperparameters={"global_batch_size": 8}, data={"max_seq_length": 512},
        memory={"source": "Compile", "slice": shape(1), "candidates": others, "choose_parallelism": True},
    )  # fmt: skip

    def rule(asked: Candidate) -> Answer:
        return measured(20, 1.0) if asked.mesh.tensor > 1 else exceeded(36)

    outcome = judged(made, rule, monkeypatch, tmp_path)
    assert (outcome.slice, outcome.mesh.fsdp, outcome.mesh.tensor) == ("v6e-4", 2, 2)


@pytest.mark.parametrize("source", ["Compile", "Analytic"])
def test_a_slice_on_which_heads_do_not_divide_is_left_and_said(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 devices can share 8 rows only in pairs, and one key and value head does not divide between two devices."""
    narrow = {"num_attention_heads": 16, "num_key_value_heads": 1, "hidden_size": 65536}
    with pytest.raises(StageError) as caught:
        chosen(
            tmp_path, monkeypatch, lambda _: exceeded(40), model={**narrow, "intermediate_size": 2**18}, source=source,
            larger=[],
        )  # fmt: skip
    assert caught.value.reason == "MemoryExceeded"
    assert "v6e-16 has 16 devices for 8 rows, and the model's 16 heads and 1 kv heads do not divide" in str(
        caught.value
    )


def test_a_batch_that_no_slice_can_divide_is_refused_without_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(asked: Candidate) -> Answer:
        raise AssertionError(asked)

    shared = {"hosts": 2, "chips_per_host": 4, "fsdp": 4, "tensor": 2}
    made = request(
        tmp_path, "Preflight", mesh=shared, hyperparameters={"global_batch_size": 4}, data={"max_seq_length": 512},
        memory={"source": "Compile", "slice": shape(8), "candidates": [{"slice": shape(8, "other"), "mesh": shared}]},
    )  # fmt: skip
    with pytest.raises(StageError, match="v6e-8 has 8 devices for 4 rows") as caught:
        judged(made, rule, monkeypatch, tmp_path, num_key_value_heads=1)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "BatchNotDivisible")


@pytest.mark.parametrize(("width", "fits"), [(1024, 4), (24576, 8), (32768, 16)])
def test_by_arithmetic_the_first_slice_that_holds_the_state_is_chosen(
    width: int, fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"hidden_size": width, "intermediate_size": 4 * width, "vocab_size": 32_000}
    outcome = chosen(tmp_path, monkeypatch, lambda _: exceeded(1), source="Analytic", model=wide)
    assert outcome.slice == f"v6e-{fits}"
    assert [each.slice.chips for each in outcome.unfit] == [chips for chips in CHOICE if chips < fits]


@pytest.mark.parametrize(("heads", "fits"), [(8, True), (2, False)])
def test_by_arithmetic_heads_have_to_divide_on_the_only_slice_too(
    heads: int, fits: bool, tmp_path: Path
) -> None:
    """With a single slice to choose from, the operator lets eight devices share a row without knowing the model."""
    place = shape(16)
    made = request(
        tmp_path, "Preflight", mesh={"hosts": 4, "chips_per_host": 4, "fsdp": 2, "tensor": 8},
        memory={"source": "Analytic", "slice": place}, hyperparameters={"global_batch_size": 2},
    )  # fmt: skip
    plan = families.resolve(
        {
            "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 8, "num_key_value_heads": heads, "head_dim": 16, "vocab_size": 512,
        }
    )  # fmt: skip
    if fits:
        assert check.check_memory(made, plan, tmp_path, open_store(), {}) is not None
        return
    with pytest.raises(StageError) as refusal:
        check.check_memory(made, plan, tmp_path, open_store(), {})
    assert refusal.value.code == ExitCode.BAD_REQUEST
    assert "2 kv heads" in str(refusal.value)
