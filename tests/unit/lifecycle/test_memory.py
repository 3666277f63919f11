"""Results of preflight about memory, in the status and in the requests of later stages."""

from dataclasses import asdict, dataclass, replace
from typing import Any, override

import pytest

from finetune_contract import MemoryOutcome, MeshSpec, ModelIdentity, PreflightOutcome, Stage, StageRequest
from finetune_operator.api.numbers import decimal
from finetune_operator.planning import admit
from finetune_operator.planning.estimate.past_runs import PastTrainings, TrainingShape
from tests.unit.ledger.test_record import record
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job, profile
from tests.unit.rendering.models import MODELS

GIB = 2**30
MESH = MeshSpec(hosts=1, chips_per_host=4, fsdp=2, tensor=2)
TUNING: dict[str, str | int] = {"remat_policy": "save_qkv_proj", "num_vocab_tiling": 8}
PROVED = MemoryOutcome(
    source="Compile", slice="v6e-4", peak_bytes=5 * GIB, limit_bytes=31 * GIB, step_seconds=(0.5, 2.0), mesh=MESH,
    tuning=TUNING,
)  # fmt: skip


@dataclass
class Proving(World):
    """A world whose preflight reports ``found``."""

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


def test_only_preflights_request_lists_the_candidate_slices() -> None:
    world = Proving(found=PROVED)
    world.to_the_end()
    received = {world.key_of(name).stage: world.request(name).memory for name in world.created}
    requested = received.pop(Stage.PREFLIGHT)
    assert requested is not None
    assert (requested.source, requested.slice.name, requested.slice.family) == ("Compile", "v6e-4", "v6e")
    assert [(each.topology, each.devices, each.hbm_gib) for each in requested.larger] == [("2x4", 8, 32)]
    assert set(received.values()) == {None}


def test_training_uses_the_compiled_configuration() -> None:
    world = after_preflight(PROVED)
    received = world.request(f"support-bot-{Stage.TRAIN.short}-1")
    assert (received.mesh, received.tuning) == (MESH, TUNING)


def test_a_mesh_set_by_the_job_is_kept() -> None:
    resources = {"tpu": "v6e-4", "parallelism": {"data": 1, "fsdp": 4, "tensor": 1}}
    world = after_preflight(PROVED, resources=resources)
    received = world.request(f"support-bot-{Stage.TRAIN.short}-1")
    assert (received.mesh.fsdp, received.mesh.tensor) == (4, 1)


def test_a_proof_for_another_slice_is_ignored() -> None:
    world = after_preflight(PROVED.model_copy(update={"slice": "v6e-8"}))
    received = world.request(f"support-bot-{Stage.TRAIN.short}-1")
    assert (received.mesh.fsdp, received.tuning) == (4, {})
    assert world.condition("MemoryFits")["status"] == "Unknown"
    assert "estimate" not in world.status


OTHER_MESHES = [
    MESH.model_copy(update={"fsdp": 8}),
    MESH.model_copy(update={"fsdp": -4, "tensor": -1}),
    MESH.model_copy(update={"fsdp": 0}),
]


@pytest.mark.parametrize("mesh", OTHER_MESHES, ids=str)
def test_a_recorded_mesh_that_does_not_cover_the_slice_is_ignored(mesh: MeshSpec) -> None:
    received = after_preflight(PROVED.model_copy(update={"mesh": mesh})).request(
        f"support-bot-{Stage.TRAIN.short}-1"
    )
    assert (received.mesh.fsdp, received.mesh.tensor) == (4, 1)


def test_a_recorded_mesh_changes_only_what_preflight_may_choose() -> None:
    mesh = MESH.model_copy(update={"hosts": 64, "slices": 9, "controller": "Pathways"})
    received = after_preflight(PROVED.model_copy(update={"mesh": mesh})).request(
        f"support-bot-{Stage.TRAIN.short}-1"
    )
    assert received.mesh == MESH


UNKNOWN = MemoryOutcome(source="Compile", slice="v6e-4", unknown="This trainer image holds no libtpu.")
FLOOR = MemoryOutcome(source="Analytic", slice="v6e-4", peak_bytes=GIB, limit_bytes=31 * GIB)
CASES: list[tuple[MemoryOutcome | None, str, str]] = [
    (PROVED, "True", "the train step needs 5120Mi of 31744Mi per chip"),
    (UNKNOWN, "Unknown", "holds no libtpu"),
    (FLOOR, "Unknown", "Parameters and optimizer take 1024Mi of 31744Mi per chip"),
    (None, "Unknown", "has not checked"),
]


@pytest.mark.parametrize(("found", "status", "text"), CASES)
def test_the_condition_reports_peak_and_limit_or_why_they_are_unknown(
    found: MemoryOutcome | None, status: str, text: str
) -> None:
    condition = after_preflight(found).condition("MemoryFits")
    assert condition["status"] == status
    assert text in condition["message"]


