"""Which candidates are compiled and which is taken, with a compiler that answers by a rule; and what its texts say."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from finetune_contract import MeshSpec, SliceShape
from finetune_trainer.compiled.chips import CHIPS, roofline
from finetune_trainer.compiled.compiler import needed_bytes
from finetune_trainer.compiled.cost import Cost, cost_of
from finetune_trainer.compiled.question import Answer, Candidate, Exceeded, Measured, NotCompiled
from finetune_trainer.compiled.search import Choices, Model, search

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


SECONDS = {"minimal_with_context": 1.0, "save_qkv_proj": 1.2, "full": 1.4}
PEAKS = {"minimal_with_context": 3.0, "save_qkv_proj": 2.0, "full": 1.0}


def grows(asked: Candidate) -> float:
    """With the rows of a device, times what the policy keeps."""
    rows = asked.global_batch / (asked.mesh.data * asked.mesh.fsdp * asked.mesh.tensor)
    return rows * PEAKS[str(asked.tuning.get("remat_policy", "full"))]


@pytest.mark.parametrize(
    ("batch", "policy"), [(16, "minimal_with_context"), (56, "save_qkv_proj"), (100, "full")]
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
    found = search(candidate(256), choices, MODEL, by_rule(grows, SECONDS))
    assert found.best is None
    assert found.remedies == ("hyperparameters.globalBatchSize 120", "resources.tpu v6e-16")
    assert len(found.tried) <= 8


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


def test_no_step_is_faster_than_its_arithmetic_or_its_state() -> None:
    cost = Cost(flops=918e12, hbm_bytes=1638e9, network_bytes=224e9)
    interval = roofline(cost, state_bytes=1000, chip=CHIPS["v6e"])
    assert interval.low == pytest.approx(1.0)
    assert interval.high == pytest.approx(3.0)
    idle = roofline(Cost(flops=0, hbm_bytes=0, network_bytes=0), int(1638e9), CHIPS["v6e"])
    assert idle.low == pytest.approx(1.0)
