"""A smoke test is asked of preflight alone, and told in its stage."""

from typing import Any

import pytest

from finetune_contract import PreflightOutcome, SmokeOutcome, SmokeSpec, Stage, StageRequest
from tests.unit.lifecycle.world import World, job


class TriedOut(World):
    """Preflight has tried the chain out where it was asked to."""

    def details(self, request: StageRequest) -> object:
        details = super().details(request)
        if isinstance(details, PreflightOutcome) and request.smoke:
            tried = SmokeOutcome(steps=request.smoke.steps, examples=64, max_seq_length=512, seconds=61.4)
            return details.model_copy(update={"smoke": tried})
        return details


def stage(world: World, name: str) -> dict[str, Any]:
    return next(each for each in world.status["stages"] if each["name"] == name)


@pytest.mark.parametrize(
    ("asked", "resolved"),
    [({}, SmokeSpec(steps=5, examples=64)), ({"steps": 2, "examples": 16}, SmokeSpec(steps=2, examples=16))],
)
def test_preflight_alone_is_asked_and_says_what_it_tried(asked: dict[str, int], resolved: SmokeSpec) -> None:
    world = TriedOut(job=job(preflight={"smoke": asked}))
    world.to_the_end()
    told = {world.key_of(name).stage: world.request(name).smoke for name in world.created}
    assert told.pop(Stage.PREFLIGHT) == resolved
    assert set(told.values()) == {None}
    assert stage(world, "Preflight")["message"] == (
        f"The smoke test went through to its export: {resolved.steps} steps on 64 examples of at most 512 tokens, "
        "in 61 s."
    )


def test_without_one_nothing_is_said() -> None:
    world = TriedOut()
    world.to_the_end()
    assert "message" not in stage(world, "Preflight")
