"""Evaluation of an adapter by hand: it is merged if its shapes fit, and otherwise refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion.merging import merged_folder
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model

NAME = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("none", None),
        ("a damaged file", "AdapterUnreadable"),
        ("one half", "AdapterMismatch"),
        ("one column", "AdapterMismatch"),
        ("another rank", "AdapterMismatch"),
    ],
)
def test_an_adapter_whose_halves_do_not_fit_is_refused(
    tmp_path: Path, change: str, reason: str | None
) -> None:
    """Otherwise a single column would be broadcast to all, and another rank would be scaled unlike in PEFT."""
    model, adapter = write_model(tmp_path / "model", TinyModelSpec()), tmp_path / "adapter"
    plan = families.read(model)
    weights = open_weights(model, plan)
    high, low = weights.text[f"{NAME}.weight"].shape
    rank, columns = 4 if change == "another rank" else 2, 1 if change == "one column" else low
    halves = {"A": np.ones((rank, columns), np.float32), "B": np.ones((high, rank), np.float32)}
    if change == "one half":
        del halves["B"]
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps(
            {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
        )
    )
    save_file(
        {f"base_model.model.{NAME}.lora_{half}.weight": array for half, array in halves.items()},
        adapter / "adapter_model.safetensors",
    )
    if change == "a damaged file":
        (adapter / "adapter_model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    (scratch := tmp_path / "scratch").mkdir()
    if reason is None:
        merged_folder(weights, plan, f"file://{adapter}", scratch, open_store())
        return
    with pytest.raises(StageError) as caught:
        merged_folder(weights, plan, f"file://{adapter}", scratch, open_store())
    assert caught.value.reason == reason
