"""Operator and trainer image of different releases, and jobs that run through an upgrade."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import (
    CONTRACT_VERSION,
    ContractVersion,
    ExitCode,
    Stage,
    StageRequest,
    StageResult,
)
from finetune_contract.versions import Since, marked_fields
from finetune_operator.lifecycle.observation import AttemptFiles
from finetune_operator.planning import merge, stored_plan
from finetune_operator.planning.defaults import BUILT_IN
from finetune_operator.planning.stages import STAGES
from finetune_operator.planning.stored_plan import read_stored_plan, render_stored_plan
from tests.unit.lifecycle.world import World, job

PROFILING = {"startStep": 2, "steps": 3}
REFUSAL = f"ContractUnsupported: The request needs version {CONTRACT_VERSION.major}.1 of the contract"


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operator supports 3.1, which adds profiling."""
    monkeypatch.setattr(stored_plan, "CONTRACT_VERSION", ContractVersion(3, 1))
    monkeypatch.setattr(StageRequest.model_fields["profiling"], "metadata", [Since("3.1")])
    marked_fields.cache_clear()
    yield
    monkeypatch.undo()
    marked_fields.cache_clear()


def admitted(world: World, contract: str) -> World:
    """Returns the world after the job's admission by an operator that supports ``contract``."""
    world.reconcile()
    assert world.config_map is not None
    version = ContractVersion.parse(contract)
    world.config_map = render_stored_plan(replace(read_stored_plan(world.config_map), contract=version))
    world.job["status"] = {"observedGeneration": -1}
    return world


def says_it_speaks(world: World, version: str) -> None:
    """Makes all results so far those of an image that supports ``version``."""
    for key, files in world.attempts.items():
        assert files.result is not None
        result = files.result.model_copy(update={"supports": version})
        world.attempts[key] = AttemptFiles(result=result, failure=files.failure)


def refused(world: World) -> dict[str, Any]:
    assert world.status["phase"] == "Failed"
    failure: dict[str, Any] = world.status["failure"]
    assert (failure["class"], failure["reason"]) == ("Platform", "ContractUnsupported")
    assert {world.status["attempts"][name] for name in ("preemption", "infrastructure", "user")} == {0}
    return failure


def test_the_plan_records_the_contract_version_of_the_admission() -> None:
    world = World()
    world.reconcile()
    assert world.config_map is not None
    assert world.config_map["data"]["contract"] == str(CONTRACT_VERSION)
    assert read_stored_plan(world.config_map).contract == CONTRACT_VERSION


def test_a_plan_of_a_newer_operator_is_read_and_keeps_its_digest() -> None:
    world = World()
    world.reconcile()
    assert world.config_map is not None
    newer = replace(
        read_stored_plan(world.config_map), contract=ContractVersion(3, 7), more={"unheard-of": "{}"}
    )
    world.config_map = render_stored_plan(newer)
    assert read_stored_plan(world.config_map) == newer
    world.job["status"] = {"observedGeneration": -1}
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["resolved"]["plan"]["digest"] == newer.digest


@pytest.mark.usefixtures("newer")
def test_a_newer_operator_finishes_the_jobs_of_an_older_image() -> None:
    world = admitted(World(), "3.0")
    name = world.until(Stage.TRAIN)
    assert world.request(name).requires == "3.0"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.usefixtures("newer")
def test_a_request_too_new_for_the_image_is_refused_before_anything_runs() -> None:
    world = admitted(World(), "3.0")
    world.edit(profiling=PROFILING)
    world.reconcile()
    assert world.created == []
    failure = refused(world)
    assert (
        "needs version 3.1 of the contract (profiling), and the trainer image supports 3.0"
        in failure["message"]
    )
    assert failure["stage"] == "Preflight"


@pytest.mark.usefixtures("newer")
def test_a_later_stage_is_refused_by_the_version_that_preflight_reported() -> None:
    world = admitted(World(), "3.1")
    world.succeed(world.until(Stage.PREFLIGHT))
    world.edit(profiling=PROFILING)
    world.reconcile()
    assert refused(world)["stage"] == "Convert"
    assert world.created == ["support-bot-prep-1"]


