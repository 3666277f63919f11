"""What the stages on CPU request of a node's memory."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import ModelIdentity, Stage
from finetune_contract.base import MOST_COUNT
from finetune_operator.catalog.gke_nodes import allocatable_gib
from finetune_operator.rendering.memory import (
    NODE_SIZES,
    CpuPoolTooSmall,
    largest_piece,
    limit_gib,
    memory_for,
    needed_gib,
    require_cpu_memory,
)
from tests.unit.rendering.models import MODELS, model, planned

pytestmark = pytest.mark.slow

SIZED = (Stage.CONVERT, Stage.EXPORT)


def pool(max_memory: str | None) -> Any:
    return planned(max_memory=max_memory)


def of_piece(parameters: int) -> ModelIdentity:
    return model(20 * parameters, parameters)


@pytest.mark.parametrize(
    ("node", "left"), [(16, 13.3), (32, 28.3), (64, 58.4), (128, 118.6), (256, 244.0), (4, 2.9)]
)
def test_gke_leaves_less_than_the_size_of_a_node(node: int, left: float) -> None:
    assert allocatable_gib(node) == pytest.approx(left, abs=0.05)


@pytest.mark.parametrize("rank", [None, 16, 128])
@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("Llama-3.1-8B", 16),
        ("Llama-3.1-70B", 32),
        ("Qwen3-14B", 32),
        ("Qwen3-30B-A3B", 16),
        ("Qwen3-235B-A22B", 32),
        ("gemma-3-27b", 32),
        ("Mixtral-8x7B", 16),
        ("DeepSeek-V2-Lite", 16),
    ],
)
def test_the_stages_of_a_published_model_fit_a_common_node(name: str, node: int, rank: int | None) -> None:
    """Full fine-tuning on 64 chips."""
    for stage in SIZED:
        for orbax in (False, True):
            plan = planned(rank, orbax=orbax, max_memory=f"{node}Gi", fsdp=64)
            assert memory_for(plan, stage, MODELS[name]) <= allocatable_gib(node) - 1


@pytest.mark.parametrize("stage", SIZED)
def test_more_layers_need_no_more_memory(stage: Stage) -> None:
    few, many = model(8 * 10**9, 525_336_576), model(400 * 10**9, 525_336_576)
    assert needed_gib(pool(None), stage, few) == needed_gib(pool(None), stage, many)


def test_an_export_reads_a_chips_share_of_a_stacked_array_at_once() -> None:
    mixtral = MODELS["Mixtral-8x7B"]
    assert needed_gib(planned(fsdp=4), Stage.EXPORT, mixtral) > needed_gib(
        planned(fsdp=64), Stage.EXPORT, mixtral
    )
    with pytest.raises(CpuPoolTooSmall, match=r"share of its largest array of 3\.76 billion"):
        require_cpu_memory(planned(fsdp=4, max_memory="16Gi"), SIZED, mixtral)
    assert needed_gib(planned(16, fsdp=4), Stage.EXPORT, mixtral) == 10, "an adapter has no such arrays"


@pytest.mark.parametrize("stage", SIZED)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("limit", [None, "27Gi", "30Gi", "32Gi"])
def test_a_request_fits_the_smallest_node_that_is_large_enough(
    stage: Stage, name: str, limit: str | None
) -> None:
    needed = needed_gib(pool(limit), stage, MODELS[name])
    try:
        asked = memory_for(pool(limit), stage, MODELS[name])
    except CpuPoolTooSmall:
        assert needed > 27
        return
    assert needed <= asked
    node = next(node for node in NODE_SIZES if node >= asked)
    assert asked + 0.9 <= allocatable_gib(node), "beside the DaemonSets of the cluster"


@given(st.integers(0, 400 * 10**9), st.sampled_from(SIZED), st.none() | st.integers(2, 6000))
def test_no_request_is_more_than_some_node_can_hold(piece: int, stage: Stage, limit: int | None) -> None:
    plan, found = pool(None if limit is None else f"{limit}Gi"), of_piece(piece)
    try:
        asked = memory_for(plan, stage, found)
    except CpuPoolTooSmall:
        assert limit is not None
        with pytest.raises(CpuPoolTooSmall):
            require_cpu_memory(plan, SIZED, found)
        return
    assert needed_gib(plan, stage, found) <= asked
    assert limit is None or asked <= limit
    if asked <= allocatable_gib(NODE_SIZES[-1]):
        node = next(node for node in NODE_SIZES if node >= asked)
        assert asked <= allocatable_gib(node)


@pytest.mark.parametrize("node", NODE_SIZES)
def test_a_limit_that_is_the_size_of_a_node_means_what_the_node_leaves(node: int) -> None:
    limit = limit_gib(pool(f"{node}Gi"))
    assert limit is not None
    assert limit <= allocatable_gib(node)


@pytest.mark.parametrize(
    ("given", "limit"), [("115Gi", 115), ("100Gi", 100), ("8Gi", 8), ("123480309760", 115)]
)
def test_a_limit_that_a_node_can_hold_is_taken_as_it_is(given: str, limit: int) -> None:
    assert limit_gib(pool(given)) == limit


@pytest.mark.parametrize("quantity", ["1P", "1Ei", "5Pi", "2E"])
def test_every_quantity_that_the_schema_takes_is_read(quantity: str) -> None:
    assert memory_for(pool(quantity), Stage.EXPORT, of_piece(10**9)) > 8


@pytest.mark.parametrize("quantity", ["0", "1m", "100Mi"])
def test_a_limit_below_which_nothing_runs_is_refused_for_every_stage(quantity: str) -> None:
    for stage in (Stage.PREFLIGHT, *SIZED):
        with pytest.raises(CpuPoolTooSmall, match=quantity):
            memory_for(pool(quantity), stage, None)


def test_the_refusal_names_every_stage_the_piece_the_limit_and_the_node() -> None:
    with pytest.raises(CpuPoolTooSmall) as caught:
        require_cpu_memory(planned(16, max_memory="16Gi"), (*SIZED, Stage.TRAIN), MODELS["gemma-3-27b"])
    message = f"{caught.value} {caught.value.fix}"
    for word in ("Convert needs 24 GiB and Export needs 24 GiB of memory", "1.41 billion", "adapter of rank 16",
                 "cpuPool.maxMemory is 16Gi, of which 12 GiB are allocatable on a node",
                 "give a pod 24 GiB: cpuPool.maxMemory 27Gi", "node of 32 GiB"):  # fmt: skip
        assert word in message, message
    assert caught.value.stage is Stage.CONVERT


@pytest.mark.parametrize("stages", [SIZED, (Stage.CONVERT,)], ids=["both", "Convert"])
def test_the_limit_that_the_refusal_names_is_enough(stages: tuple[Stage, ...]) -> None:
    for piece in range(5 * 10**8, 5 * 10**11, 10**9):
        with pytest.raises(CpuPoolTooSmall) as refused:
            require_cpu_memory(pool("8Gi"), stages, of_piece(piece))
        named = re.search(r"cpuPool.maxMemory ([0-9]+Gi)", refused.value.fix)
        assert named is not None
        require_cpu_memory(pool(named[1]), stages, of_piece(piece))
        for stage in stages:
            memory_for(pool(named[1]), stage, of_piece(piece))


def test_the_largest_piece_that_fits_does() -> None:
    assert largest_piece(pool(None)) is None
    assert largest_piece(pool("1Gi")) == 0
    for limit in ("16Gi", "57Gi", "115Gi", "120Gi", "3000Gi"):
        most = largest_piece(pool(limit))
        assert most is not None
        for stage in SIZED:
            memory_for(pool(limit), stage, of_piece(most))
            with pytest.raises(CpuPoolTooSmall):
                memory_for(pool(limit), stage, of_piece(most + 10**8))


def test_the_largest_numbers_that_a_record_may_have_are_judged_without_an_error() -> None:
    most = model(MOST_COUNT, MOST_COUNT, MOST_COUNT, MOST_COUNT, MOST_COUNT, MOST_COUNT)
    assert memory_for(planned(256), Stage.EXPORT, most) > 8
    with pytest.raises(CpuPoolTooSmall, match="billion"):
        require_cpu_memory(pool("115Gi"), SIZED, most)


def test_an_adapter_needs_memory_by_its_rank() -> None:
    llama = MODELS["Llama-3.1-70B"]
    small, large = (needed_gib(planned(rank, "Adapter"), Stage.EXPORT, llama) for rank in (16, 256))
    assert needed_gib(planned(16), Stage.CONVERT, llama) == 18
    assert (small, large) == (19, 40)
