"""The slice that preflight chooses for a job that names none: the JobSets on it, and the status."""

from dataclasses import dataclass
from typing import Any, override

import pytest

from finetune_contract import MemoryOutcome, PreflightOutcome, SliceShape, Stage, StageRequest
from finetune_operator.lifecycle.observation import Observation
from tests.stage_outcomes import DOES_NOT_FIT, memory
from tests.unit.lifecycle.test_limits import until_placed
from tests.unit.lifecycle.world import World, job, profile
from tests.unit.lifecycle.writes import writes

type Object = dict[str, Any]

FLAVORS = [
    {
        "name": name,
        "capacity": capacity,
        "accelerator": "tpu-v6e-slice",
        "topologies": ["2x2", "2x4", "4x4"],
        "chipsPerHost": 4,
        "chipHourPrice": price,
    }
    for name, capacity, price in (("cheap", "Spot", 1), ("dear", "OnDemand", 3))
]


@dataclass
class Choosing(World):
    """Preflight finds that the job needs at least ``chips`` chips."""

    chips: int = 8
    forged: MemoryOutcome | None = None

    @override
    def details(self, request: StageRequest) -> Any:
        details = super().details(request)
        if isinstance(details, PreflightOutcome):
            return details.model_copy(update={"memory": self.forged or memory(request, self.chips)})
        return details


def choosing(chips: int = 8, forged: MemoryOutcome | None = None, **spec: Any) -> Choosing:
    return Choosing(
        job=job(**{"resources": {}, **spec}),
        profiles=[profile(flavors=FLAVORS, currency="USD")],
        chips=chips,
        forged=forged,
    )


def slice_of(world: World, name: str) -> tuple[Any, Any, int, int]:
    """Returns the topology, the flavor and the number of pods of a JobSet, and the number of devices in its request."""
    jobset = world.jobsets[name]
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    selector = template["template"]["spec"]["nodeSelector"]
    return (
        selector["cloud.google.com/gke-tpu-topology"],
        jobset["metadata"]["annotations"]["tpu-finetune.dev/flavor"],
        template["completions"],
        world.request(name).mesh.devices,
    )


def test_training_and_evaluation_run_on_the_slice_that_preflight_chose() -> None:
    world = choosing()
    assert world.until(Stage.PREFLIGHT) == "support-bot-prep-1"
    assert world.status["resolved"]["resources"]["tpu"] == "v6e-4"
    assert "preflight tries v6e-8, v6e-16" in world.status["resolved"]["resources"]["why"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    for stage in (Stage.TRAIN, Stage.EVALUATE):
        assert slice_of(world, f"support-bot-{stage.short}-1") == ("2x4", "cheap", 2, 8)
    assert world.request("support-bot-train-1").tuning == {"remat_policy": "full"}


def test_the_status_reports_the_chosen_slice_its_reason_and_cost() -> None:
    world = choosing()
    world.until(Stage.TRAIN)
    resources = world.status["resolved"]["resources"]
    assert (resources["tpu"], resources["chips"], resources["hosts"]) == ("v6e-8", 8, 2)
    assert (
        resources["why"] == f"the cheapest slice of the profile that fits: v6e-4 {DOES_NOT_FIT}; flavor cheap"
    )
    assert world.condition("MemoryFits")["status"] == "True"
    assert "Compiled for v6e-8" in world.condition("MemoryFits")["message"]
    assert world.status["estimate"]["chipHours"] == "0.444444"
    assert world.status["estimate"]["cost"] == "0.444444"


@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN, Stage.EVALUATE])
def test_the_choice_is_the_same_at_every_reconcile_whatever_the_status(stage: Stage) -> None:
    """This covers a restart of the operator and a loss of the status."""
    world = choosing()
    name = world.until(stage)
    world.run(name)
    world.reconcile()
    world.job["status"] = {"observedGeneration": -1}
    assert writes(world.reconcile()).deletions == ()
    assert world.status["resolved"]["resources"]["tpu"] == "v6e-8"
    assert world.live() == [name]


def test_failed_training_is_retried_on_the_same_slice() -> None:
    world = choosing(recovery={"maxInfrastructureRetries": 3})
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.fail(name, 69, "StorageUnavailable", "away")
    world.reconcile()
    world.wait(3600)
    assert slice_of(world, world.until(Stage.TRAIN)) == ("2x4", "cheap", 2, 8)