@pytest.mark.usefixtures("newer")
def test_an_image_that_supports_the_newer_version_receives_it() -> None:
    world = admitted(World(), "3.0")
    world.succeed(world.until(Stage.PREFLIGHT))
    says_it_speaks(world, "3.7")
    world.edit(profiling=PROFILING)
    assert world.request(world.until(Stage.TRAIN)).requires == "3.1"


@pytest.mark.usefixtures("newer")
def test_reverting_the_edit_and_retrying_revives_the_job() -> None:
    world = admitted(World(), "3.0")
    world.until(Stage.CONVERT)
    world.edit(profiling=PROFILING)
    world.succeed(world.live()[0])
    world.reconcile()
    refused(world)
    del world.job["spec"]["profiling"]
    world.edit(retry={"generation": 1})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


OTHER_MAJORS = pytest.mark.parametrize(
    "contract", [f"{CONTRACT_VERSION.major - 1}.0", f"{CONTRACT_VERSION.major + 1}.0"]
)


def stalled(world: World) -> None:
    for kind in ("Stalled", "Valid"):
        condition = world.condition(kind)
        assert condition["status"] == {"Stalled": "True", "Valid": "False"}[kind]
        assert condition["reason"] == "ContractUnsupported"
    assert str(CONTRACT_VERSION) in world.condition("Stalled")["message"]


@OTHER_MAJORS
def test_a_plan_of_another_major_version_starts_nothing(contract: str) -> None:
    world = admitted(World(), contract)
    for _ in range(3):
        world.reconcile()
    stalled(world)
    assert contract in world.condition("Stalled")["message"]
    assert world.created == []


@OTHER_MAJORS
def test_a_trainer_of_another_major_version_gets_no_further_stage(contract: str) -> None:
    world = World()
    world.succeed(world.until(Stage.PREFLIGHT))
    says_it_speaks(world, contract)
    for _ in range(3):
        world.reconcile()
    stalled(world)
    assert world.created == ["support-bot-prep-1"]


@OTHER_MAJORS
@pytest.mark.parametrize("records", ["known", "unknown"])
@pytest.mark.parametrize(
    ("spec", "edit", "reason"),
    [
        ({"activeDeadlineSeconds": 600}, {}, "DeadlineExceeded"),
        ({"budget": {"maxChipHours": 1}}, {}, "BudgetExhausted"),
        ({}, {"suspend": True}, "Suspended"),
        ({}, {"cancel": True}, "Cancelled"),
    ],
)
def test_limits_stop_a_stage_under_a_plan_of_another_major_version(
    spec: dict[str, Any], edit: dict[str, Any], reason: str, records: str, contract: str
) -> None:
    world = World(job=job(**spec))
    name = world.until(Stage.TRAIN)
    world.reconcile()
    assert world.config_map is not None
    plan = replace(read_stored_plan(world.config_map), contract=ContractVersion.parse(contract))
    world.config_map = render_stored_plan(plan)
    for jobset in world.jobsets.values():
        jobset["metadata"]["annotations"]["tpu-finetune.dev/plan"] = plan.digest
    if records == "unknown":
        world.unreadable = "the store does not answer"
    world.reconcile()
    stalled(world)
    assert world.live() == [name]
    world.wait(3601)
    world.edit(**edit)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    (pending,) = world.status["pending"]
    assert pending["reason"] == reason
    world.stop(name)
    for _ in range(3):
        world.reconcile()
    stalled(world)
    assert world.live() == []
    assert world.created[-1] == name


def test_a_request_refused_by_the_trainer_is_charged_to_the_platform() -> None:
    world = World(job=job(recovery={"maxUserRetries": 3, "maxInfrastructureRetries": 3}))
    name = world.until(Stage.PREFLIGHT)
    world.end_pods(name, ExitCode.CONTRACT_UNSUPPORTED)
    (container,) = world.pods_of(name)[0]["status"]["containerStatuses"]
    container["state"]["terminated"]["message"] = REFUSAL
    world.settle(name)
    world.reconcile()
    failure = refused(world)
    assert failure["evidence"] == REFUSAL
    assert "images.trainer" in failure["suggestion"]
    assert world.created == [name]


