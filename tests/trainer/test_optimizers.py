"""The updates that a request's hyperparameters cause, compared with optax's own optimizers step by step."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from finetune_trainer import families
from finetune_trainer.engine import maxtext
from finetune_trainer.training.session import optimizer_of
from finetune_trainer.training.settings import settings
from tests.trainer.models import qwen3
from tests.trainer.requests import request

STEPS = 10
#: Steps from the end of the warm-up to a learning rate of 0, which is reached after the last step.
DOWN = STEPS - 2
#: The names are MaxText's: weight decay applies to matrices, not to norms and biases.
PARAMETERS = {
    "mlp": {"wi_0": {"kernel": jnp.asarray([[1.0, -2.0], [0.5, 3.0]])}},
    "decoder_norm": {"scale": jnp.asarray([1.0, 2.0])},
    "query": {"bias": jnp.asarray([0.5])},
}
MATRICES = {"mlp": {"wi_0": {"kernel": True}}, "decoder_norm": {"scale": False}, "query": {"bias": False}}
WARM = optax.linear_schedule(0.0, 0.1, 2)


def cosine(step: Any) -> Any:
    return optax.join_schedules([WARM, optax.cosine_decay_schedule(0.1, DOWN)], [2])(step)


def linear(step: Any) -> Any:
    return optax.join_schedules([WARM, optax.linear_schedule(0.1, 0.0, DOWN)], [2])(step)


def constant(step: Any) -> Any:
    return optax.join_schedules([WARM, optax.constant_schedule(0.1)], [2])(step)


CASES = {
    "AdamW, clipped, decayed, cosine": (
        {"weight_decay": 0.1, "max_grad_norm": 0.5, "schedule": "Cosine"},
        optax.chain(
            optax.clip_by_global_norm(0.5),
            optax.adamw(cosine, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1, mask=MATRICES),
        ),
    ),
    "AdamW, not clipped, linear": (
        {"max_grad_norm": 0.0, "schedule": "Linear"},
        optax.adamw(linear, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.0),
    ),
    "SGD, clipped, constant": (
        {"optimizer": "SGD", "max_grad_norm": 1.0, "schedule": "Constant"},
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(constant)),
    ),
}


@pytest.mark.parametrize(("numbers", "expected"), CASES.values(), ids=CASES)
def test_parameters_move_as_optax_moves_them(
    numbers: dict[str, Any], expected: optax.GradientTransformation, tmp_path: Path
) -> None:
    plan = families.read(qwen3(tmp_path))
    maxtext.prepare(plan)
    made = request(
        tmp_path,
        "Train",
        hyperparameters={"steps": STEPS, "learning_rate": 0.1, "warmup_steps": 2, **numbers},
    )
    chosen = settings(made, plan, steps=STEPS, platform="cpu", output=str(tmp_path))
    ours, _ = optimizer_of(maxtext.configure(plan, maxtext.SFT, **chosen), None)
    assert moved(ours) == pytest.approx(moved(expected), rel=1e-5, abs=1e-7)


def moved(optimizer: optax.GradientTransformation) -> list[float]:
    """Returns all parameters after each step, with gradients that are large at the beginning."""
    rng = np.random.default_rng(0)
    parameters, state, found = PARAMETERS, optimizer.init(PARAMETERS), []
    for step in range(STEPS):
        size = 3 / (1 + step)
        draws = [rng.standard_normal(leaf.shape) * size for leaf in jax.tree.leaves(PARAMETERS)]
        gradient = jax.tree.unflatten(
            jax.tree.structure(PARAMETERS), [jnp.asarray(draw, jnp.float32) for draw in draws]
        )
        updates, state = optimizer.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        found += [float(x) for leaf in jax.tree.leaves(parameters) for x in leaf.ravel()]
    return found
