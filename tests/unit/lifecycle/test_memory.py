"""What preflight found out about memory, in the status and in what later stages are told."""

from dataclasses import dataclass
from typing import Any, override

import pytest

from finetune_contract import MemoryOutcome, MeshSpec, PreflightOutcome, Stage, StageRequest
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job, profile

GIB = 2**30
MESH = MeshSpec(hosts=1, chips_per_host=4, fsdp=2, tensor=2)
TUNING: dict[str, str | int] = {"remat_policy": "save_qkv_proj", "num_vocab_tiling": 8}
PROVED = MemoryOutcome(
    source="Compile", slice="v6e-4", peak_bytes=5 * GIB, limit_bytes=31 * GIB, step_seconds=(0.5, 2.0), mesh=MESH,
    tuning=TUNING,
)  # fmt: skip


@dataclass
class Proving(World):
    """A world whose preflight has found this out."""

    found: MemoryOutcome | None = None

    @override
    def details(self, request: StageRequest) -> Any:
        details = super().details(request)
        if isinstance(details, PreflightOutcome):
            return details.model_copy(update={"memory": self.found})
        return details


def after_preflight(found: MemoryOutcome | None, **spec: Any) -> Proving:
    world = Proving(job=job(**spec), found=found)
    world.until(Stage.TRAIN)
    return world


def test_preflight_alone_is_asked_and_told_what_else_the_profile_offers() -> None:
    world = Proving(found=PROVED)
    world.to_the_end()
    told = {world.key_of(name).stage: world.request(name).memory for name in world.created}
    asked = told.pop(Stage.PREFLIGHT)
    assert asked is not None
    assert (asked.source, asked.slice.name, asked.slice.family) == ("Compile", "v6e-4", "v6e")
    assert [(each.topology, each.devices, each.hbm_gib) for each in asked.larger] == [("2x4", 8, 32)]
    assert set(told.values()) == {None}


def test_training_runs_what_was_compiled() -> None:
    world = after_preflight(PROVED)
    told = world.request(f"support-bot-{Stage.TRAIN.short}-1")
    assert (told.mesh, told.tuning) == (MESH, TUNING)


def test_the_users_own_mesh_is_kept() -> None:
    resources = {"tpu": "v6e-4", "parallelism": {"data": 1, "fsdp": 4, "tensor": 1}}
    world = after_preflight(PROVED, resources=resources)
    told = world.request(f"support-bot-{Stage.TRAIN.short}-1")
    assert (told.mesh.fsdp, told.mesh.tensor) == (4, 1)


def test_what_was_found_for_another_slice_counts_for_nothing() -> None:
    world = after_preflight(PROVED.model_copy(update={"slice": "v6e-8"}))
    told = world.request(f"support-bot-{Stage.TRAIN.short}-1")
    assert (told.mesh.fsdp, told.tuning) == (4, {})
    assert world.condition("MemoryFits")["status"] == "Unknown"
    assert "estimate" not in world.status


OTHER_MESHES = [
    MESH.model_copy(update={"fsdp": 8}),
    MESH.model_copy(update={"fsdp": -4, "tensor": -1}),
    MESH.model_copy(update={"fsdp": 0}),
]


@pytest.mark.parametrize("mesh", OTHER_MESHES, ids=str)
def test_a_recorded_mesh_that_does_not_cover_the_slice_is_not_taken(mesh: MeshSpec) -> None:
    told = after_preflight(PROVED.model_copy(update={"mesh": mesh})).request(
        f"support-bot-{Stage.TRAIN.short}-1"
    )
    assert (told.mesh.fsdp, told.mesh.tensor) == (4, 1)


def test_a_recorded_mesh_changes_only_what_preflight_may_choose() -> None:
    mesh = MESH.model_copy(update={"hosts": 64, "slices": 9, "controller": "Pathways"})
    told = after_preflight(PROVED.model_copy(update={"mesh": mesh})).request(
        f"support-bot-{Stage.TRAIN.short}-1"
    )
    assert told.mesh == MESH


UNKNOWN = MemoryOutcome(source="Compile", slice="v6e-4", unknown="This trainer image holds no libtpu.")
FLOOR = MemoryOutcome(source="Analytic", slice="v6e-4", peak_bytes=GIB, limit_bytes=31 * GIB)
CASES: list[tuple[MemoryOutcome | None, str, str]] = [
    (PROVED, "True", "the train step needs 5120Mi of 31744Mi per chip"),
    (UNKNOWN, "Unknown", "holds no libtpu"),
    (FLOOR, "Unknown", "Parameters and optimizer take 1024Mi of 31744Mi per chip"),
    (None, "Unknown", "has not checked"),
]


@pytest.mark.parametrize(("found", "status", "text"), CASES)
def test_the_condition_tells_peak_and_limit_or_why_not(
    found: MemoryOutcome | None, status: str, text: str
) -> None:
    condition = after_preflight(found).condition("MemoryFits")
    assert condition["status"] == status
    assert text in condition["message"]


def test_peak_limit_and_estimate_stand_in_the_status() -> None:
    prices = [
        {
            "name": "on-demand", "capacity": "OnDemand", "accelerator": "tpu-v6e-slice", "topologies": ["2x2"],
            "chipsPerHost": 4, "chipHourPrice": "2.70",
        }
    ]  # fmt: skip
    world = Proving(profiles=[profile(flavors=prices, currency="USD")], found=PROVED)
    world.until(Stage.TRAIN)
    assert world.status["resolved"]["memory"] == {
        "source": "Compile",
        "estimatedPerChip": "5120Mi",
        "limitPerChip": "31744Mi",
    }
    assert world.status["estimate"] == {
        "durationSeconds": {"low": TOTAL_STEPS // 2, "high": TOTAL_STEPS * 2},
        "chipHours": "0.222222",
        "cost": "0.6",
    }


def test_a_step_that_does_not_fit_fails_the_job_before_any_slice() -> None:
    world = Proving()
    name = world.until(Stage.PREFLIGHT)
    world.run(name)
    world.fail(name, 78, "MemoryExceeded", "does not fit; use hyperparameters.globalBatchSize 8")
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["class"] == "User"
    condition = world.condition("MemoryFits")
    assert (condition["status"], condition["reason"]) == ("False", "MemoryExceeded")
    assert "globalBatchSize 8" in condition["message"]
    assert world.created == [name]


def test_off_asks_nothing_and_says_so() -> None:
    world = after_preflight(None, preflight={"memory": "Off"})
    assert world.request("support-bot-prep-1").memory is None
    assert "is Off" in world.condition("MemoryFits")["message"]
    assert world.status["resolved"]["memory"] == {"source": "Off"}
