"""Training that changes nothing, or does not change every layer, fails."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from finetune_contract import TrainOutcome
from finetune_trainer.errors import StageError
from finetune_trainer.training.parameter_changes import require_parameter_changes
from tests.trainer.stages import Stages

RATES = np.asarray([0.0, 1e-3])
TENSORS = ("self_attn.q_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight")


def all_but(*still: str, layers: int = 3) -> dict[str, bool]:
    names = [f"model.layers.{i}.{name}" for i in range(layers) for name in TENSORS]
    return {name: name not in still for name in ("model.embed_tokens.weight", *names)}


def layer(number: int) -> list[str]:
    return [f"model.layers.{number}.{name}" for name in TENSORS]


def test_single_tensors_may_stay_as_they_were_and_are_named() -> None:
    still = [
        "model.embed_tokens.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.2.mlp.down_proj.weight",
    ]
    assert require_parameter_changes(all_but(*still), step=2, rates=RATES) == still
    assert require_parameter_changes(all_but(), step=2, rates=RATES) == []


def test_experts_without_tokens_are_single_tensors() -> None:
    experts = {f"model.layers.0.mlp.experts.{e}.up_proj.weight": e == 0 for e in range(8)}
    found = require_parameter_changes(all_but(layers=1) | experts, step=1, rates=RATES)
    assert found == [name for name, moved in experts.items() if not moved]


@pytest.mark.parametrize(
    ("still", "told"),
    [
        (layer(2), "3 of 10 trained tensors are unchanged, bit for bit; nothing changed in layers 2 of 3"),
        ([*layer(0), *layer(2)], "layers 0, 2 of 3"),
        (list(all_but()), "10 of 10 trained tensors are unchanged, bit for bit"),
    ],
)
def test_a_layer_that_stays_as_it_was_is_a_failure(still: list[str], told: str) -> None:
    with pytest.raises(StageError) as error:
        require_parameter_changes(all_but(*still), step=2, rates=RATES)
    assert (error.value.reason, error.value.code, error.value.where) == ("NothingTrained", 70, "step 2")
    assert told in error.value.actual


def test_where_every_learning_rate_was_zero_the_warm_up_is_named() -> None:
    with pytest.raises(StageError, match=r"hyperparameters\.warmupSteps"):
        require_parameter_changes(all_but(*all_but()), step=1, rates=np.zeros(1))


# --- through the stage ------------------------------------------------------------------------------------------------


def train(stages: Stages, run: str, converted: str, **changes: Any) -> Any:
    numbers = {"steps": 1, "warmup_steps": 0, "schedule": "Constant", **changes.pop("hyperparameters", {})}
    return stages.run(
        "Train", run, converted=converted, hyperparameters=numbers, checkpointing={"every_steps": 50},
        evaluation={"prompts": []}, **changes,
    )  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({}, id="full"),
        pytest.param({"lora": {"rank": 2, "alpha": 4.0}}, id="lora", marks=pytest.mark.thorough),
    ],
)
def test_one_step_changes_every_tensor(stages: Stages, converted: str, method: dict[str, Any]) -> None:
    """This holds for LoRA, too, where the first half of a pair has no gradient in the first step."""
    details = train(stages, f"moved-{len(method)}", converted, method=method).details
    assert isinstance(details, TrainOutcome)
    assert (details.unchanged_tensors, details.unchanged) == (0, [])


def test_norms_of_bfloat16_weights_may_stay_as_they_were_at_a_small_rate(
    stages: Stages, converted: str
) -> None:
    small = {"learning_rate": 1e-4, "weight_precision": "BF16"}
    details = train(stages, "small-rate", converted, hyperparameters=small).details
    assert isinstance(details, TrainOutcome)
    assert details.unchanged_tensors > 0
    assert all("norm" in name for name in details.unchanged)


def test_a_rate_that_bfloat16_weights_round_away_is_a_failure(stages: Stages, converted: str) -> None:
    tiny = {"learning_rate": 1e-12, "weight_precision": "BF16"}
    result = train(stages, "rounded-away", converted, hyperparameters=tiny)
    assert (result.exit_code, result.failure.reason) == (70, "NothingTrained")
    assert "weightPrecision" in result.failure.message


def test_weight_decay_alone_is_no_training(stages: Stages, converted: str) -> None:
    """In a layer without a gradient, weight decay still shrinks all matrices."""
    decay = {"weight_decay": 0.1, "steps": 2}
    result = train(
        stages, "decayed", converted, hyperparameters=decay, fault=("without_gradient", "layers", 1)
    )
    assert result.failure is not None
    assert result.failure.reason == "NothingTrained"
    assert "layers 1 of 2" in result.failure.message


@pytest.mark.thorough
def test_after_a_resume_the_model_is_compared_with_the_one_that_training_began_with(
    stages: Stages, converted: str
) -> None:
    """The second attempt changes nothing by itself, because its learning rates are too small."""
    numbers = {"steps": 8, "weight_precision": "BF16"}
    first = train(stages, "resumed", converted, hyperparameters=numbers, stop_at=4)
    assert first.exit_code == 75
    rest = {**numbers, "learning_rate": 1e-12}
    second = train(stages, "resumed", converted, hyperparameters=rest, attempt=2)
    assert isinstance(second.details, TrainOutcome), second.failure
    assert second.details.start_step == 4


def test_one_step_with_the_default_schedule_trains(stages: Stages, converted: str) -> None:
    default = {"warmup_steps": None, "warmup_ratio": 0.03, "schedule": "Cosine"}
    details = train(stages, "one-step", converted, hyperparameters=default).details
    assert isinstance(details, TrainOutcome)
    assert details.unchanged_tensors == 0


def test_a_training_of_one_step_that_is_its_warm_up_is_a_failure(stages: Stages, converted: str) -> None:
    result = train(stages, "warm-up", converted, hyperparameters={"warmup_steps": 1})
    assert (result.exit_code, result.failure.reason) == (70, "NothingTrained")


def test_weights_that_the_last_step_made_no_numbers_are_a_failure(stages: Stages, converted: str) -> None:
    """The loss of the last step is that of the weights before it, so no loss shows the fault."""
    result = train(stages, "last-step", converted, hyperparameters={"learning_rate": 1e39})
    assert (result.exit_code, result.failure and result.failure.reason) == (70, "Diverged")
    assert "NaN or infinite" in result.failure.message


def test_bit_sums_tell_arrays_apart() -> None:
    from finetune_trainer.training.parameter_changes import _bit_sum

    base = np.random.default_rng(0).normal(size=(6, 3, 5)).astype(np.float32)
    sums = np.asarray(jax.jit(lambda a: _bit_sum(a, (1,)))(base))
    assert sums.shape == (3,)
    for change in (-base, base[::-1], np.nextafter(base, np.float32(9)), base[:, :, ::-1]):
        assert (np.asarray(_bit_sum(jnp.asarray(change), (1,))) != sums).all()
    flipped = base.copy()
    flipped[0, 1, 0] *= -1
    assert (np.asarray(_bit_sum(jnp.asarray(flipped), (1,))) != sums).tolist() == [False, True, False]
    assert np.asarray(_bit_sum(jnp.zeros((4, 2), jnp.bfloat16), ())) == 0
