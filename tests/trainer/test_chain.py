"""Real stages on a tiny model: convert, train, evaluate and export, with training interrupted and resumed."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import Outcome
from tests.trainer.stages import Stages

LORA = {"lora": {"rank": 4, "alpha": 8.0}}


def test_preflight_counts_the_rows_and_steps(stages: Stages) -> None:
    result = stages.run("Preflight", "counted", hyperparameters={"steps": None, "epochs": 1.0})
    assert result.details is not None, result.failure
    assert result.details.kind == "Preflight"
    assert (result.details.train[0].rows, result.details.steps) == (400, 50)


@pytest.mark.parametrize("method", [{}, LORA], ids=["full", "lora"])
def test_the_exported_model_has_the_loss_that_training_ended_with(
    stages: Stages, converted: str, method: dict[str, Any]
) -> None:
    run = "lora" if method else "full"
    trained = stages.run("Train", run, method=method, converted=converted).details
    evaluated = stages.run("Evaluate", run, method=method, converted=converted, train_step=20).details
    served = {"serving_account": "ft-cpu"}
    exported = stages.run("Export", run, method=method, train_step=20, export=served).details
    assert trained is not None
    assert trained.kind == "Train"
    assert evaluated is not None
    assert evaluated.kind == "Evaluate"
    assert exported is not None
    assert exported.kind == "Export"
    assert evaluated.tuned is not None
    assert evaluated.baseline is not None
    assert evaluated.tuned.loss == trained.evaluation_loss
    engine = json.loads((stages.root / run / "attempts/train-1/engine.json").read_text())
    assert (engine["steps"], engine["learning_rate"]) == (20, 0.01)
    assert evaluated.tuned.loss < evaluated.baseline.loss
    folder = Path(exported.artifacts[0].uri.removeprefix("file://"))
    listed = {entry["path"] for entry in json.loads((folder / "manifest.json").read_text())["files"]}
    assert {"model.safetensors", "serving/tpu.yaml", "serving/gpu.yaml"} <= listed
    measured = stages.evaluate(exported.artifacts[0].uri)
    assert measured["loss"] == pytest.approx(trained.evaluation_loss, rel=1e-3)


def test_conversion_and_export_never_load_libtpu(stages: Stages, converted: str, libtpu: Path) -> None:
    never = ("libtpu_never_loaded", str(libtpu))
    short = {"hyperparameters": {"steps": 2}, "checkpointing": {"every_steps": 2}}
    again = stages.run("Convert", "bare-convert", fault=never, use_cache="Off")
    assert again.outcome is Outcome.SUCCEEDED, again.failure
    stages.run("Train", "bare", converted=converted, evaluation={"baseline": False}, **short)
    exported = stages.run("Export", "bare", fault=never, train_step=2, **short)
    assert exported.outcome is Outcome.SUCCEEDED, exported.failure


def test_a_stopped_training_continues_as_if_nothing_had_happened(stages: Stages, converted: str) -> None:
    long = {"converted": converted, "hyperparameters": {"steps": 150}, "checkpointing": {"every_steps": 50}}
    stages.run("Train", "undisturbed", **long)
    first = stages.run("Train", "stopped", stop_at=20, **long)
    second = stages.run("Train", "stopped", attempt=2, **long)
    assert (first.outcome, first.exit_code) == (Outcome.STOPPED, 75)
    assert second.outcome is Outcome.SUCCEEDED
    assert first.details is not None
    assert first.details.kind == "Train"
    assert second.details is not None
    assert second.details.kind == "Train"
    assert 0 < first.details.step == second.details.start_step < 150
    assert stages.losses("stopped") == stages.losses("undisturbed")
    assert len(stages.losses("stopped")) == 150


def test_a_loss_that_is_no_number_ends_the_training_before_it_is_saved(
    stages: Stages, converted: str
) -> None:
    result = stages.run(
        "Train",
        "diverged",
        converted=converted,
        hyperparameters={"learning_rate": 1e38, "optimizer": "SGD", "max_grad_norm": 0.0},
    )
    assert result.exit_code == 70
    assert result.failure is not None
    assert result.failure.reason == "Diverged"
    assert not list((stages.root / "diverged/train/checkpoints").glob("[0-9]*"))
