"""Training that resumes after it was killed during a save, or with a damaged newest checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import Outcome, Progress, RunFolder, StageResult, TrainOutcome
from finetune_trainer.storage import open_store
from finetune_trainer.training.checkpoint_checksums import checksums_of, discard_damaged
from tests.trainer.requests import request
from tests.trainer.stages import Stages

STEPS, EVERY = 12, 3


@pytest.fixture(scope="module")
def train(converted: str) -> dict[str, Any]:
    """Returns the fields of the training's request."""
    return {
        "converted": converted,
        "hyperparameters": {"steps": STEPS},
        "checkpointing": {"every_steps": EVERY},
        "evaluation": {"baseline": False, "prompts": []},
    }


@pytest.fixture(scope="module")
def undisturbed(stages: Stages, train: dict[str, Any]) -> StageResult:
    return stages.run("Train", "resume-undisturbed", **train)


def go_on(stages: Stages, run: str, train: dict[str, Any], undisturbed: StageResult, start: int) -> Progress:
    """Runs the second attempt, compares its results with those of an undisturbed training, and returns its progress."""
    second = stages.run("Train", run, attempt=2, **train)
    assert second.outcome is Outcome.SUCCEEDED
    assert isinstance(second.details, TrainOutcome)
    assert isinstance(undisturbed.details, TrainOutcome)
    assert second.details.start_step == start
    assert second.details.evaluation_loss == undisturbed.details.evaluation_loss
    # The metrics of the last steps before a kill may never have been written.
    told, whole = stages.losses(run), stages.losses("resume-undisturbed")
    assert told.items() <= whole.items()
    assert told.keys() >= set(range(start + 1, STEPS + 1))
    return Progress.model_validate_json((stages.root / run / "train/progress.json").read_bytes())


def test_a_training_that_is_killed_while_it_saves_continues_from_the_checkpoint_before(
    stages: Stages, train: dict[str, Any], undisturbed: StageResult
) -> None:
    run = "killed-while-saving"
    made = request(stages.root, "Train", run, **train)
    killed = stages.start(fault=("killed_while_saving", 9), FINETUNE_REQUEST=made.to_json())
    assert killed.wait() != 0
    checkpoints = stages.root / run / "train/checkpoints"
    assert sorted(path.name.partition(".")[0] for path in checkpoints.iterdir()) == ["3", "6", "9"]
    assert not (checkpoints / "9").exists()
    go_on(stages, run, train, undisturbed, start=6)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["12", "9"]


def test_a_damaged_newest_checkpoint_is_reported_and_training_continues_from_the_one_before(
    stages: Stages, train: dict[str, Any], undisturbed: StageResult
) -> None:
    run = "damaged"
    first = stages.run("Train", run, stop_at=10, **train)
    assert isinstance(first.details, TrainOutcome)
    assert [each.step for each in first.details.checkpoints] == [9, 10]
    damaged = next((stages.root / run / "train/checkpoints/10/model_params").rglob("d/*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    progress = go_on(stages, run, train, undisturbed, start=9)
    assert [each.step for each in progress.discarded] == [10]
    assert f"{damaged.name} has" in progress.discarded[0].why
    assert progress.seconds["recomputed"] > 0
    assert {"startup", "data", "restore", "compile", "productive"} <= progress.seconds.keys()


# --- only seals


def saved(root: Path, steps: list[int]) -> RunFolder:
    """Writes a run folder with sealed checkpoints of two files each."""
    folder, store = RunFolder(f"file://{root}"), open_store()
    for step in steps:
        for name in ("_CHECKPOINT_METADATA", "model_params/d/0"):
            store.write(f"{folder.checkpoint(step)}/{name}", f"{name} of {step}")
        store.write(folder.seal(step), checksums_of(store, folder, step))
    return folder


def deleted(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def overwritten(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (deleted, "model_params/d/0 is missing"),
        (truncated, "model_params/d/0 has 21 bytes, 22 were saved"),
        (overwritten, "model_params/d/0 has other content than the saved one"),
    ],
)
def test_what_is_not_as_it_was_saved_is_deleted_down_to_the_first_that_is(
    tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    folder = saved(tmp_path, [100, 20, 30])
    for step in (30, 100):
        damage(tmp_path / f"train/checkpoints/{step}/model_params/d/0")
    found = discard_damaged(open_store(), folder)
    assert [each.step for each in found] == [100, 30]
    assert found[1].why == told
    assert [path.name for path in (tmp_path / "train/checkpoints").iterdir()] == ["20"]
    assert [path.name for path in (tmp_path / "train/seals").iterdir()] == ["20.json"]
    assert discard_damaged(open_store(), folder) == []


def test_a_checkpoint_that_was_never_sealed_is_trusted_and_one_that_orbax_has_not_finished_is_not_read(
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path, [10])
    (tmp_path / "train/seals/10.json").unlink()
    (tmp_path / "train/checkpoints/20.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "train/checkpoints/20.orbax-checkpoint-tmp/file").write_text("half")
    assert discard_damaged(open_store(), folder) == []


def test_a_run_without_checkpoints_has_none_to_look_at(tmp_path: Path) -> None:
    assert discard_damaged(open_store(), RunFolder(f"file://{tmp_path}")) == []
