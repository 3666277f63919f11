"""The smoke test is requested only of preflight and reported with its stage."""

from typing import Any

import pytest

from finetune_contract import PreflightOutcome, SmokeOutcome, SmokeSpec, Stage, StageRequest
from tests.unit.lifecycle.world import World, job


class TriedOut(World):
    """A world whose preflight has run the smoke test if its request has one."""

    def details(self, request: StageRequest) -> object:
        details = super().details(request)
        if isinstance(details, PreflightOutcome) and request.smoke:
            tried = SmokeOutcome(steps=request.smoke.steps, examples=64, max_seq_length=512, seconds=61.4)
            return details.model_copy(update={"smoke": tried})
        return details


def stage(world: World, name: str) -> dict[str, Any]:
    return next(each for each in world.status["stages"] if each["name"] == name)


@pytest.mark.parametrize(
    ("requested", "resolved"),
    [({}, SmokeSpec(steps=5, examples=64)), ({"steps": 2, "examples": 16}, SmokeSpec(steps=2, examples=16))],
)
def test_only_preflight_runs_the_smoke_test_and_reports_it(
    requested: dict[str, int], resolved: SmokeSpec
) -> None:
    world = TriedOut(job=job(preflight={"smoke": requested}))
    world.to_the_end()
    received = {world.key_of(name).stage: world.request(name).smoke for name in world.created}
    assert received.pop(Stage.PREFLIGHT) == resolved
    assert set(received.values()) == {None}
    assert stage(world, "Preflight")["message"] == (
        f"The smoke test ran all stages: {resolved.steps} steps on 64 examples of at most 512 tokens, "
        "in 61 s."
    )


def test_nothing_is_reported_without_a_smoke_test() -> None:
    world = TriedOut()
    world.to_the_end()
    assert "message" not in stage(world, "Preflight")
