"""Flavors of one kind of capacity, such as zones or reservations, fall back to each other."""

from typing import Any

import pytest

from finetune_contract import Stage
from tests.unit.lifecycle.test_limits import (
    NOT_CHARGED,
    charged,
    flavors,
    until_placed,
    wait_step_by_step,
    waiting,
)
from tests.unit.lifecycle.world import World, job, profile

LIMIT = 600


def in_zones(*offered: tuple[str, str, float | None], **spec: Any) -> World:
    """A job under a profile with flavors of these names, kinds and prices."""
    found = [
        {**flavor, "name": name, **({"chipHourPrice": price} if price else {})}
        for name, kind, price in offered
        for flavor in flavors(kind)
    ]
    wanted = {"resources": {"tpu": "v6e-4"}, "preRunningDeadlineSeconds": LIMIT, **spec}
    return World(job=job(**wanted), profiles=[profile(flavors=found, currency="USD")])


ZONES = (("spot-a", "Spot", 1.0), ("spot-b", "Spot", 2.0), ("on-demand", "OnDemand", 3.0))


def flavor_of(world: World) -> str:
    """Returns the flavor of the live JobSet, of which the status shows the price."""
    (name,) = world.live()
    return str(world.jobsets[name]["metadata"]["annotations"]["tpu-finetune.dev/flavor"])


def waits_in_vain(world: World) -> None:
    (name,) = world.live()
    waiting(world, name)
    wait_step_by_step(world, LIMIT + 100)


def test_each_flavor_has_the_whole_wait_and_then_the_job_fails() -> None:
    world = in_zones(*ZONES)
    until_placed(world, Stage.TRAIN)
    begun = world.now
    used = [flavor_of(world)]
    for _ in range(2):
        waits_in_vain(world)
        used.append(flavor_of(world))
    assert used == ["spot-a", "spot-b", "on-demand"]
    waits_in_vain(world)
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "NoCapacity"
    message = world.status["failure"]["message"]
    assert "waited for OnDemand capacity (flavor on-demand) for the 600 s" in message
    assert "No other flavor is left" in message
    assert (world.now - begun).total_seconds() >= 3 * LIMIT
    assert charged(world) == NOT_CHARGED


def test_a_retry_begins_with_the_first_flavor_again() -> None:
    world = in_zones(*ZONES[:2])
    until_placed(world, Stage.TRAIN)
    waits_in_vain(world)
    waits_in_vain(world)
    assert world.status["phase"] == "Failed"
    world.edit(retry={"generation": 1})
    wait_step_by_step(world, 60)
    assert flavor_of(world) == "spot-a"


@pytest.mark.parametrize("names", [("spot-a", "on-demand"), ("other",)], ids=["it is gone", "all are gone"])
def test_an_edit_of_the_profile_while_its_second_flavor_is_in_use_changes_nothing(
    names: tuple[str, ...],
) -> None:
    """The job keeps the profile that admitted it, so the prices and the flavors that are left stay, too."""
    world = in_zones(*ZONES)
    until_placed(world, Stage.TRAIN)
    waits_in_vain(world)
    (second,) = world.live()
    world.run(second)
    world.reconcile()
    offered = world.profiles[0]["spec"]["flavors"]
    kept = [{**each, "chipHourPrice": 9.0} for each in offered if each["name"] in names]
    world.profiles[0]["spec"]["flavors"] = kept or [{**offered[0], "name": "other"}]
    wait_step_by_step(world, 60)
    assert world.live() == [second]
    assert world.jobsets[second]["metadata"]["annotations"]["tpu-finetune.dev/flavor"] == "spot-b"
    world.fail(second, 69)
    wait_step_by_step(world, 30)
    assert flavor_of(world) == "spot-a"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_flavor_without_a_price_is_passed_over_while_money_is_limited() -> None:
    world = in_zones(ZONES[0], ("spot-b", "Spot", None), ZONES[2], budget={"maxCost": 10})
    until_placed(world, Stage.TRAIN)
    waits_in_vain(world)
    assert flavor_of(world) == "on-demand"
    waits_in_vain(world)
    assert world.status["failure"]["reason"] == "NoCapacity"


def test_a_job_that_names_no_slice_tries_the_same_slice_of_the_second_zone_first() -> None:
    world = in_zones(*ZONES, resources={})
    until_placed(world, Stage.TRAIN)
    assert flavor_of(world) == "spot-a"
    waits_in_vain(world)
    assert flavor_of(world) == "spot-b"
