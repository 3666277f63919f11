"""A profile of some steps is recorded if the job requests it, and does not change the numbers."""

from pathlib import Path
from typing import Any

import pytest

from finetune_contract import ExitCode
from tests.trainer.stages import Stages

STEPS: dict[str, Any] = {"hyperparameters": {"steps": 8}, "checkpointing": {"every_steps": 8}}


def profile(stages: Stages, run: str, first: int) -> Path:
    return stages.root / run / "train/profile/plugins/profile" / f"step-{first}" / "host-0.xplane.pb"


@pytest.mark.parametrize(
    "window",
    [
        pytest.param((3, 2), id="within"),
        pytest.param((7, 2), id="to the last step", marks=pytest.mark.thorough),
    ],
)
def test_the_steps_that_are_asked_for_are_profiled(
    stages: Stages, converted: str, window: tuple[int, int]
) -> None:
    first, steps = window
    run = f"profiled-{first}"
    asked = {"start_step": first, "steps": steps}
    trained = stages.run("Train", run, converted=converted, profiling=asked, **STEPS).details
    assert trained is not None
    assert trained.kind == "Train"
    assert trained.trace == f"file://{stages.root}/{run}/train/profile"
    assert profile(stages, run, first).stat().st_size > 1000
    plain = stages.run("Train", "plain", converted=converted, **STEPS).details
    assert plain is not None
    assert plain.kind == "Train"
    assert plain.trace is None
    assert stages.losses(run) == stages.losses("plain")


def test_a_training_that_is_stopped_keeps_what_was_recorded(stages: Stages, converted: str) -> None:
    asked = {"start_step": 3, "steps": 100}
    long = {"hyperparameters": {"steps": 150}, "checkpointing": {"every_steps": 50}}
    stages.run("Train", "cut-short", stop_at=8, converted=converted, profiling=asked, **long)
    assert profile(stages, "cut-short", 3).stat().st_size > 1000


def test_steps_after_the_last_one_are_refused_before_anything_is_spent(stages: Stages) -> None:
    result = stages.run("Preflight", "too-late", profiling={"start_step": 17, "steps": 5})
    assert result.failure is not None
    assert (result.exit_code, result.failure.reason) == (ExitCode.BAD_REQUEST, "ProfilingTooLate")
    assert "steps 17 to 21" in result.failure.message