def test_the_status_has_what_the_step_begins_with() -> None:
    world = after_preflight(PROVED.model_copy(update={"arguments_bytes": 2 * GIB}))
    memory = world.status["resolved"]["memory"]
    assert (memory["statePerChip"], memory["estimatedPerChip"]) == ("2048Mi", "5120Mi")


def test_the_status_has_peak_limit_and_estimate() -> None:
    prices = [
        {
            "name": "on-demand", "capacity": "OnDemand", "accelerator": "tpu-v6e-slice", "topologies": ["2x2"],
            "chipsPerHost": 4, "chipHourPrice": 2.70,
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


def past(world: World, seconds: float) -> None:
    """Past trainings of the job's shape took about so many seconds for a step."""
    shape = asdict(TrainingShape.of_plan(admit(world.job, world.profiles).plan))
    model, tpu, chips = (shape.pop(field) for field in ("model", "tpu", "chips"))
    world.past_trainings = PastTrainings(
        record(
            uid=f"job-{number}", model=model, tpu=tpu, chips=chips,
            trained={"start_step": 0, "end_step": 100, "attempts": 1, "seconds": round(100 * each), **shape},
        )
        for number, each in enumerate((seconds / 2, seconds, seconds * 2))
    )  # fmt: skip


def test_the_estimate_says_what_past_trainings_of_the_shape_took() -> None:
    world = Proving(found=PROVED)
    past(world, 4)
    world.until(Stage.TRAIN)
    assert world.status["estimate"]["pastRuns"] == {
        "attempts": 3,
        "jobs": 3,
        "durationSeconds": {"low": 2 * TOTAL_STEPS, "high": 8 * TOTAL_STEPS},
        "medianSeconds": 4 * TOTAL_STEPS,
        "chipHours": decimal(4 * TOTAL_STEPS * 4 / 3600),
    }


def test_past_trainings_are_reported_as_first_known() -> None:
    """Otherwise each end of a training would have the statuses of all waiting jobs written again."""
    world = Proving(found=PROVED)
    past(world, 4)
    name = world.until(Stage.TRAIN)
    first = world.status["estimate"]
    past(world, 400)
    world.run(name)
    world.reconcile()
    assert world.status["estimate"] == first


def test_past_trainings_that_become_known_during_the_training_are_not_reported() -> None:
    """The job's own earlier attempts may be among them."""
    world = Proving(found=PROVED)
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.reconcile()
    past(world, 4)
    world.reconcile()
    assert "pastRuns" not in world.status["estimate"]


def test_past_trainings_that_were_faster_than_the_compiled_step_can_be_are_not_reported() -> None:
    world = Proving(found=PROVED)
    past(world, 0.2)
    world.until(Stage.TRAIN)
    assert "pastRuns" not in world.status["estimate"]


def test_past_trainings_are_reported_where_no_step_was_compiled() -> None:
    world = Proving(found=None)
    past(world, 4)
    world.until(Stage.TRAIN)
    assert set(world.status["estimate"]) == {"pastRuns"}


def test_a_step_that_does_not_fit_fails_the_job_before_claiming_a_slice() -> None:
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


def test_a_disabled_memory_check_is_reported() -> None:
    world = after_preflight(None, preflight={"memory": "Off"})
    assert world.request("support-bot-prep-1").memory is None
    assert "is Off" in world.condition("MemoryFits")["message"]
    assert world.status["resolved"]["memory"] == {"source": "Off"}


# --- host memory of the stages on CPU


class Sized(World):
    """A world whose job has a published model."""

    model: ModelIdentity

    def details(self, request: StageRequest) -> Any:
        found = super().details(request)
        return published(found, self.model) if isinstance(found, PreflightOutcome) else found


def published(found: PreflightOutcome, model: ModelIdentity) -> PreflightOutcome:
    sizes = {"parameters": model.parameters, "sizes": model.sizes}
    return found.model_copy(update={"model": found.model.model_copy(update=sizes)})


def sized(name: str, limit: str | None, disk: str | None = None, **spec: Any) -> Sized:
    given = {"maxMemory": limit, "maxEphemeralStorage": disk}
    pool = {"cpuPool": {field: each for field, each in given.items() if each}}
    world = Sized(job=job(**spec), profiles=[profile(**pool)])
    world.model = MODELS[name]
    return world


@pytest.mark.parametrize(("rank", "phase"), [(16, "Succeeded"), (256, "Failed")])
@pytest.mark.parametrize("content", ["Adapter", "Both"])
def test_the_memory_of_an_adapter_export_depends_on_its_rank(content: str, rank: int, phase: str) -> None:
    world = sized(
        "Llama-3.1-70B", "32Gi", method={"type": "SFT", "lora": {"rank": rank}}, export={"content": content}
    )
    world.to_the_end()
    assert world.status["phase"] == phase


@pytest.mark.parametrize("limit", ["12Gi", "16Gi", "20Gi"])
def test_a_conversion_too_large_for_cpu_nodes_fails_the_job_at_once(limit: str) -> None:
    world = sized("gemma-3-27b", limit)
    world.to_the_end()
    assert list(world.jobsets) == ["support-bot-prep-1"]
    failure = world.status["failure"]
    assert (failure["reason"], failure["stage"]) == ("CpuPoolTooSmall", "Convert")
    assert "1.41 billion" in failure["message"]
    assert "cpuPool.maxMemory 27Gi" in failure["suggestion"]
    assert world.status["summary"].startswith("Failed in Convert: ")
    assert world.status["summary"].endswith("No TPU time was used.")
    assert world.condition("MemoryFits")["reason"] == "CpuPoolTooSmall"
    phases = {each["name"]: each["phase"] for each in world.status["stages"]}
    assert (phases["Convert"], phases["Train"], phases["Export"]) == ("Failed", "Skipped", "Skipped")


def test_an_export_too_large_for_any_disk_fails_the_job_at_once() -> None:
    world = sized("Llama-3.1-70B", "32Gi", "200Gi", method={"type": "SFT", "lora": {"rank": 16}})
    world.to_the_end()
    assert list(world.jobsets) == ["support-bot-prep-1"]
    failure = world.status["failure"]
    assert (failure["reason"], failure["stage"]) == ("CpuPoolTooSmall", "Export")
    assert "Export needs 272 GiB of scratch space" in failure["message"]
    assert "cpuPool.maxEphemeralStorage 272Gi" in failure["suggestion"]


def test_a_plan_only_job_reports_that_the_export_does_not_fit() -> None:
    world = sized("gemma-3-27b", "16Gi", planOnly=True)
    world.to_the_end()
    assert world.status["failure"]["reason"] == "CpuPoolTooSmall"


def test_the_memory_of_a_cached_conversion_is_not_checked() -> None:
    world = sized("gemma-3-27b", "16Gi")
    world.cache[world.fingerprint] = world.manifest(uid="another-job")
    world.to_the_end()
    assert world.status["failure"]["stage"] == "Export"
    assert "Convert" not in world.status["failure"]["message"]


def test_the_status_reports_stage_resources_once_the_model_is_known() -> None:
    world = sized("Llama-3.1-70B", "250Gi")
    world.until(Stage.PREFLIGHT)
    assert "hostMemory" not in world.status["resolved"]
    world.until(Stage.CONVERT)
    assert world.status["resolved"]["hostMemory"] == {"convert": "27Gi", "export": "42Gi"}
    assert world.status["resolved"]["ephemeralStorage"] == {"convert": "143Gi", "export": "210Gi"}
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_running_stage_is_not_stopped_for_the_memory_of_a_later_one() -> None:
    """As under an operator that checked memory when the stage started."""
    world = sized("Llama-3.1-8B", "16Gi", method={"type": "SFT", "lora": {"rank": 16}})
    name = world.until(Stage.TRAIN)
    for key, files in world.attempts.items():
        if key.stage is Stage.PREFLIGHT:
            assert files.result is not None
            assert isinstance(files.result.details, PreflightOutcome)
            found = published(files.result.details, MODELS["gemma-3-27b"])
            world.attempts[key] = replace(files, result=files.result.model_copy(update={"details": found}))
    world.reconcile()
    assert world.live() == [name]
    world.succeed(name)
    world.reconcile()
    assert world.status["failure"]["reason"] == "CpuPoolTooSmall"


def test_a_model_that_fits_requests_allocatable_memory_and_scratch_space() -> None:
    world = sized("Llama-3.1-8B", "16Gi", method={"type": "SFT", "lora": {"rank": 16}})
    world.until(Stage.EXPORT)
    resources = {
        name: jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0][
            "resources"
        ]
        for name, jobset in world.jobsets.items()
    }
    convert, export = resources["support-bot-conv-1"], resources["support-bot-export-1"]
    assert convert["requests"] == {"cpu": "2", "memory": "12Gi", "ephemeral-storage": "24Gi"}
    assert convert["limits"] == {"memory": "12Gi"}
    assert export["requests"] == {"cpu": "2", "memory": "12Gi", "ephemeral-storage": "38Gi"}
    assert export["limits"] == {"memory": "12Gi", "ephemeral-storage": "54Gi"}


def test_a_memory_limit_too_small_for_preflight_is_reported_at_once() -> None:
    world = sized("Llama-3.1-8B", "100Mi")
    world.to_the_end()
    assert not world.jobsets
    assert world.status["failure"]["reason"] == "CpuPoolTooSmall"
