"""Training on eight devices of one host: fsdp and tensor parallelism together divide rows, weights and their states."""

import json
from typing import Any

import pytest

from finetune_contract import StageResult, TrainOutcome
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of

MESH = {"hosts": 1, "chips_per_host": 8, "fsdp": 4, "tensor": 2}
METHODS: dict[str, dict[str, Any]] = {"full": {}, "LoRA": {"lora": {"rank": 8, "alpha": 16.0}}}


def trained(stages: Stages, run: str, converted: str, *, devices: int, **changes: Any) -> StageResult:
    made = request(
        stages.root, "Train", run, converted=converted, evaluation={"prompts": []},
        hyperparameters={"steps": 4}, checkpointing={"every_steps": 4}, **changes,
    )  # fmt: skip
    running = stages.start(
        FINETUNE_REQUEST=made.to_json(), XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}"
    )
    assert running.wait() == 0, running.log[-4000:]
    result = result_of(made)
    assert result is not None
    assert isinstance(result.details, TrainOutcome)
    return result


@pytest.mark.parametrize("name", ["full", pytest.param("LoRA", marks=pytest.mark.thorough)])
def test_eight_devices_come_to_the_losses_of_one(stages: Stages, converted: str, name: str) -> None:
    method = METHODS[name]
    trained(stages, f"devices-{name}-8", converted, devices=8, mesh=MESH, method=method)
    trained(stages, f"devices-{name}-1", converted, devices=1, method=method)
    eight, one = (
        {step: float(loss) for step, loss in stages.losses(f"devices-{name}-{number}").items()}
        for number in (8, 1)
    )
    assert eight == pytest.approx(one, rel=1e-5)
    assert len(eight) == 4
    if name == "full":
        assert {"fsdp", "tensor"} <= spread(stages, "devices-full-8"), "no device has the whole model"


def spread(stages: Stages, run: str) -> set[str]:
    """Returns the axes of the mesh over which every matrix of the checkpoint is sharded."""
    folder = stages.root / run / "train/checkpoints/4/model_params"
    specs = [
        json.loads(each)["partition_spec"] for each in json.loads((folder / "_sharding").read_text()).values()
    ]
    matrices = [{axis for axis in spec if axis} for spec in specs if len(spec) > 1]
    return set.intersection(*matrices)
