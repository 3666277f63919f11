"""The pause of the whole operator: nothing starts, what runs continues, and every live job says so."""

from finetune_contract import Stage
from tests.unit.lifecycle.world import World

SENTENCE = "The platform team has paused the operator"


def test_a_new_job_is_admitted_and_starts_nothing() -> None:
    world = World(paused=True)
    world.reconcile()
    world.reconcile()
    assert world.created == []
    assert world.status["phase"] == "Queued"
    assert world.status["waiting"]["reason"] == "OperatorPaused"
    assert world.status["summary"].count(SENTENCE) == 1


def test_a_running_stage_continues_and_says_so_and_the_next_one_waits() -> None:
    world = World()
    name = world.until(Stage.CONVERT)
    world.paused = True
    world.reconcile()
    assert world.live() == [name]
    assert world.status["phase"] == "Running"
    assert "waiting" not in world.status
    assert world.status["summary"].endswith("until it is resumed.")
    world.succeed(name)
    before = list(world.created)
    world.reconcile()
    assert world.created == before
    assert world.status["waiting"]["reason"] == "OperatorPaused"


def test_a_job_continues_when_the_operator_is_resumed() -> None:
    world = World(paused=True)
    world.reconcile()
    world.reconcile()
    world.paused = False
    world.reconcile()
    assert len(world.live()) == 1
    assert SENTENCE not in world.status["summary"]


def test_a_suspension_is_not_held_up() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.paused = True
    world.edit(suspend=True)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]


def test_a_job_that_has_ended_says_nothing_of_it() -> None:
    world = World()
    world.to_the_end()
    world.paused = True
    world.reconcile()
    assert SENTENCE not in world.status["summary"]
