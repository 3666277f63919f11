"""What the trainer's image was: as the first pod's node reported it, for as long as the job exists."""

import pytest

from finetune_contract import Stage
from tests.unit.lifecycle.world import World

FIRST, LATER = (f"registry/trainer@sha256:{digit * 64}" for digit in "12")


def report(world: World, name: str, image_id: str) -> None:
    """The node reports what it has started."""
    for pod in world.pods_of(name):
        pod["status"]["containerStatuses"] = [
            {"name": "trainer", "image": "trainer:dev", "imageID": image_id, "state": {"running": {}}}
        ]
    world.reconcile()


def shown(world: World) -> dict[str, str]:
    images: dict[str, str] = world.status["resolved"]["images"]
    return images


@pytest.mark.parametrize("image_id", ["", FIRST])
def test_the_first_pods_image_stands_in_the_status(image_id: str) -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    assert "trainerID" not in shown(world)
    report(world, name, image_id)
    assert shown(world).get("trainerID", "") == image_id


def test_it_stays_when_the_name_means_another_image_and_when_the_job_has_ended() -> None:
    world = World()
    report(world, world.until(Stage.PREFLIGHT), FIRST)
    report(world, world.until(Stage.TRAIN), LATER)
    assert shown(world)["trainerID"] == FIRST
    world.to_the_end()
    assert shown(world)["trainerID"] == FIRST


def test_an_image_of_cpu_stages_is_not_taken_for_the_trainers() -> None:
    world = World()
    report(world, world.until(Stage.CONVERT), LATER)
    assert "trainerID" not in shown(world)
