"""Gates: conditions on metrics that a tuned model must meet. Here every metric is 2 before and 1 after training."""

from typing import Any

import pytest

from tests.unit.lifecycle.world import World, job

MET = {"metric": "loss", "op": "LessOrEqual", "deltaFromBaseline": -0.5}
MISSED = {"metric": "perplexity", "op": "LessOrEqual", "value": 0.5}


def ended(**spec: Any) -> World:
    world = World(job=job(**spec))
    world.to_the_end()
    return world


def condition(world: World, kind: str) -> tuple[str, str, str]:
    found = next(each for each in world.status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_a_model_that_meets_all_gates_is_exported() -> None:
    world = ended(evaluation={"gates": [MET]})
    assert world.status["phase"] == "Succeeded"
    assert condition(world, "GatePassed")[:2] == ("True", "GatePassed")
    assert world.status["evaluation"]["gates"] == [
        {"metric": "loss", "op": "LessOrEqual", "value": "1", "threshold": "1.5", "passed": True}
    ]


def test_a_model_that_misses_a_gate_is_not_exported_and_the_status_says_why() -> None:
    world = ended(evaluation={"gates": [MET, MISSED]})
    assert "support-bot-export-1" not in world.created
    assert world.created.count("support-bot-eval-1") == 1
    assert world.status["phase"] == "Failed"
    failure = world.status["failure"]
    assert (failure["class"], failure["reason"], failure["stage"]) == ("User", "GateNotMet", "Evaluate")
    assert "perplexity is 1, at most 0.5 is required" in failure["message"]
    assert condition(world, "GatePassed")[:2] == ("False", "GateNotMet")
    assert world.status["attempts"]["user"] == 0, "the attempt succeeded"


def test_a_model_that_misses_a_gate_is_exported_if_the_job_says_so() -> None:
    world = ended(evaluation={"gates": [MISSED]}, export={"onGateFailure": "Export"})
    assert world.status["phase"] == "Succeeded"
    assert condition(world, "GatePassed")[:2] == ("False", "GateNotMet")


@pytest.mark.parametrize(
    ("edit", "again"),
    [
        (
            {"export": {"onGateFailure": "Export"}, "retry": {"generation": 1, "fromStage": "Export"}},
            ["support-bot-export-1"],
        ),
        (
            {"evaluation": {"gates": [MET]}, "retry": {"generation": 1, "fromStage": "Evaluate"}},
            ["support-bot-eval-2", "support-bot-export-1"],
        ),
    ],
)
def test_a_retry_continues_after_a_missed_gate(edit: dict[str, Any], again: list[str]) -> None:
    world = ended(evaluation={"gates": [MISSED]})
    before = len(world.created)
    world.edit(**edit)
    world.to_the_end()
    assert world.created[before:] == again
    assert world.status["phase"] == "Succeeded"


def test_an_edit_of_the_gates_alone_starts_nothing() -> None:
    world = ended(evaluation={"gates": [MISSED]})
    before = list(world.created)
    world.edit(export={"onGateFailure": "Export"})
    world.to_the_end()
    assert (world.created, world.status["phase"]) == (before, "Failed")


def test_gates_are_unknown_before_the_evaluation() -> None:
    world = World(job=job(evaluation={"gates": [MET]}))
    world.reconcile()
    world.reconcile()
    assert condition(world, "GatePassed")[:2] == ("Unknown", "NotStarted")


def test_the_status_reports_the_best_checkpoint() -> None:
    world = World(job=job(evaluation={"everySteps": 50}, checkpointing={"everySteps": 50}), best=50)
    world.to_the_end()
    assert [(each["step"], each["tags"]) for each in world.status["checkpoints"]] == [
        (50, ["Best"]),
        (100, ["Last"]),
    ]
    assert world.status["resolved"]["checkpoint"] == "Best"
