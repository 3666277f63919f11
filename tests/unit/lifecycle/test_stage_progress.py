"""What running stages report, in the status; nothing is decided by it."""

import copy
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import Stage, StageProgress
from finetune_contract.base import MOST_COUNT
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.lifecycle.fitting import fit_schema
from tests.unit.lifecycle.world import World, job

TENSORS: dict[str, Any] = {"total": 37, "unit": "tensors", "total_bytes": 37 * 2**20}


def running(stage: Stage, **spec: Any) -> tuple[World, str]:
    """Returns a world in which the stage runs, and its JobSet's name."""
    world = World(job=job(**spec))
    for _ in range(20):
        world.reconcile()
        for name in world.live():
            if world.key_of(name).stage is stage:
                world.run(name)
                return world, name
            world.succeed(name)
        world.wait(world.requeue_after or 1)
    raise AssertionError(f"{stage} was not reached")


@cache
def converting() -> tuple[World, str]:
    return running(Stage.CONVERT)


def reported(world: World, stage: Stage) -> dict[str, Any] | None:
    found: dict[str, Any] | None = next(
        each.get("progress") for each in world.status["stages"] if each["name"] == stage
    )
    return found


@pytest.mark.parametrize("stage", list(Stage))
def test_a_running_stage_shows_what_it_does_in_status_and_summary_until_it_ends(stage: Stage) -> None:
    world, name = running(stage)
    world.report(name, "converting the weights", **TENSORS)
    world.wait(40)
    world.report(name, "converting the weights", 12, done_bytes=12 * 2**20, **TENSORS)
    world.reconcile()
    found = reported(world, stage)
    assert found is not None
    assert (found["doing"], found["done"], found["total"], found["unit"]) == (
        "converting the weights", 12, 37, "tensors",
    )  # fmt: skip
    assert (found["doneBytes"], found["totalBytes"]) == (12 * 2**20, 37 * 2**20)
    assert found["since"] < found["lastUpdateTime"]
    assert ": converting the weights, 12 of 37 tensors." in world.status["summary"]
    world.succeed(name)
    world.reconcile()
    assert reported(world, stage) is None
    assert "converting the weights" not in world.status["summary"]


def test_a_training_shows_its_steps_instead_once_it_has_made_one() -> None:
    world, name = running(Stage.TRAIN)
    world.report(name, "loading the model")
    world.reconcile()
    assert world.status["summary"].startswith("Training: loading the model.")
    world.wait(60)
    world.train(name, 1)
    world.reconcile()
    assert reported(world, Stage.TRAIN) is None
    assert world.status["summary"].startswith("Training: step 1 of 100")


def test_what_was_known_stays_where_a_reading_leaves_it_out() -> None:
    world, name = running(Stage.TRAIN)
    world.report(name, "loading the model")
    world.reconcile()
    world.stage_progress = {}
    world.wait(60)
    world.reconcile()
    assert reported(world, Stage.TRAIN) is not None


def test_it_is_written_no_more_often_than_the_steps_of_a_training() -> None:
    world, name = running(Stage.CONVERT)
    world.report(name, "converting the weights", **TENSORS)
    world.reconcile()
    first = reported(world, Stage.CONVERT)
    world.wait(29)
    world.report(name, "converting the weights", 1, **TENSORS)
    world.reconcile()
    assert reported(world, Stage.CONVERT) == first
    world.wait(1)
    world.report(name, "converting the weights", 2, **TENSORS)
    world.reconcile()
    assert (reported(world, Stage.CONVERT) or {})["done"] == 2


def test_times_that_a_trainer_invents_have_the_status_written_no_more_often() -> None:
    world, name = running(Stage.CONVERT)
    key, seen = world.key_of(name), set()
    for second in range(120):
        world.report(name, f"step {second}")
        forged = timedelta(days=400 if second % 2 else 0)
        report = world.stage_progress[key]
        world.stage_progress = {key: report.model_copy(update={"updated": world.now + forged})}
        world.reconcile()
        seen.add((reported(world, Stage.CONVERT) or {})["doing"])
        world.wait(1)
    assert len(seen) == 4


def test_times_that_a_training_invents_have_the_status_written_no_more_often() -> None:
    world, name = running(Stage.TRAIN)
    seen = set()
    for second in range(120):
        world.train(name, 1 + second // 2)
        assert world.progress is not None
        forged = timedelta(days=400 if second % 2 else 0)
        world.progress = world.progress.model_copy(update={"updated": world.now + forged})
        world.reconcile()
        seen.add((world.status["progress"]["step"], world.status["activeTime"]["asOf"]))
        world.wait(1)
    assert len(seen) == 4


def test_a_report_of_an_earlier_run_is_not_shown() -> None:
    world, name = running(Stage.CONVERT)
    key = world.key_of(name)
    world.report(name, "converting the weights", **TENSORS)
    early = {"updated": world.now - timedelta(hours=1), "since": world.now - timedelta(hours=2)}
    world.stage_progress = {key: world.stage_progress[key].model_copy(update=early)}
    world.reconcile()
    assert reported(world, Stage.CONVERT) is None


@pytest.mark.parametrize(
    ("stage", "reason"),
    [(stage, "StartupTimeout" if stage is Stage.TRAIN else "StageTimeout") for stage in Stage],
)
def test_reports_postpone_no_time_limit(stage: Stage, reason: str) -> None:
    """A stage that hangs is stopped, however much its trainer claims to do."""
    world, name = running(stage, hangPolicy={"stageSeconds": 600, "startupSeconds": 600})
    key = world.key_of(name)
    for minute in range(11):
        world.report(name, f"doing something else, {minute}", minute, unit="things")
        world.reconcile()
        assert world.attempts[key].failure is None
        world.wait(60)
    world.reconcile()
    failure = world.attempts[key].failure
    assert failure is not None
    assert failure.reason == reason


COUNTS = st.integers(0, MOST_COUNT)
TIMES = st.timedeltas(timedelta(days=-400_000), timedelta(days=400_000))


@given(
    doing=st.text(min_size=1, max_size=80),
    unit=st.text(max_size=16),
    counts=st.tuples(COUNTS, st.none() | COUNTS, COUNTS, st.none() | COUNTS),
    since=TIMES,
    updated=TIMES,
)
def test_whatever_a_trainer_writes_gives_a_status_that_the_schema_allows(
    doing: str,
    unit: str,
    counts: tuple[int, int | None, int, int | None],
    since: timedelta,
    updated: timedelta,
) -> None:
    world, name = copy.deepcopy(converting())
    done, total, done_bytes, total_bytes = counts
    record = StageProgress(
        doing=doing, unit=unit, done=done, total=total, done_bytes=done_bytes, total_bytes=total_bytes,
        since=world.now + since, updated=world.now + updated,
    )  # fmt: skip
    world.stage_progress = {world.key_of(name): record}
    world.reconcile()
    status = FineTuneJobStatus.model_validate(world.status)
    assert fit_schema(status) == status
    shown = reported(world, Stage.CONVERT)
    texts = [shown["doing"], shown.get("unit", "")] if shown else []
    assert all(text.isprintable() for text in [*texts, world.status["summary"]])
