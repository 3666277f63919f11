"""Gradient accumulation gives the loss, gradient and updated parameters of the undivided batch."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from finetune_contract import Outcome
from finetune_trainer.engine.accumulation import accumulated_step, microbatches
from tests.trainer.stages import Stages

#: Questions and answers of very different lengths.
UNEVEN = [
    {"prompt": "What is the capital of Peru?" * (1 + i % 3), "completion": "Lima. " * (1 + 7 * (i % 4))} for i in range(40)
]  # fmt: skip


class Line(nnx.Module):
    def __init__(self) -> None:
        self.kernel = nnx.Param(jnp.asarray([[0.5, -1.0], [2.0, 0.25]]))
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))


def squares(model: Any, batch: Any) -> Any:
    """Returns the weighted mean of squares; the weights represent tokens."""
    model.calls[...] += 1
    errors = jnp.square(batch["x"] @ model.kernel[...]).sum(-1) * batch["weight"]
    weight = batch["weight"].sum()
    return errors.sum() / (weight + 1e-8), {"total_weights": weight}


@pytest.mark.parametrize("count", [2, 3, 6])
def test_microbatches_of_unequal_weight_give_the_loss_and_update_of_the_whole(count: int) -> None:
    rng = np.random.default_rng(0)
    batch = {
        "x": jnp.asarray(rng.standard_normal((6, 2)), jnp.float32),
        "weight": jnp.asarray([1.0, 30.0, 2.0, 5.0, 0.0, 11.0]),
    }
    results = []
    for parts in (1, count):
        model = Line()
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        step = nnx.jit(accumulated_step(model, nnx.Param, squares, parts))
        loss, sums, norm = step(model, optimizer, batch)
        assert int(model.calls[...]) == parts
        assert float(sums["total_weights"]) == 49.0
        results.append((float(loss), float(norm), np.asarray(model.kernel[...])))
    whole, divided = results
    assert divided[0] == pytest.approx(whole[0], rel=1e-6)
    assert divided[1] == pytest.approx(whole[1], rel=1e-6)
    np.testing.assert_allclose(divided[2], whole[2], rtol=1e-6)


def test_every_row_stands_in_one_microbatch() -> None:
    rows = {"x": jnp.arange(12).reshape(12, 1)}
    parts = microbatches(rows, 3)["x"]
    assert parts.shape == (3, 4, 1)
    assert sorted(np.asarray(parts).ravel().tolist()) == list(range(12))
    assert np.asarray(parts)[0].ravel().tolist() == [0, 3, 6, 9]


@pytest.fixture(scope="module")
def uneven(stages: Stages) -> dict[str, Any]:
    return {"train": [source(stages, UNEVEN)], "shuffle": False}


def source(stages: Stages, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = stages.root / "data" / "uneven.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": "spec.datasets.train[0]", "name": "uneven", "uri": f"file://{path}"}


LORA = {"lora": {"rank": 4, "alpha": 8.0}}


@pytest.mark.parametrize("method", [{}, pytest.param(LORA, marks=pytest.mark.thorough)], ids=["full", "lora"])
def test_a_training_is_that_of_the_larger_batch_to_float32_rounding(
    stages: Stages, converted: str, uneven: dict[str, Any], method: dict[str, Any]
) -> None:
    losses, norms = {}, {}
    for parts in (1, 4):
        run = f"accumulated-{parts}-{len(method)}"
        result = stages.run(
            "Train", run, method=method, converted=converted, data=uneven,
            hyperparameters={"steps": 6, "gradient_accumulation_steps": parts, "schedule": "Constant", "learning_rate": 1e-3},
        )  # fmt: skip
        assert result.outcome is Outcome.SUCCEEDED, result.failure
        losses[parts] = [float(loss) for loss in stages.losses(run).values()]
        norms[parts] = result.details.evaluation_loss  # type: ignore[union-attr]
    assert len(losses[4]) == 6
    np.testing.assert_allclose(losses[4], losses[1], rtol=2e-6)
    assert norms[4] == pytest.approx(norms[1], rel=2e-6)


def test_a_stopped_training_continues_to_the_same_digits(
    stages: Stages, converted: str, uneven: dict[str, Any]
) -> None:
    long = {
        "converted": converted, "data": uneven, "checkpointing": {"every_steps": 50},
        "hyperparameters": {"steps": 60, "gradient_accumulation_steps": 2, "warmup_steps": 10},
    }  # fmt: skip
    stages.run("Train", "accumulated", **long)
    first = stages.run("Train", "accumulated-stopped", stop_at=10, **long)
    second = stages.run("Train", "accumulated-stopped", attempt=2, **long)
    assert first.outcome is Outcome.STOPPED
    assert second.outcome is Outcome.SUCCEEDED
    assert stages.losses("accumulated-stopped") == stages.losses("accumulated")
    assert len(stages.losses("accumulated")) == 60
    lines = (stages.root / "accumulated/train/metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line).get("learning_rate") for line in lines]
    assert rates[:3] == pytest.approx([0.0, 1e-3, 2e-3], rel=1e-6)  # one step of the schedule per update