@pytest.mark.parametrize(
    ("stage", "begins"), [("Train", "support-bot-train-2"), ("Preflight", "support-bot-prep-2")]
)
def test_a_manual_retry_keeps_the_slice_unless_it_repeats_preflight(stage: str, begins: str) -> None:
    world = choosing()
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.fail(name, 64, "Broken", "no")
    world.reconcile()
    assert world.status["phase"] == "Failed"
    world.edit(retry={"generation": 1, "fromStage": stage})
    world.chips = 16
    while begins not in world.created:
        world.reconcile()
    if stage == "Preflight":
        requested = world.request(begins).memory
        assert requested is not None
        assert [requested.slice.name, *(each.slice.name for each in requested.candidates)] == [
            "v6e-4",
            "v6e-8",
            "v6e-16",
        ]
    world.to_the_end()
    assert slice_of(world, "support-bot-train-2")[3] == (16 if stage == "Preflight" else 8)


def test_a_capacity_timeout_leads_to_the_same_slice_of_another_flavor() -> None:
    world = choosing(preRunningDeadlineSeconds=600)
    until_placed(world, Stage.TRAIN)
    world.wait(700)
    world.reconcile()
    second = world.until(Stage.TRAIN)
    assert slice_of(world, second) == ("2x4", "dear", 2, 8)
    assert world.condition("MemoryFits")["status"] == "True"


def shape(name: str, topology: str, hosts: int) -> SliceShape:
    return SliceShape(
        name=name,
        family="v6e",
        topology=topology,
        hosts=hosts,
        chips=4 * hosts,
        devices=4 * hosts,
        hbm_gib=32,
    )


def test_a_forged_record_with_an_unavailable_slice_changes_nothing() -> None:
    forged = MemoryOutcome(
        source="Compile", slice="v6e-256", chosen=shape("v6e-256", "16x16", 64), peak_bytes=1, limit_bytes=2
    )
    world = choosing(forged=forged)
    assert slice_of(world, world.until(Stage.TRAIN)) == ("2x2", "cheap", 1, 4)
    assert world.condition("MemoryFits")["status"] == "Unknown"


def test_a_slice_from_a_forged_record_is_checked_against_the_budget() -> None:
    forged = MemoryOutcome(
        source="Compile", slice="v6e-16", chosen=shape("v6e-16", "4x4", 4), peak_bytes=1, limit_bytes=2,
        step_seconds=(3600.0, 7200.0),
    )  # fmt: skip
    world = choosing(forged=forged, budget={"maxCost": 1500, "onExhausted": "Fail"})
    world.to_the_end()
    assert world.status["failure"]["reason"] == "BudgetTooSmall"
    assert "1600" in world.status["failure"]["message"]
    assert not any("train" in name for name in world.created)


def test_an_edit_that_names_a_slice_applies_after_preflight() -> None:
    world = choosing(hyperparameters={"steps": 100, "globalBatchSize": 16})
    world.until(Stage.CONVERT)
    world.edit(resources={"tpu": "v6e-16"})
    assert slice_of(world, world.until(Stage.TRAIN))[0] == "4x4"
    assert world.condition("MemoryFits")["status"] == "Unknown"


@pytest.mark.parametrize("resources", [{}, {"tpu": "v6e-8"}])
def test_disabling_the_check_after_preflight_does_not_change_training(resources: Object) -> None:
    world = choosing(resources=resources, recovery={"maxInfrastructureRetries": 3})
    name = world.until(Stage.TRAIN)
    world.edit(preflight={"memory": "Off"})
    world.run(name)
    world.fail(name, 69, "StorageUnavailable", "away")
    world.reconcile()
    world.wait(3600)
    second = world.until(Stage.TRAIN)
    assert second != name
    assert slice_of(world, second) == ("2x4", "cheap", 2, 8)
    assert world.request(second).tuning == {"remat_policy": "full"}


def test_a_retry_from_preflight_skips_a_disabled_check() -> None:
    world = choosing()
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.fail(name, 64, "Broken", "no")
    world.reconcile()
    world.edit(retry={"generation": 1, "fromStage": "Preflight"}, preflight={"memory": "Off"})
    while "support-bot-prep-2" not in world.created:
        world.reconcile()
    assert world.request("support-bot-prep-2").memory is None


def test_the_choice_does_not_replace_a_queued_slice() -> None:
    world = choosing()
    world.profiles = [profile(flavors=FLAVORS, currency="USD", queue={"localQueue": "team"})]
    name = until_queued(world)
    world.edit(checkpointing={"everySteps": 7})
    assert writes(world.reconcile()).deletions == ()
    assert world.live() == [name]


def until_queued(world: World) -> str:
    while True:
        world.reconcile()
        for name in world.live():
            if world.key_of(name).stage is Stage.TRAIN:
                return name
            world.succeed(name)


def test_the_status_keeps_the_choice_with_an_unreadable_run_folder() -> None:
    world = choosing()
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.reconcile()
    world.unreadable = "the bucket does not answer"
    seen: Observation = world.observe()
    assert writes(world.reconcile(observation=seen)).deletions == ()
    assert world.status["resolved"]["resources"]["tpu"] == "v6e-8"
    assert world.live() == [name]
