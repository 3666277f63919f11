"""SIGTERM at difficult moments.

The process exits with 75, or with 0 if it is almost done, and no file that it was writing appears complete when it is
not.
"""

import json
import shutil
from typing import Any

import pytest

from finetune_contract import Outcome, StageResult, TrainOutcome
from finetune_trainer.export.publish import MANIFEST
from tests.trainer.stages import Stages

STEPS = 4


@pytest.fixture(scope="module")
def train(converted: str) -> dict[str, Any]:
    """Returns the fields of a short training's request."""
    return {
        "converted": converted,
        "hyperparameters": {"steps": STEPS},
        "checkpointing": {"every_steps": 2},
        "evaluation": {"every_steps": 2, "baseline": False, "prompts": []},
    }


@pytest.mark.parametrize(
    "place",
    [
        "finetune_trainer.commands.main:importlib.import_module",
        "finetune_trainer.stages.train:converted_model",
        "finetune_trainer.training.session:pretrained",
        "finetune_trainer.training.trainer:MaxTextPeftTrainer.create_train_step_fn",
    ],
    ids=["imports", "data", "restore", "compilation"],
)
def test_before_the_first_step_a_training_ends_at_once(
    stages: Stages, train: dict[str, Any], place: str
) -> None:
    run = f"early-{place.rpartition('.')[2]}"
    result = stages.run("Train", run, fault=("terminated_at", place), **train)
    assert (result.outcome, result.exit_code, result.details) == (Outcome.STOPPED, 75, None)
    assert not list((stages.root / run).rglob("checkpoints/*/model_params"))


@pytest.mark.parametrize(
    ("place", "call", "step"),
    [
        ("finetune_trainer.training.trainer:FineTuneTrainer._post_process_train_step", 1, 0),
        ("finetune_trainer.training.trainer:FineTuneTrainer._post_process_train_step", 2, 2),
        ("finetune_trainer.evaluation.loss:LossMeter.measure", 2, 2),
        ("finetune_trainer.training.trainer:FineTuneTrainer._post_process_train_step", STEPS, STEPS),
    ],
    ids=["first step", "second step", "evaluation between steps", "last step"],
)
def test_a_training_that_was_stopped_continues_to_the_same_end(
    stages: Stages, train: dict[str, Any], undisturbed: StageResult, place: str, call: int, step: int
) -> None:
    run = f"stopped-{place.rpartition('.')[2]}-{call}"
    first = stages.run("Train", run, fault=("terminated_at", place, call), **train)
    assert (first.outcome, first.exit_code) == (Outcome.STOPPED, 75)
    assert step == (first.details.step if isinstance(first.details, TrainOutcome) else 0)
    second = stages.run("Train", run, attempt=2, **train)
    assert isinstance(second.details, TrainOutcome)
    assert isinstance(undisturbed.details, TrainOutcome)
    assert second.details.start_step == step
    assert second.details.evaluation_loss == undisturbed.details.evaluation_loss
    assert stages.losses(run) == stages.losses("undisturbed-short")


def test_a_training_that_is_being_evaluated_at_its_end_ends_well(
    stages: Stages, train: dict[str, Any], undisturbed: StageResult
) -> None:
    place = "finetune_trainer.evaluation.loss:LossMeter.measure"
    result = stages.run("Train", "nearly-done", fault=("terminated_at", place, 3), **train)
    assert result.outcome is Outcome.SUCCEEDED
    assert isinstance(result.details, TrainOutcome)
    assert isinstance(undisturbed.details, TrainOutcome)
    assert result.details.evaluation_loss == undisturbed.details.evaluation_loss


def test_a_training_that_is_being_evaluated_between_steps_leaves_the_evaluation(
    stages: Stages, train: dict[str, Any], undisturbed: StageResult
) -> None:
    """The rest of an evaluation may take minutes, but a preemption leaves only seconds."""
    run = "left-evaluation"
    first = stages.run("Train", run, fault=("terminated_in_evaluation", 2, 50), **train)
    assert (first.outcome, first.exit_code) == (Outcome.STOPPED, 75)
    assert isinstance(first.details, TrainOutcome)
    assert first.details.step == 2
    assert [each.step for each in first.details.checkpoints] == [2]
    lines = (stages.root / run / "train/metrics.jsonl").read_text().splitlines()
    evaluated = [line["step"] for line in map(json.loads, lines) if "evaluation_loss" in line]
    assert evaluated == [0]
    stages.run("Train", run, attempt=2, **train)
    assert stages.losses(run) == stages.losses("undisturbed-short")


def test_an_evaluation_ends_at_once_and_leaves_no_results(
    stages: Stages, train: dict[str, Any], undisturbed: StageResult
) -> None:
    assert undisturbed.outcome is Outcome.SUCCEEDED
    place = "finetune_trainer.evaluation.loss:LossMeter.measure"
    result = stages.run(
        "Evaluate", "undisturbed-short", train_step=STEPS, fault=("terminated_at", place), **train
    )
    assert (result.outcome, result.exit_code) == (Outcome.STOPPED, 75)
    assert not (stages.root / "undisturbed-short/evaluate").exists()


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("finetune_trainer.stages.export:export.build", 1),
        ("finetune_trainer.storage:StorageClient.upload_folder", 1),
        ("finetune_storage.files:FileStore.upload", 3),
    ],
    ids=["building", "before the files", "between the files"],
)
def test_a_model_that_was_not_exported_whole_does_not_look_whole_and_is_completed_later(
    stages: Stages, train: dict[str, Any], undisturbed: StageResult, place: str, call: int
) -> None:
    assert undisturbed.outcome is Outcome.SUCCEEDED
    run = "undisturbed-short"
    result = stages.run("Export", run, train_step=STEPS, fault=("terminated_at", place, call), **train)
    folder = stages.root / run / "export"
    assert (result.outcome, result.exit_code) == (Outcome.STOPPED, 75)
    assert not (folder / "manifest.json").exists()
    assert not (folder / "model/config.json").exists()
    assert not (folder / "model" / MANIFEST).exists()
    assert stages.run("Export", run, attempt=2, train_step=STEPS, **train).outcome is Outcome.SUCCEEDED
    assert (folder / "manifest.json").exists()
    listed = json.loads((folder / "model" / MANIFEST).read_text())["files"]
    assert all((folder / "model" / each["path"]).stat().st_size == each["size"] for each in listed)
    shutil.rmtree(folder)


def test_a_conversion_that_was_stopped_is_in_no_cache(stages: Stages) -> None:
    place = "finetune_trainer.stages.convert:conversion_check.check_conversion"
    changes = {"cache": f"file://{stages.root}/other-cache"}
    result = stages.run("Convert", "stopped-conversion", fault=("terminated_at", place), **changes)
    assert (result.outcome, result.exit_code) == (Outcome.STOPPED, 75)
    assert not list((stages.root / "other-cache").rglob("manifest.json"))


@pytest.fixture(scope="module")
def undisturbed(stages: Stages, train: dict[str, Any]) -> StageResult:
    """The same training without a signal."""
    return stages.run("Train", "undisturbed-short", **train)
