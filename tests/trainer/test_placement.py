"""The sharding of a model in evaluation, and the number of rows in a batch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from finetune_contract import StageRequest
from finetune_trainer import families
from finetune_trainer.engine.chips import usable_bytes
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.batching import Batching
from finetune_trainer.evaluation.placement import DeviceRowCapacity
from finetune_trainer.families import ModelPlan
from finetune_trainer.training.settings import per_device_batch_size
from tests.trainer.fixed_rows import FixedRowCapacity
from tests.trainer.requests import request

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
V6E, V5E = usable_bytes("TPU v6 lite"), usable_bytes("TPU v5 lite")


def plan_of(**changes: Any) -> ModelPlan:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 5e5,
    }  # fmt: skip
    return families.resolve({**config, **changes})


def asked(chips: int, batch: int, **changes: Any) -> StageRequest:
    mesh = {
        "hosts": max(1, chips // 4),
        "chips_per_host": min(4, chips),
        "fsdp": chips,
        **changes.pop("mesh", {}),
    }
    hyperparameters = {
        "global_batch_size": batch,
        "compute_precision": "BF16",
        **changes.pop("hyperparameters", {}),
    }
    return request(Path("/tmp"), "Evaluate", mesh=mesh, hyperparameters=hyperparameters, **changes)


def row_capacity(
    chips: int, *, batch: int = 64, memory: int | None = V6E, plan: ModelPlan | None = None, **changes: Any
) -> DeviceRowCapacity:
    return DeviceRowCapacity.of(asked(chips, batch, **changes), plan or plan_of(), memory=memory)


def axes(found: DeviceRowCapacity) -> tuple[int, int, int]:
    mesh = found.request.mesh
    return mesh.data, mesh.fsdp, mesh.tensor


def test_devices_share_matrices_and_groups_of_them_hold_copies() -> None:
    assert axes(row_capacity(16)) == (2, 1, 8)
    assert axes(row_capacity(4)) == (1, 1, 4)
    assert axes(row_capacity(1, mesh={"fsdp": 1})) == (1, 1, 1)


def test_as_many_devices_share_a_matrix_as_heads_and_widths_divide() -> None:
    assert axes(row_capacity(16, plan=plan_of(num_key_value_heads=2))) == (8, 1, 2)
    assert axes(row_capacity(16, plan=plan_of(vocab_size=128_258, num_key_value_heads=8))) == (8, 1, 2)
    assert axes(row_capacity(8, memory=V5E, plan=plan_of(vocab_size=32_003))) == (1, 8, 1), (
        "copies would fill a device"
    )


def test_a_model_too_large_for_copies_is_spread_over_the_groups() -> None:
    large = plan_of(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)
    assert axes(row_capacity(32, plan=large, memory=V5E)) == (1, 4, 8)
    assert axes(row_capacity(32, memory=None)) == (1, 4, 8), "the memory of the devices is unknown"


def test_slices_hold_copies_and_the_users_own_sharing_stays() -> None:
    several = row_capacity(8, mesh={"slices": 2, "data": 2, "hosts": 2, "fsdp": 8})
    assert axes(several) == (2, 1, 8)
    assert axes(row_capacity(16, mesh={"fsdp": 1, "tensor": 16})) == (1, 1, 16)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("chips", [1, 4, 16, 64])
def test_rows_of_training_divide_among_the_groups_for_every_family(name: str, chips: int) -> None:
    plan = families.resolve(PUBLISHED[name]["config"])
    for memory in (None, V6E):
        found = DeviceRowCapacity.of(asked(chips, 2 * chips), plan, memory=memory)
        assert found.request.mesh.devices == chips
        assert (2 * chips) % found.groups == 0
        assert per_device_batch_size(found.request.hyperparameters, found.request.mesh) > 0
        assert found.rows(tokens=640, logits=1) % found.groups == 0


def test_weights_are_held_as_they_are_multiplied() -> None:
    assert row_capacity(4).request.hyperparameters.weight_precision == "BF16"
    exact = row_capacity(4, hyperparameters={"compute_precision": "FP32", "weight_precision": "FP32"})
    assert exact.request.hyperparameters.weight_precision == "FP32"


def test_rows_come_from_memory_and_not_from_the_training_batch() -> None:
    """256 prompts of 8,192 tokens would need 279 GB of cache for an 8B model."""
    assert {row_capacity(4, batch=batch).rows(tokens=8320, logits=1) for batch in (4, 256, 1024)} == {
        row_capacity(4).rows(tokens=8320, logits=1)
    }
    taken = row_capacity(4, batch=256).rows(tokens=8320, logits=1)
    cache = 2 * 32 * 8 * 128 * 2 * 8320
    assert 1 <= taken * cache < 4 * 32e9 - plan_of().parameters * 2
    assert row_capacity(4).rows(tokens=640, logits=1) > taken
    assert row_capacity(4).rows(tokens=8192, logits=8192) < taken, (
        "the logits of all positions are larger than a cache"
    )


def test_without_known_memory_rows_are_those_of_a_forward_pass() -> None:
    accumulated = {"gradient_accumulation_steps": 16}
    assert (
        row_capacity(4, batch=256, memory=None, hyperparameters=accumulated).rows(tokens=64, logits=1) == 16
    )


class Refusing:
    """Simulates devices that have memory for ``most`` rows."""

    def __init__(self, most: int) -> None:
        self.most, self.tried = most, list[int]()

    def __call__(self, some: Sequence[int], rows: int) -> list[int]:
        self.tried.append(rows)
        if rows > self.most:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")
        assert len(some) <= rows
        return [10 * number for number in some]


def test_rows_that_do_not_fit_are_halved_and_nothing_is_lost_or_done_twice() -> None:
    batching, devices = Batching(row_capacity=FixedRowCapacity(number=32, groups=2)), Refusing(8)
    found = [pair for some, results in batching.over(range(50), devices, tokens=1, logits=1)
             for pair in zip(some, results, strict=True)]  # fmt: skip
    assert found == [(number, 10 * number) for number in range(50)]
    assert devices.tried == [32, 16, *[8] * 7]
    later = Refusing(8)
    list(batching.over(range(50), later, tokens=1, logits=1))
    assert later.tried == [8] * 7, "a size that did not fit is not tried again"


def test_one_row_that_does_not_fit_names_what_to_change() -> None:
    batching, devices = Batching(row_capacity=FixedRowCapacity(number=8, groups=2)), Refusing(1)
    with pytest.raises(StageError, match=r"maxNewTokens") as caught:
        list(batching.over(range(3), devices, tokens=1, logits=1))
    assert (caught.value.code, caught.value.reason) == (78, "EvaluationOutOfMemory")
    assert devices.tried == [4, 2]


def test_another_fault_of_the_device_is_not_taken_for_lack_of_memory() -> None:
    def broken(_some: Sequence[int], _rows: int) -> list[int]:
        raise JaxRuntimeError("INTERNAL: a chip is gone")

    with pytest.raises(JaxRuntimeError, match="a chip is gone"):
        list(Batching(row_capacity=FixedRowCapacity(number=8)).over(range(3), broken, tokens=1, logits=1))


def test_few_texts_take_few_rows_and_one_program() -> None:
    batching, devices = Batching(row_capacity=FixedRowCapacity(number=64)), Refusing(64)
    list(batching.over(range(5), devices, tokens=1, logits=1))
    assert devices.tried == [8]
    list(batching.over(range(65), devices, tokens=1, logits=1))
    assert devices.tried == [8, 64, 64], "the remaining rows use a program that is already compiled"
