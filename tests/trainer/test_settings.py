"""MaxText's settings from a request, checked with MaxText's own functions where they exist."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.core.spmd import logical_axis_rules
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from maxtext.utils import maxtext_utils, model_creation_utils

from finetune_contract import HyperparametersSpec, MeshSpec
from finetune_trainer import families
from finetune_trainer.engine import maxtext
from finetune_trainer.errors import StageError
from finetune_trainer.training import settings
from tests.doubles.tiny_models import TinyModelSpec, config_of
from tests.trainer.requests import hyperparameters, request


def learning_rates(h: HyperparametersSpec, steps: int) -> list[float]:
    """Returns the learning rate of MaxText's schedule at every step."""
    from maxtext.configs.types import LearningRateScheduleType, WsdDecayStyle
    from maxtext.utils.maxtext_utils import create_learning_rate_schedule

    made = settings.optimizer(h, steps) | {"steps": steps}
    made["lr_schedule_type"] = LearningRateScheduleType(made["lr_schedule_type"])
    if "wsd_decay_style" in made:
        made["wsd_decay_style"] = WsdDecayStyle(made["wsd_decay_style"])
    schedule = create_learning_rate_schedule(SimpleNamespace(**made))
    return [float(schedule(step)) for step in range(steps)]


def test_a_constant_schedule_warms_up_and_stays() -> None:
    rates = learning_rates(hyperparameters(schedule="Constant", warmup_steps=4), 10)
    assert rates == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1])


def test_a_linear_schedule_falls_to_nothing() -> None:
    rates = learning_rates(hyperparameters(schedule="Linear", warmup_steps=0), 10)
    assert rates == pytest.approx([1 - i / 10 for i in range(10)], abs=1e-6)


def test_a_cosine_schedule_falls_to_nothing_after_the_last_step() -> None:
    """The expected values are those of transformers' ``get_cosine_schedule_with_warmup``."""
    rates = learning_rates(hyperparameters(schedule="Cosine", warmup_steps=2), 10)
    expected = [0, 0.5] + [0.5 * (1 + np.cos(np.pi * i / 8)) for i in range(8)]
    assert rates == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("schedule", ["Cosine", "Linear", "Constant"])
@pytest.mark.parametrize("ratio", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_the_last_step_trains_whatever_share_warms_up(schedule: str, ratio: float, steps: int) -> None:
    rates = learning_rates(hyperparameters(schedule=schedule, warmup_ratio=ratio), steps)
    assert rates[-1] > 0


@given(st.integers(1, 5000), st.data())
@hypothesis_settings(max_examples=200)
def test_warm_up_has_exactly_the_steps_asked_for(steps: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, steps))
    fraction = settings.optimizer(hyperparameters(warmup_steps=warmup), steps)["warmup_steps_fraction"]
    assert int((steps + 1) * fraction) == warmup  # as MaxText computes it
    assert 0 <= fraction <= 1
    linear = settings.optimizer(hyperparameters(warmup_steps=warmup, schedule="Linear"), steps)
    assert int((steps + 1) * linear["wsd_decay_steps_fraction"]) == steps + 1 - warmup
    assert linear["warmup_steps_fraction"] + linear["wsd_decay_steps_fraction"] <= 1  # as MaxText requires


def test_a_ratio_is_rounded_up_and_no_ratio_is_no_warm_up() -> None:
    assert settings.warmup_steps(hyperparameters(warmup_ratio=0.03), 100) == 3
    assert settings.warmup_steps(hyperparameters(warmup_ratio=0.03), 20) == 1
    assert settings.warmup_steps(hyperparameters(warmup_ratio=0.03), 1) == 0
    assert settings.warmup_steps(hyperparameters(), 20) == 0
    assert settings.warmup_steps(hyperparameters(warmup_steps=50), 20) == 20


def test_rows_are_dealt_to_devices_and_tensor_parallelism_shares_a_row() -> None:
    def rows(mesh: MeshSpec, **numbers: int) -> float:
        return settings.per_device_batch_size(hyperparameters(**numbers), mesh)

    assert rows(MeshSpec(hosts=2, chips_per_host=4, fsdp=8)) == 1
    assert rows(MeshSpec(hosts=1, chips_per_host=4, fsdp=2, tensor=2)) == 2
    assert rows(MeshSpec(hosts=1, chips_per_host=4, fsdp=2, tensor=2), global_batch_size=2) == 0.5
    assert rows(MeshSpec(hosts=1, chips_per_host=4, fsdp=2), gradient_accumulation_steps=4) == 1


