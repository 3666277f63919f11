"""The host memory that loading a model needs in addition to the model itself."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.utils import maxtext_utils_nnx
from orbax import checkpoint as ocp

from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.conversion.loading import pretrained
from finetune_trainer.engine import maxtext
from finetune_trainer.engine.lora import with_lora
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import engine_path, open_store
from finetune_trainer.training.settings import settings
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request

#: The embeddings, 16 MiB in float32, are larger than what the program itself allocates in the meantime.
SPEC = TinyModelSpec(hidden=256, heads=2, kv_heads=1, head_dim=128, intermediate=256, vocab=16384, std=0.125)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelPlan, str]:
    root = tmp_path_factory.mktemp("converted")
    folder = write_model(root / "model", SPEC)
    plan = families.read(folder)
    maxtext.prepare(plan)
    return plan, streaming.convert(
        open_weights(folder, plan), plan, f"file://{root}/out", store=open_store()
    ).items


def configuration(converted: tuple[ModelPlan, str], root: Path, precision: str) -> Any:
    plan, items = converted
    made = request(
        root,
        "Train",
        method={"lora": {"rank": 4, "alpha": 8.0}},
        hyperparameters={"global_batch_size": 1, "weight_precision": precision},
    )
    chosen = settings(made, plan, steps=1, platform="cpu", output=str(root))
    return maxtext.configure(plan, maxtext.SFT, **chosen, load_parameters_path=engine_path(items))


def parameters(model: Any) -> dict[str, jax.Array]:
    return {
        "/".join(map(str, path)): leaf.get_value()
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }


def test_a_base_in_bfloat16_is_never_in_the_hosts_memory_in_float32(
    converted: tuple[ModelPlan, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore, most = ocp.Checkpointer.restore, []

    def measured(*arguments: Any, **named: Any) -> Any:
        tracemalloc.start()
        try:
            return restore(*arguments, **named)
        finally:
            most.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(ocp.Checkpointer, "restore", measured)
    plan, _ = converted
    pretrained(configuration(converted, tmp_path, "BF16"))
    (peak,) = most
    assert peak < 3 * plan.parameters, "two bytes for each parameter, and the reader's own memory"


def test_no_random_weights_are_drawn_to_be_replaced(
    converted: tuple[ModelPlan, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create: Callable[..., Any] = maxtext_utils_nnx.create_nnx_sharded_model
    drawn: list[str] = []

    def created(*arguments: Any, **named: Any) -> Any:
        model = create(*arguments, **named)
        drawn.extend(name for name, array in parameters(model).items() if np.any(np.asarray(array)))
        return model

    monkeypatch.setattr(maxtext_utils_nnx, "create_nnx_sharded_model", created)
    model, _ = pretrained(configuration(converted, tmp_path, "BF16"))
    assert drawn == []
    assert all(np.any(np.asarray(array)) for array in parameters(model).values()), "all arrays are restored"


def test_adapters_come_beside_the_models_own_arrays(converted: tuple[ModelPlan, str], tmp_path: Path) -> None:
    config = configuration(converted, tmp_path, "BF16")
    model, mesh = pretrained(config)
    before = parameters(model)
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        adapted = with_lora(model, mesh, config)
    after = parameters(adapted)
    # donated to the program that creates the adapters, which returns them in the same buffers
    assert all(array.is_deleted() for array in before.values())
    assert before.keys() < after.keys()
    added = {name: array for name, array in after.items() if name not in before}
    assert len(added) == 2 * 7, "a pair for each matrix of a layer"
    assert all(np.any(np.asarray(array)) == name.endswith("_lora_a") for name, array in added.items())
