"""What status tells of where training's time went, and of checkpoints that were damaged."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import DiscardedCheckpoint, Progress, Stage
from finetune_operator.lifecycle.progress import goodput_status, progress_status
from tests.unit.lifecycle.world import World

SECONDS = {
    "startup": 10.0,
    "data": 2.0,
    "restore": 3.0,
    "compile": 5.0,
    "productive": 60.0,
    "evaluate": 10.0,
    "recomputed": 10.0,
}


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def progress(**seconds: float) -> Progress:
    return Progress(attempt=1, step=5, total_steps=10, updated=NOW, seconds=seconds)


def test_goodput_is_the_share_of_steps_that_count() -> None:
    assert goodput_status(progress(**SECONDS)) == {
        "percent": "60.0",
        "seconds": {"startup": 20, "productive": 60, "evaluation": 10, "recomputed": 10},
    }


@pytest.mark.parametrize("nothing", [None, progress(), progress(productive=0.0)])
def test_nothing_measured_tells_nothing(nothing: Progress | None) -> None:
    assert goodput_status(nothing) is None


@given(st.dictionaries(st.sampled_from(sorted(SECONDS)), st.floats()))
def test_whatever_was_written_the_share_is_between_none_and_all(seconds: dict[str, float]) -> None:
    told = goodput_status(progress(**seconds))
    assert told is None or 0 <= float(told["percent"]) <= 100


def test_a_damaged_checkpoint_is_told_with_the_stage() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.train(name, 5)
    assert world.progress is not None
    why = "d/0 is missing"
    found = [DiscardedCheckpoint(step=8, why=why)]
    world.progress = world.progress.model_copy(update={"discarded": found, "seconds": SECONDS})
    world.wait(60)
    world.reconcile()
    train = next(each for each in world.status["stages"] if each["name"] == "Train")
    assert train["message"].startswith(f"the checkpoint of step 8 was not what had been saved ({why})")
    assert world.status["goodput"]["percent"] == "60.0"


@pytest.mark.parametrize(("mfu", "percent"), [(0.4137, "41.37"), (None, None)])
def test_mfu_is_told_where_the_trainer_knows_its_chips(mfu: float | None, percent: str | None) -> None:
    told = Progress(attempt=1, step=5, total_steps=10, updated=NOW, mfu=mfu)
    status = progress_status(told, None, None, pace=10, moved=False)
    assert status is not None
    assert status.get("mfuPercent") == percent
