"""Which candidates are compiled and which is taken, with a compiler that answers by a rule; and what its texts say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import pytest

from finetune_contract import ExitCode, MeshSpec, SliceShape
from finetune_trainer import families
from finetune_trainer.compiled import check
from finetune_trainer.compiled.chips import CHIPS, roofline
from finetune_trainer.compiled.compiler import needed_bytes
from finetune_trainer.compiled.cost import Cost, cost_of
from finetune_trainer.compiled.question import Answer, Candidate, Exceeded, Measured, NotCompiled
from finetune_trainer.compiled.search import Choices, Model, search
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from tests.trainer.requests import request

GIB = 2**30
ALL = Choices(remat=True, tiles=True, parallelism=True)
MODEL = Model(heads=16, kv_heads=8, vocab_size=150_000, sequence=2048)


def shape(chips: int, name: str = "") -> SliceShape:
    return SliceShape(
        name=name or f"v6e-{chips}", family="v6e", topology="2x2", hosts=max(1, chips // 4), chips=chips,
        devices=chips, hbm_gib=32,
    )  # fmt: skip


def candidate(batch: int = 16, chips: int = 4) -> Candidate:
    mesh = MeshSpec(hosts=1, chips_per_host=4, fsdp=chips)
    return Candidate(slice=shape(chips), mesh=mesh, global_batch=batch)


def measured(peak: float, seconds: float) -> Measured:
    return Measured(
        peak_bytes=int(peak * GIB), limit_bytes=31 * GIB, arguments_bytes=GIB, temporaries_bytes=GIB, flops=1.0,
        hbm_bytes=1.0, network_bytes=1.0, step_seconds=(seconds / 2, seconds),
    )  # fmt: skip


def exceeded(needed: float) -> Exceeded:
    return Exceeded(needed_bytes=int(needed * GIB), limit_bytes=31 * GIB, arguments_bytes=GIB)


def by_rule(peak: Callable[[Candidate], float], seconds: dict[str, float]) -> Callable[[Candidate], Answer]:
    def ask(asked: Candidate) -> Answer:
        needed = peak(asked)
        policy = str(asked.tuning.get("remat_policy", "full"))
        return measured(needed, seconds[policy]) if needed <= 31 else exceeded(needed)

    return ask


SECONDS = {"minimal_with_context": 1.0, "save_qkv_proj": 1.2, "full": 1.4, "custom": 1.4}
PEAKS = {"minimal_with_context": 3.0, "save_qkv_proj": 2.0, "full": 1.0, "custom": 0.5}


def grows(asked: Candidate) -> float:
    """With the rows of a device, times what the policy keeps."""
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
    fixed = Choices(remat=False, tiles=False, parallelism=False)
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


def test_a_refusal_names_what_was_compiled_and_fits() -> None:
    choices = Choices(remat=True, tiles=True, parallelism=False, larger=(shape(8), shape(16)))
    found = search(candidate(512), choices, MODEL, by_rule(grows, SECONDS))
    assert found.best is None
    assert found.remedies == ("hyperparameters.globalBatchSize 248", "resources.tpu v6e-16")
    assert len(found.tried) <= 12


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize(("fixed", "each"), [(0.0, 0.9), (8.0, 0.5), (20.0, 0.3), (2.0, 8.0)])
@pytest.mark.parametrize("batch", [24, 96, 480, 4800])
def test_the_largest_batch_is_found_where_memory_grows_in_a_line(
    batch: int, fixed: float, each: float, accumulation: int
) -> None:
    """``each``: GiB of a row of a device in one forward pass."""
    unit = 4 * accumulation

    def needs(asked: Candidate) -> float:
        return fixed + each * asked.global_batch / unit

    fits = int((31 - fixed) / each) * unit
    choices = Choices(remat=False, tiles=False, parallelism=False)
    model = replace(MODEL, accumulation=accumulation)
    rule = by_rule(needs, SECONDS)
    found = search(candidate(batch // unit * unit), choices, model, rule)
    if batch // unit * unit <= fits:
        assert found.best is not None
    else:
        assert found.remedies == (f"hyperparameters.globalBatchSize {fits}",)


def test_a_batch_that_may_not_be_the_largest_is_told_so() -> None:
    """Nobody says how much is needed, so the search halves."""

    def ask(asked: Candidate) -> Answer:
        if asked.global_batch <= 900:
            return measured(30, 1.0)
        return Exceeded(needed_bytes=None, limit_bytes=31 * GIB, arguments_bytes=GIB)

    fixed = Choices(remat=False, tiles=False, parallelism=False)
    (remedy,) = search(candidate(4000), fixed, MODEL, ask).remedies
    assert remedy.endswith(" (perhaps more)")


def test_where_nothing_fits_the_search_ends() -> None:
    choices = Choices(remat=True, tiles=True, parallelism=True, larger=(shape(8), shape(16)))
    found = search(candidate(256), choices, MODEL, lambda asked: exceeded(1000))
    assert (found.best, found.remedies) == (None, ())
    assert len(found.tried) <= 12


def test_a_refusal_for_another_reason_is_no_lack_of_memory() -> None:
    found = search(candidate(), ALL, MODEL, lambda asked: NotCompiled(message="no"))
    assert isinstance(found.refusal, NotCompiled)
    assert found.remedies == ()


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


#: As libtpu prints a matrix product that overlaps with the network: 4 shards of 16 an iteration, the counter raised by 2
#: to a limit of 8, every scalar copied first. Dots stand for its convolutions.
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
        # a limit that is known when the program runs
        ("compare(%get-tuple-element.2467, %constant.2585)", "compare(%get-tuple-element.2467, %get-tuple-element.2467)"),
    ],
)  # fmt: skip
def test_a_loop_without_a_counter_counts_once_and_is_told(
    old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    endless = WINDOWED.replace(old, new)
    assert endless != WINDOWED
    assert cost_of(endless).flops == pytest.approx(2 * 64 * 64 * 32, rel=0.01)
    assert "windowed_body.sunk" in caplog.text


#: 4 heads of 128, keys and values of 2 heads, 256 tokens, rows before them where there are several.
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


#: 512 tokens of width 64, each by one of 8 experts' matrices of 64 by 32; and what gives the experts' gradient.
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
    cost = Cost(flops=918e12, hbm_bytes=1638e9, network_bytes=224e9)
    interval = roofline(cost, state_bytes=1000, chip=CHIPS["v6e"])
    assert interval.low == pytest.approx(1.0)
    assert interval.high == pytest.approx(3.0)
    idle = roofline(Cost(flops=0, hbm_bytes=0, network_bytes=0), int(1638e9), CHIPS["v6e"])
    assert idle.low == pytest.approx(1.0)


# --- what preflight makes of it


class ByRule:
    """A compiler that answers by a rule, in the place of the real one."""

    compiled = 1

    def __init__(self, rule: Callable[[Candidate], Answer]) -> None:
        self._rule = rule

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was started."""

    def __call__(self, candidate: Candidate) -> Answer:
        return self._rule(candidate)


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: Callable[[Candidate], Answer]) -> Any:
    """``check_memory`` for batch 64 of a Qwen3 on v6e-4, where the profile also has v6e-8 and v6e-16."""
    monkeypatch.setattr(check, "Asking", lambda *_: ByRule(rule))
    plan = families.resolve({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2})
    made = request(
        tmp_path,
        "Preflight",
        mesh={"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        memory={"source": "Compile", "slice": shape(4), "larger": [shape(8), shape(16)]},
        hyperparameters={"global_batch_size": 64},
        data={"max_seq_length": 2048},
    )
    return check.check_memory(made, plan, tmp_path, open_store(), {})


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
    for told in ("spec.resources", "34.50 GiB of 31.00 GiB per device with batch 64 on v6e-4", "globalBatchSize 56",
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
    unsaid = Exceeded(needed_bytes=None, limit_bytes=31 * GIB, arguments_bytes=GIB)
    with pytest.raises(StageError, match=r"more than there is of 31\.00 GiB") as caught:
        checked(tmp_path, monkeypatch, lambda _: unsaid)
    assert caught.value.reason == "MemoryExceeded"


def test_one_refusal_for_memory_is_enough_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of candidates that do not compile nothing is known; of one that does not fit, it is."""

    def mixed(asked: Candidate) -> Answer:
        full = asked.tuning.get("remat_policy") == "full"
        return exceeded(40) if full else NotCompiled(message="not taken")

    with pytest.raises(StageError) as caught:
        checked(tmp_path, monkeypatch, mixed)
    assert caught.value.reason == "MemoryExceeded"


def test_what_does_not_compile_for_another_reason_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = checked(tmp_path, monkeypatch, lambda _: NotCompiled(message="not taken"))
    assert "not taken" in outcome.unknown
    assert outcome.peak_bytes is None


def test_a_step_that_fits_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = checked(tmp_path, monkeypatch, a_gigabyte_a_row)
    assert outcome.unknown == ""
    assert outcome.peak_bytes == int(18.5 * GIB)