def test_an_unsupported_request_is_a_platform_failure_without_a_retry() -> None:
    world = World(job=job(recovery={"maxUserRetries": 3, "maxInfrastructureRetries": 3}))
    name = world.until(Stage.TRAIN)
    world.fail(name, ExitCode.CONTRACT_UNSUPPORTED, "RequestIncomplete")
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["class"] == "Platform"
    assert world.status["attempts"]["history"][-1]["class"] == "Platform"


def rewritten(world: World, name: str, **details: Any) -> None:
    """The result of ``name`` as a newer trainer has written it."""
    key = world.key_of(name)
    written = world.attempts[key].result
    assert written is not None
    document = json.loads(written.to_json())
    document |= {"supports": "3.9", "details": {**document["details"], **details}}
    world.attempts[key] = AttemptFiles(result=StageResult.model_validate(document))


@pytest.mark.parametrize("stage", Stage)
def test_findings_of_an_unknown_kind_are_a_platform_failure(stage: Stage) -> None:
    world = World()
    name = world.until(stage)
    world.succeed(name)
    world.cache.clear()
    rewritten(world, name, kind="Distilled")
    world.reconcile()
    assert world.status["phase"] == "Failed"
    failure = world.status["failure"]
    assert (failure["class"], failure["reason"], failure["stage"]) == (
        "Platform",
        "ResultIncomplete",
        str(stage),
    )
    assert f"supports version 3.9 of the contract, the operator {CONTRACT_VERSION}" in failure["message"]


def test_findings_with_additional_fields_are_accepted() -> None:
    world = World()
    while not world.finished:
        world.reconcile()
        for name in world.live():
            world.succeed(name)
            rewritten(world, name, unheard_of={"nested": [1]})
    assert world.status["phase"] == "Succeeded"


# --- what restarts a JobSet


def preempted(world: World, name: str) -> None:
    """JobSet restarts all pods by itself."""
    world.train(name, 40)
    world.stop(name)
    for _ in range(3):
        world.reconcile()
        world.wait(20)


def test_a_release_with_another_rendering_replaces_no_jobset(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    monkeypatch.setitem(STAGES, Stage.TRAIN, replace(STAGES[Stage.TRAIN], grace_seconds=240))
    changed = merge.merge(BUILT_IN, {"checkpointing": {"everySteps": 50}, "evaluation": {"baseline": False}})
    monkeypatch.setattr("finetune_operator.planning.plan_builder.BUILT_IN", changed)
    monkeypatch.setattr("finetune_operator.planning.admission.BUILT_IN", changed)
    preempted(world, name)
    assert world.live() == [name]
    assert "Replaced" not in [each["reason"] for each in world.status["attempts"]["history"]]


def test_a_jobset_without_a_recorded_spec_is_left_alone() -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    annotations = world.jobsets[name]["metadata"]["annotations"]
    del annotations["tpu-finetune.dev/spec"]
    annotations["tpu-finetune.dev/content"] = "what the older release rendered"
    preempted(world, name)
    assert world.live() == [name]


@pytest.mark.parametrize(
    "edit",
    [
        {"checkpointing": {"everySteps": 7}},
        {"resources": {"tpu": "v6e-8"}},
        {"engineOverrides": {"remat_policy": "full"}},
    ],
)
def test_an_edit_that_concerns_the_stage_replaces_a_restarting_jobset(edit: dict[str, Any]) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(**edit)
    preempted(world, name)
    assert world.live() == ["support-bot-train-2"]
    assert "Replaced" in [each["reason"] for each in world.status["attempts"]["history"]]


@pytest.mark.parametrize(
    "edit",
    [
        {"export": {"dtype": "FP32"}},
        {"recovery": {"maxPreemptions": 7}},
        {"hangPolicy": {"noStepSeconds": 700}},
    ],
)
def test_an_edit_that_the_stage_does_not_read_leaves_its_jobset_alone(edit: dict[str, Any]) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(**edit)
    preempted(world, name)
    assert world.live() == [name]