@pytest.mark.parametrize(
    ("rows", "parts", "nearest"),
    [
        (6, 1, "Use 4 or 8"),
        (3, 1, "Use 4."),
        (9, 1, "Use 8 or 12"),
        (12, 2, "in 2 forward passes.*Use 8 or 16"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_does(
    rows: int, parts: int, nearest: str
) -> None:
    asked = hyperparameters(global_batch_size=rows, gradient_accumulation_steps=parts)
    with pytest.raises(StageError, match=nearest):
        settings.per_device_batch_size(asked, MeshSpec(hosts=1, chips_per_host=4, fsdp=4))


def test_slices_split_the_data_axis_on_tpu_and_are_unknown_on_cpu() -> None:
    mesh = MeshSpec(hosts=2, chips_per_host=4, slices=2, data=4, fsdp=4)
    assert settings.parallelism(mesh, on_cpu=False)["dcn_data_parallelism"] == 2
    assert settings.parallelism(mesh, on_cpu=False)["ici_data_parallelism"] == 2
    assert settings.parallelism(mesh, on_cpu=True)["ici_data_parallelism"] == 4
    with pytest.raises(StageError, match="a multiple of 2"):
        settings.parallelism(mesh.model_copy(update={"data": 1}), on_cpu=False)


def test_every_setting_is_one_that_maxtext_knows(tmp_path: Path) -> None:
    from maxtext.configs.types import MaxTextConfig

    from finetune_trainer.families import read
    from tests.trainer.models import qwen3

    plan = read(qwen3(tmp_path))
    for method in ({}, {"lora": {"rank": 4, "alpha": 8.0}}):
        made = settings.settings(
            request(tmp_path, "Train", method=method), plan, steps=9, platform="tpu", output="/x"
        )
        assert made.keys() <= MaxTextConfig.model_fields.keys()


@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
@pytest.mark.parametrize("precision", ["FP32", "BF16"])
def test_products_of_float32_are_made_in_float32_on_every_device(
    family: Any, precision: str, tmp_path: Path
) -> None:
    """A TPU rounds operands to bfloat16 for every product that does not request a higher precision."""
    plan = families.resolve(config_of(TinyModelSpec(family=family)))
    maxtext.prepare(plan)
    made = request(tmp_path, "Train", hyperparameters={"compute_precision": precision})
    chosen = settings.settings(made, plan, steps=1, platform="cpu", output=str(tmp_path))
    config = maxtext.configure(plan, maxtext.SFT, **chosen)
    mesh = maxtext_utils.get_mesh_from_config(config)
    tokens = jnp.zeros((8, 64), jnp.int32)
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        graph, state = nnx.split(nnx.eval_shape(model_creation_utils.get_nnx_create_model_fn(config, mesh)))
        traced = jax.make_jaxpr(
            lambda state: nnx.merge(graph, state)(tokens, tokens, tokens, enable_dropout=False)
        )(state)
    products = [eqn for eqn in equations(traced.jaxpr) if eqn.primitive.name == "dot_general"]
    # multiplying by a norm's scale is elementwise, without a sum
    asked = {eqn.params["precision"] for eqn in products if eqn.params["dimension_numbers"][0][0]}
    highest = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
    assert len(products) > 8
    assert asked == {highest} if precision == "FP32" else highest not in asked


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


@pytest.mark.parametrize(("method", "exact"), [({}, False), ({"type": "DPO", "max_prompt_length": 8}, True)])
def test_pairs_of_answers_are_compared_by_logits_in_float32(
    method: dict[str, Any], exact: bool, tmp_path: Path
) -> None:
    plan = families.resolve(config_of(TinyModelSpec()))
    made = request(tmp_path, "Train", method=method, hyperparameters={"compute_precision": "BF16"})
    chosen = settings.settings(made, plan, steps=1, platform="tpu", output=str(tmp_path))
    assert chosen["logits_dot_in_fp32"] is exact
