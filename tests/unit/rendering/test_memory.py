"""What the stages on CPU request of a node's memory."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import Stage
from finetune_operator.rendering.memory import (
    NODE_SIZES,
    CpuPoolTooSmall,
    allocatable_gib,
    limit_gib,
    memory_for,
    most_parameters,
    needed_gib,
    require_cpu_memory,
)

pytestmark = pytest.mark.slow

MODELS = {
    "Llama-3.1-8B": 8_030_261_248,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-12b": 12_187_325_040,
    "Mistral-Nemo-12B": 12_247_782_400,
    "Qwen3-14B": 14_768_307_200,
}
SIZED = (Stage.CONVERT, Stage.EXPORT)


def pool(max_memory: str | None) -> Any:
    """As much of a plan as decides memory."""
    return exported("Merged", None, max_memory=max_memory)


@pytest.mark.parametrize(
    ("node", "left"), [(16, 13.3), (32, 28.3), (64, 58.4), (128, 118.6), (256, 244.0), (4, 2.9)]
)
def test_gke_leaves_less_than_the_size_of_a_node(node: int, left: float) -> None:
    assert allocatable_gib(node) == pytest.approx(left, abs=0.05)


@pytest.mark.parametrize("stage", SIZED)
@pytest.mark.parametrize("parameters", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("limit", [None, "115Gi", "120Gi", "128Gi"])
def test_a_request_fits_the_smallest_node_that_is_large_enough(
    stage: Stage, parameters: int, limit: str | None
) -> None:
    try:
        asked = memory_for(pool(limit), stage, parameters)
    except CpuPoolTooSmall:
        assert needed_gib(pool(limit), stage, parameters) > 115
        return
    assert needed_gib(pool(limit), stage, parameters) <= asked
    node = next(node for node in NODE_SIZES if node >= asked)
    assert asked + 0.9 <= allocatable_gib(node), "beside the DaemonSets of the cluster"


@given(st.integers(0, 600 * 10**9), st.sampled_from(SIZED), st.none() | st.integers(8, 6000))
def test_no_request_is_more_than_some_node_can_hold(parameters: int, stage: Stage, limit: int | None) -> None:
    plan = pool(None if limit is None else f"{limit}Gi")
    try:
        asked = memory_for(plan, stage, parameters)
    except CpuPoolTooSmall:
        assert limit is not None
        with pytest.raises(CpuPoolTooSmall):
            require_cpu_memory(plan, SIZED, parameters)
        return
    assert needed_gib(plan, stage, parameters) <= asked
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
    assert memory_for(pool(quantity), Stage.EXPORT, 10**9) > 8


@pytest.mark.parametrize("quantity", ["0", "1m", "100Mi"])
def test_a_limit_below_which_nothing_runs_is_refused_for_every_stage(quantity: str) -> None:
    for stage in (Stage.PREFLIGHT, *SIZED):
        with pytest.raises(CpuPoolTooSmall, match=quantity):
            memory_for(pool(quantity), stage, 0)


def test_the_refusal_names_every_stage_the_limit_what_fits_and_the_node() -> None:
    with pytest.raises(CpuPoolTooSmall) as caught:
        require_cpu_memory(pool("64Gi"), (*SIZED, Stage.TRAIN), MODELS["Qwen3-14B"])
    told = f"{caught.value} {caught.value.fix}"
    for word in ("14.8 billion", "Convert about 160 GiB", "Export about 130 GiB", "64Gi", "57 GiB", "up to 4.8 billion",
                 "give a pod 160 GiB: cpuPool.maxMemory 180Gi", "node of 192 GiB"):  # fmt: skip
        assert word in told, told
    assert caught.value.stage is Stage.CONVERT


@pytest.mark.parametrize("stages", [SIZED, (Stage.CONVERT,)], ids=["both", "Convert"])
def test_the_limit_that_the_refusal_names_is_enough(stages: tuple[Stage, ...]) -> None:
    for parameters in range(10**8, 10**12, 2 * 10**8):
        with pytest.raises(CpuPoolTooSmall) as refused:
            require_cpu_memory(pool("8Gi"), stages, parameters)
        named = re.search(r"cpuPool.maxMemory ([0-9]+Gi)", refused.value.fix)
        assert named is not None
        require_cpu_memory(pool(named[1]), stages, parameters)
        for stage in stages:
            memory_for(pool(named[1]), stage, parameters)


def test_the_largest_model_that_fits_does() -> None:
    for limit in ("16Gi", "57Gi", "115Gi", "120Gi", "3000Gi"):
        for stage in SIZED:
            most = most_parameters(pool(limit), stage)
            assert most is not None
            memory_for(pool(limit), stage, most)
            with pytest.raises(CpuPoolTooSmall):
                memory_for(pool(limit), stage, most + 10**9)


@pytest.mark.parametrize("parameters", [-1, 10**400])
def test_a_damaged_record_is_judged_without_an_error(parameters: int) -> None:
    assert memory_for(pool(None), Stage.EXPORT, parameters) > 8
    if parameters > 0:
        with pytest.raises(CpuPoolTooSmall, match="billion"):
            require_cpu_memory(pool("115Gi"), SIZED, parameters)


def exported(
    content: str,
    rank: int | None,
    *,
    source: str | None = None,
    orbax: bool = False,
    max_memory: str | None = None,
) -> Any:
    """As much of a plan as decides memory. ``source``: of the base model, in MaxText's format."""
    return SimpleNamespace(
        cpu_pool=SimpleNamespace(max_memory=max_memory),
        method=SimpleNamespace(lora=rank and SimpleNamespace(rank=rank)),
        export=SimpleNamespace(content=content, orbax=orbax),
        model=SimpleNamespace(orbax=source),
    )


def test_an_adapter_needs_memory_by_its_rank_and_no_more_than_a_model() -> None:
    model = needed_gib(exported("Merged", None), Stage.EXPORT, 70 * 10**9)
    small, large = (needed_gib(exported("Adapter", rank), Stage.EXPORT, 70 * 10**9) for rank in (16, 256))
    assert 8 < small < 16 < large < model / 2
    assert needed_gib(exported("Adapter", 10**6), Stage.EXPORT, 70 * 10**9) == model
    assert needed_gib(exported("Adapter", 16, source="gs://m/0/items"), Stage.EXPORT, 70 * 10**9) == model


@pytest.mark.parametrize("content", ["Merged", "Both"])
def test_an_adapter_is_merged_tensor_by_tensor(content: str) -> None:
    assert needed_gib(exported(content, 16), Stage.EXPORT, MODELS["Qwen3-14B"]) < 40
    whole = needed_gib(exported("Merged", None), Stage.EXPORT, MODELS["Qwen3-14B"])
    assert (
        needed_gib(exported(content, 16, source="gs://m/0/items"), Stage.EXPORT, MODELS["Qwen3-14B"]) == whole
    )


@pytest.mark.parametrize("rank", [None, 16])
def test_maxtexts_format_costs_an_export_another_conversion(rank: int | None) -> None:
    assert needed_gib(exported("Merged", rank, orbax=True), Stage.EXPORT, 10**10) == needed_gib(
        exported("Merged", rank), Stage.CONVERT, 10**10
    )
