"""Operator and trainer image of different releases, and jobs that run through an upgrade."""

import json
from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import (
    CONTRACT_VERSION,
    ContractVersion,
    ExitCode,
    Since,
    Stage,
    StageRequest,
    StageResult,
)
from finetune_operator.lifecycle import AttemptFiles
from finetune_operator.lifecycle import stored_plan as lifecycle_stored_plan
from finetune_operator.planning import merge, stored_plan
from finetune_operator.planning.defaults import BUILT_IN
from finetune_operator.planning.stages import STAGES
from finetune_operator.planning.stored_plan import read_stored_plan, render_stored_plan
from tests.unit.lifecycle.world import World, job

PROFILING = {"startStep": 2, "steps": 3}
EARLY_WORDS = (
    "BadRequest: FINETUNE_REQUEST is not a request that this trainer understands:\n"
    "  evaluation.benchmarks: Extra inputs are not permitted"
)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator speaks 1.1, in which profiling has come."""
    for module in (lifecycle_stored_plan, stored_plan):
        monkeypatch.setattr(module, "CONTRACT_VERSION", ContractVersion(1, 1))
    monkeypatch.setattr(StageRequest.model_fields["profiling"], "metadata", [Since("1.1")])


def admitted(world: World, contract: str | None) -> World:
    """By an operator that spoke ``contract``; None: by one from before the plan recorded it."""
    world.reconcile()
    assert world.config_map is not None
    version = ContractVersion.parse(contract) if contract else None
    world.config_map = render_stored_plan(replace(read_stored_plan(world.config_map), contract=version))
    world.job["status"] = {"observedGeneration": -1}
    return world


def says_it_speaks(world: World, version: str) -> None:
    """All results so far are of an image that speaks ``version``."""
    for key, files in world.attempts.items():
        assert files.result is not None
        result = files.result.model_copy(update={"speaks": version})
        world.attempts[key] = AttemptFiles(result=result, failure=files.failure)


def refused(world: World) -> dict[str, Any]:
    assert world.status["phase"] == "Failed"
    failure: dict[str, Any] = world.status["failure"]
    assert (failure["class"], failure["reason"]) == ("Platform", "ContractUnsupported")
    assert {world.status["attempts"][name] for name in ("preemption", "infrastructure", "user")} == {0}
    return failure


def test_the_plan_records_what_the_operator_spoke_at_admission() -> None:
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
        read_stored_plan(world.config_map), contract=ContractVersion(1, 7), more={"unheard-of": "{}"}
    )
    world.config_map = render_stored_plan(newer)
    assert read_stored_plan(world.config_map) == newer
    world.job["status"] = {"observedGeneration": -1}
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["resolved"]["plan"]["digest"] == newer.digest


@pytest.mark.usefixtures("newer")
def test_a_lost_plan_is_made_again_as_the_operator_before_the_upgrade_has_made_it() -> None:
    world = admitted(World(), "1.0")
    name = world.until(Stage.TRAIN)
    assert world.config_map is not None
    lost, world.config_map = world.config_map, None
    world.reconcile()
    assert world.config_map is not None
    assert world.config_map["data"] == lost["data"]
    world.reconcile()
    assert world.live() == [name]


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("contract", ["1.0", None])
def test_a_newer_operator_finishes_the_jobs_of_an_older_image(contract: str | None) -> None:
    world = admitted(World(), contract)
    name = world.until(Stage.TRAIN)
    assert world.request(name).requires == "1.0"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("contract", ["1.0", None])
def test_what_an_older_image_does_not_understand_is_refused_before_anything_runs(
    contract: str | None,
) -> None:
    world = admitted(World(), contract)
    world.edit(profiling=PROFILING)
    world.reconcile()
    assert world.created == []
    failure = refused(world)
    assert (
        "needs version 1.1 of the contract (profiling), and the trainer image speaks 1.0"
        in failure["message"]
    )
    assert failure["stage"] == "Preflight"


@pytest.mark.usefixtures("newer")
def test_a_later_stage_is_refused_by_what_preflight_has_reported_of_the_image() -> None:
    world = admitted(World(), "1.1")
    world.succeed(world.until(Stage.PREFLIGHT))
    world.edit(profiling=PROFILING)
    world.reconcile()
    assert refused(world)["stage"] == "Convert"
    assert world.created == ["support-bot-prep-1"]


@pytest.mark.usefixtures("newer")
def test_an_image_that_speaks_the_newer_version_is_given_it() -> None:
    world = admitted(World(), "1.0")
    world.succeed(world.until(Stage.PREFLIGHT))
    says_it_speaks(world, "1.7")
    world.edit(profiling=PROFILING)
    assert world.request(world.until(Stage.TRAIN)).requires == "1.1"


@pytest.mark.usefixtures("newer")
def test_taking_the_edit_back_and_a_retry_revive_the_job() -> None:
    world = admitted(World(), "1.0")
    world.until(Stage.CONVERT)
    world.edit(profiling=PROFILING)
    world.succeed(world.live()[0])
    world.reconcile()
    refused(world)
    del world.job["spec"]["profiling"]
    world.edit(retry={"generation": 1})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_plan_of_another_major_version_starts_nothing() -> None:
    world = admitted(World(), "2.0")
    world.reconcile()
    refused(world)
    assert world.created == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ExitCode.CONTRACT_UNSUPPORTED, "ContractUnsupported: The request needs version 1.1 of the contract"),
        (ExitCode.BAD_REQUEST, EARLY_WORDS),
    ],
)
def test_a_request_that_the_trainer_refuses_is_the_platforms_failure(code: ExitCode, words: str) -> None:
    world = World(job=job(recovery={"maxUserRetries": 3, "maxInfrastructureRetries": 3}))
    name = world.until(Stage.PREFLIGHT)
    world.end_pods(name, code)
    (container,) = world.pods_of(name)[0]["status"]["containerStatuses"]
    container["state"]["terminated"]["message"] = words
    world.settle(name)
    world.reconcile()
    failure = refused(world)
    assert failure["evidence"] == words
    assert "images.trainer" in failure["suggestion"]
    assert world.created == [name]


def test_a_stage_that_cannot_do_what_it_is_asked_is_the_platforms_failure_and_not_tried_again() -> None:
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
    document |= {"speaks": "1.9", "details": {**document["details"], **details}}
    world.attempts[key] = AttemptFiles(result=StageResult.model_validate(document))


@pytest.mark.parametrize("stage", Stage)
def test_findings_of_an_unknown_kind_are_the_platforms_failure(stage: Stage) -> None:
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
    assert f"speaks version 1.9 of the contract, the operator {CONTRACT_VERSION}" in failure["message"]


def test_findings_with_more_fields_are_taken() -> None:
    world = World()
    while not world.finished:
        world.reconcile()
        for name in world.live():
            world.succeed(name)
            rewritten(world, name, unheard_of={"nested": [1]})
    assert world.status["phase"] == "Succeeded"


# --- what restarts a JobSet


def preempted(world: World, name: str) -> None:
    """JobSet starts all pods again by itself."""
    world.train(name, 40)
    world.stop(name)
    for _ in range(3):
        world.reconcile()
        world.wait(20)


def test_a_release_that_renders_other_words_replaces_no_jobset(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    monkeypatch.setitem(STAGES, Stage.TRAIN, replace(STAGES[Stage.TRAIN], grace_seconds=240))
    changed = merge.merge(BUILT_IN, {"checkpointing": {"everySteps": 50}, "evaluation": {"baseline": False}})
    monkeypatch.setattr("finetune_operator.planning.plan_builder.BUILT_IN", changed)
    monkeypatch.setattr("finetune_operator.planning.admission.BUILT_IN", changed)
    preempted(world, name)
    assert world.live() == [name]
    assert "Replaced" not in [each["reason"] for each in world.status["attempts"]["history"]]


def test_a_jobset_of_a_release_that_did_not_record_the_spec_is_left_alone() -> None:
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
def test_an_edit_of_what_the_stage_does_replaces_a_jobset_that_begins_again(edit: dict[str, Any]) -> None:
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
