"""Rules of a job's lifecycle, one per test."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import ConditionType, FineTuneJobStatus
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.decision import Create, Decision, Finish, Wait
from finetune_operator.lifecycle.observation import AttemptFiles
from tests.unit.lifecycle import states
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job, profile
from tests.unit.lifecycle.writes import writes


def test_five_stages_run_one_after_the_other() -> None:
    world = World()
    world.to_the_end()
    assert world.created == [f"support-bot-{stage.short}-1" for stage in Stage]
    assert world.status["phase"] == "Succeeded"
    assert "Loss 2 before, 1 after." in world.status["summary"]


def test_each_stage_request_has_the_findings_of_earlier_stages() -> None:
    world = World()
    world.to_the_end()
    received = {world.key_of(name).stage: world.request(name) for name in world.created}
    assert (received[Stage.PREFLIGHT].fingerprint, received[Stage.PREFLIGHT].converted) == (None, None)
    assert received[Stage.CONVERT].fingerprint == "f1"
    assert received[Stage.TRAIN].converted == "gs://cache/team-a/convert/f1/0b5e3a52-1/0/items"
    assert received[Stage.EXPORT].train_step == TOTAL_STEPS


def test_the_event_of_an_own_creation_has_nothing_to_add_to_the_status() -> None:
    """The event handlers rely on this: they queue nothing for it."""
    world = World()
    for stage in Stage:
        while not world.live():
            world.reconcile()
        (name,) = world.live()
        assert world.key_of(name).stage is stage
        status = copy.deepcopy(world.status)
        assert isinstance(world.reconcile().action, Wait)
        assert world.status == status
        world.succeed(name)


def test_evaluate_is_skipped_if_nothing_is_requested() -> None:
    world = World(job=job(evaluation={}))
    world.to_the_end()
    assert "support-bot-eval-1" not in world.created
    assert {"name": "Evaluate", "phase": "Skipped", "reason": "NotRequested"} in world.status["stages"]
    assert world.status["evaluation"] == {"result": {"loss": "1"}}


def test_epochs_become_the_steps_that_preflight_counted() -> None:
    world = World(job=job(hyperparameters={"epochs": 2}))
    name = world.until(Stage.TRAIN)
    assert world.request(name).hyperparameters.steps == TOTAL_STEPS
    assert world.request(name).hyperparameters.epochs is None


# --- conditions


def test_all_conditions_are_set_by_the_first_status() -> None:
    world = World()
    world.admit()
    assert [each["type"] for each in world.status["conditions"]] == list(ConditionType)
    assert {each["observedGeneration"] for each in world.status["conditions"]} == {1}


def test_transition_times_move_only_with_the_status() -> None:
    world = World()
    world.admit()
    first = world.condition("Reconciling")["lastTransitionTime"]
    world.wait(60)
    world.to_the_end()
    assert world.condition("Valid")["lastTransitionTime"] == first
    assert world.condition("Reconciling")["lastTransitionTime"] != first


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: states.at(Stage.TRAIN), ("True", "False", "Unknown", "False")),
        (states.born_suspended, ("True", "False", "Unknown", "False")),
        (states.no_profile, ("False", "True", "Unknown", "False")),
        (states.planned, ("False", "False", "Unknown", "True")),
        (states.succeeded, ("False", "False", "True", "True")),
        (states.failed, ("False", "True", "False", "True")),
    ],
)
def test_four_conditions_give_the_state_to_tools(make: Any, expected: tuple[str, ...]) -> None:
    world = make()
    found = [world.condition(kind)["status"] for kind in ("Reconciling", "Stalled", "Succeeded", "Finished")]
    assert tuple(found) == expected
    FineTuneJobStatus.model_validate(world.status, by_alias=True, by_name=False)


# --- preflight


def test_a_missing_input_is_retried_with_backoff_and_not_charged() -> None:
    world = World()
    waits = []
    for _ in range(7):
        name = world.until(Stage.PREFLIGHT)
        world.fail(name, ExitCode.INPUT_MISSING, "DatasetMissing", "gs://data/chat.jsonl: no such file")
        world.reconcile()
        assert world.status["phase"] == "Validating"
        assert world.condition("DataReady")["status"] == "False"
        assert "gs://data/chat.jsonl" in world.condition("DataReady")["message"]
        assert world.status["waiting"]["reason"] == "WaitingForInput"
        waits.append(world.requeue_after)
        world.wait(world.requeue_after or 0)
    assert waits == [15, 30, 60, 120, 240, 480, 960]
    assert world.status["attempts"]["user"] == 0
    # Attempts that found no input are deleted, except for the newest.
    world.reconcile()
    assert sorted(world.jobsets) == ["support-bot-prep-7", "support-bot-prep-8"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_bad_data_fails_the_job_before_any_tpu() -> None:
    world = World()
    world.fail(world.until(Stage.PREFLIGHT), ExitCode.BAD_DATA)
    world.reconcile()
    assert world.created == ["support-bot-prep-1"]
    assert world.status["failure"]["suggestion"] == "Mend it."
    assert world.status["summary"].endswith("No TPU time was used.")
    assert world.condition("DataReady")["status"] == "False"
    assert {each["phase"] for each in world.status["stages"][1:]} == {"Skipped"}


def test_a_fix_that_the_message_contains_is_said_once() -> None:
    world = World()
    world.fail(world.until(Stage.PREFLIGHT), ExitCode.BAD_DATA, message="Row 1 is empty. Mend it.")
    world.reconcile()
    assert world.status["summary"] == "Failed in Preflight: Row 1 is empty. Mend it. No TPU time was used."


def test_plan_only_ends_after_preflight() -> None:
    world = states.planned()
    assert world.created == ["support-bot-prep-1"]
    assert world.status["phase"] == "Planned"


# --- convert


def test_a_cached_conversion_is_used_and_the_saved_time_reported() -> None:
    world = World()
    world.cache["f1"] = world.manifest(uid="another-job")
    world.to_the_end()
    assert "support-bot-conv-1" not in world.created
    convert = world.status["stages"][1]
    assert convert["phase"] == "Succeeded"
    assert convert["cache"]["result"] == "Hit"
    assert convert["cache"]["savedSeconds"] == "12"
    assert world.condition("ExportProven")["status"] == "True"


@pytest.mark.parametrize("setting", ["Refresh", "Off"])
def test_a_disabled_cache_is_not_used(setting: str) -> None:
    world = World(job=job(cache=setting))
    world.cache["f1"] = world.manifest(uid="another-job")
    name = world.until(Stage.TRAIN)
    assert "support-bot-conv-1" in world.created
    assert world.request(name).converted == "gs://cache/team-a/convert/f1/0b5e3a52-1/0/items"
    assert world.status["stages"][1]["cache"]["missBecause"] == [f"spec.cache is {setting}"]


def test_an_unproven_conversion_is_not_a_hit() -> None:
    world = World()
    world.cache["f1"] = world.manifest(uid="another-job", proven=False)
    world.until(Stage.CONVERT)


def test_a_conversion_that_died_after_writing_its_manifest_is_complete() -> None:
    world = World()
    name = world.until(Stage.CONVERT)
    world.cache["f1"] = world.manifest()
    world.kill(name)
    world.reconcile()
    assert world.created[-1] == "support-bot-train-1"
    assert world.status["stages"][1]["cache"]["result"] == "Miss"


# --- suspend


def test_suspending_stops_the_stage_and_is_not_charged() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 33)
    world.edit(suspend=True)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    assert world.status["phase"] != "Suspended"
    assert world.condition("Suspended")["status"] == "False"
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert "step 33" in world.status["summary"]
    world.edit(suspend=False)
    world.reconcile()
    assert world.live() == ["support-bot-train-2"]
    assert world.status["attempts"]["preemption"] == 0
    world.to_the_end()
    assert world.status["stages"][2]["resumedFromStep"] == 33


def test_a_job_created_suspended_starts_nothing() -> None:
    world = states.born_suspended()
    assert world.created == []
    assert world.status["phase"] == "Suspended"
    world.edit(suspend=False)
    world.to_the_end()


def test_a_suspended_attempt_without_a_record_is_not_charged() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    world.lose(name)
    world.reconcile()
    world.edit(suspend=False)
    world.to_the_end()
    assert world.status["attempts"]["infrastructure"] == 0


# --- obstacles


def _pending(world: World, status: dict[str, Any]) -> None:
    world.reconcile()
    world.reconcile()
    world.schedule("support-bot-prep-1")
    for pod in world.pods.values():
        pod["status"] = {"phase": "Pending", **status}
    world.wait(30)
    world.reconcile()


def test_a_missing_secret_is_named_with_its_key() -> None:
    world = World(job=job(huggingFaceTokenSecretRef={"name": "hub"}))
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}}
    _pending(world, {"containerStatuses": [{"name": "trainer", "state": waiting}]})
    valid = world.condition("Valid")
    assert (valid["status"], valid["reason"]) == ("False", "SecretNotFound")
    assert '"token" of Secret "hub" in namespace team-a' in valid["message"]
    world.to_the_end()
    assert world.condition("Valid")["status"] == "True"


READ = "spec.huggingFaceTokenSecretRef"
WRITE = "spec.export.destinations[{}].huggingFaceHub.tokenSecretRef"
BOTH = f'{WRITE.format(1)}: key "a" of Secret "write" and {WRITE.format(2)}: key "b" of Secret "write"'


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ('secret "read" not found', f'{READ}: key "token" of Secret "read"'),
        ('secret "write" not found', BOTH),
        ("couldn't find key b in Secret team-a/write", f'{WRITE.format(2)}: key "b" of Secret "write"'),
        ("couldn't find key token in Secret team-a/read", f'{READ}: key "token" of Secret "read"'),
        ('secret "mesh" not found', 'Secret "mesh", which not the job but a webhook or policy has added'),
        ('configmap "read" not found', 'ConfigMap "read", which not the job but a webhook or policy has added'),
        ("couldn't find key c in ConfigMap team-a/mesh", 'ConfigMap "mesh", which not the job'),
        ('secrets "write" is forbidden: User "system:node:a"', BOTH),
    ],
)  # fmt: skip
def test_of_several_secrets_the_missing_one_is_named(message: str, named: str) -> None:
    hubs: list[dict[str, Any]] = [{"repo": "team/first"}]
    hubs += [{"repo": f"team/{key}", "tokenSecretRef": {"name": "write", "key": key}} for key in ("a", "b")]
    destinations = [{"huggingFaceHub": {**hub, "private": True}} for hub in hubs]
    world = World(
        job=job(huggingFaceTokenSecretRef={"name": "read"}, export={"destinations": destinations}),
        profiles=[profile(constraints={"mode": "Open"})],
    )
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": message}}
    _pending(world, {"containerStatuses": [{"name": "trainer", "state": waiting}]})
    valid = world.condition("Valid")
    assert (valid["status"], valid["reason"]) == ("False", "SecretNotFound")
    assert valid["message"].startswith(named)
    assert valid["message"].count(" of Secret ") == named.count(" of Secret ")
    assert f" in namespace team-a cannot be used: {message}." in valid["message"]


def test_a_container_that_cannot_be_configured_for_another_cause_lacks_no_secret() -> None:
    world = World(job=job(huggingFaceTokenSecretRef={"name": "hub"}))
    said = "container has runAsNonRoot and image will run as root"
    world.reconcile()
    world.reconcile()
    world.schedule("support-bot-prep-1")
    for pod in world.pods.values():
        waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": said}}
        pod["spec"] = {**pod["spec"], "nodeName": "node-1"}
        pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": waiting}]}
    world.wait(90)
    world.reconcile()
    assert world.condition("Valid")["status"] == "True"
    assert world.status["waiting"]["reason"] == "WaitingForPod"
    assert f"CreateContainerConfigError: {said}" in world.status["waiting"]["message"]


@pytest.mark.parametrize(
    ("stage", "controller", "account", "group"),
    [
        (Stage.PREFLIGHT, "McJAX", "ft-cpu", "cpu"),
        (Stage.TRAIN, "McJAX", "ft-train", "slice"),
        (Stage.TRAIN, "Pathways", "ft-train", "pathways-head"),
    ],
)
def test_a_jobset_without_pods_is_reported_with_possible_causes(
    stage: Stage, controller: str, account: str, group: str
) -> None:
    world = World(job=job(resources={"tpu": "v6e-4", "controller": controller}))
    name = world.until(stage)
    world.pods.clear()
    world.reconcile()
    assert "creates no pods" not in world.status["summary"]
    world.wait(30)
    world.reconcile()
    assert world.status["waiting"]["reason"] == "WaitingForInput"
    for part in (
        name,
        f'ServiceAccount "{account}" exists in namespace "team-a"',
        f"describe job {name}-{group}-0",
        f"the JobSet controller is down, or describe jobset {name} shows",
    ):
        assert part in world.status["summary"]
    world.run(name)
    world.reconcile()
    assert "waiting" not in world.status


def test_a_job_without_a_node_reports_the_schedulers_message() -> None:
    world = World()
    message = "0/4 nodes are available: 2 Insufficient google.com/tpu."
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": "2026-11-21T12:00:05Z",
    }
    _pending(world, {"conditions": [scheduled]})
    waiting = world.status["waiting"]
    assert (waiting["reason"], waiting["since"]) == ("WaitingForCapacity", "2026-11-21T12:00:05Z")
    assert message in waiting["message"]


def test_an_image_that_cannot_be_pulled_is_named_in_the_status() -> None:
    world = World()
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}
    _pending(world, {"containerStatuses": [{"name": "trainer", "image": "trainer:v9", "state": state}]})
    assert world.status["waiting"]["reason"] == "WaitingForImage"
    assert "trainer:v9" in world.status["waiting"]["message"]


def test_a_job_waits_for_an_unreadable_store() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    before = world.status
    world.succeed(name)
    world.unreadable = "gs://artifacts/team-a: timed out after 10 s"
    decision = world.reconcile()
    assert writes(decision).jobset is None
    assert writes(decision).records == ()
    assert "gs://artifacts" in world.status["waiting"]["message"]
    assert world.status["stages"] == before["stages"]
    assert world.condition("Reconciling")["reason"] == "StoreUnavailable"
    world.unreadable = None
    world.to_the_end()
    assert "waiting" not in world.status


def test_a_missing_profile_is_named_and_noticed_when_created() -> None:
    world = World(job=job(profileRef={"name": "late"}))
    world.reconcile()
    assert world.condition("Valid")["reason"] == "ProfileNotFound"
    assert "late" in world.condition("Valid")["message"]
    assert world.requeue_after is not None
    world.profiles.append(profile("late", default=False))
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_profile_deleted_after_admission_is_not_needed() -> None:
    world = World()
    world.until(Stage.CONVERT)
    world.profiles.clear()
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_refused_edit_starts_and_stops_nothing() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(resources={"tpu": "v6e-256"})
    world.reconcile()
    assert world.condition("Valid")["reason"] == "NoFlavorFits"
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]
    world.succeed(name)
    world.reconcile()
    assert world.created[-1] == name
    assert world.condition("Stalled")["status"] == "True"
    world.edit(resources={"tpu": "v6e-4"})
    world.to_the_end()


def test_an_edit_of_the_slice_keeps_the_global_batch() -> None:
    world = World(job=job(hyperparameters={"steps": TOTAL_STEPS, "perDeviceBatchSize": 2}))
    name = world.until(Stage.TRAIN)
    assert world.request(name).hyperparameters.global_batch_size == 8
    world.edit(resources={"tpu": "v6e-8"})
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"], "the running stage continues"
    world.stop(name)
    world.reconcile()
    assert name not in world.jobsets, "JobSet was about to restart the old slice"
    world.reconcile()
    request = world.request("support-bot-train-2")
    assert request.mesh.hosts == 2
    assert request.hyperparameters.global_batch_size == 8
    assert world.status["attempts"]["preemption"] == 1


def test_the_controller_of_an_admitted_job_cannot_be_edited() -> None:
    """The converted model and the checkpoints have the layout of the slice."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(resources={"tpu": "v6e-4", "controller": "Pathways"})
    world.reconcile()
    assert world.condition("Valid")["reason"] == "PathwaysNotPossible"
    assert "admitted with McJAX" in world.condition("Valid")["message"]
    assert world.live() == [name]
    world.edit(resources={"tpu": "v6e-4", "controller": "McJAX"})
    world.to_the_end()


def test_the_status_names_the_controller_and_all_images() -> None:
    world = World(job=job(resources={"tpu": "v6e-4", "controller": "Pathways"}))
    name = world.until(Stage.TRAIN)
    assert world.request(name).mesh.controller == "Pathways"
    resolved = world.status["resolved"]
    assert resolved["resources"]["controller"] == "Pathways"
    assert set(resolved["images"]) == {"trainer", "pathwaysServer", "pathwaysProxy"}


def test_the_status_names_the_profiles_cpu_image() -> None:
    images = {"trainer": "registry.example/t:1", "cpu": "registry.example/t:1-cpu"}
    world = World(profiles=[profile(images=images)])
    world.until(Stage.CONVERT)
    assert world.status["resolved"]["images"] == images
    world.to_the_end()


def test_the_sequence_length_in_the_status_is_bounded_by_the_model() -> None:
    world = World()
    world.until(Stage.CONVERT)
    assert world.status["resolved"]["hyperparameters"]["maxSeqLength"] == 512


def test_a_model_too_large_for_the_cpu_nodes_fails_before_conversion() -> None:
    world = World(profiles=[profile(cpuPool={"maxMemory": "2Gi"})])
    world.until(Stage.PREFLIGHT)
    world.succeed("support-bot-prep-1")
    world.reconcile()
    assert world.status["failure"]["reason"] == "CpuPoolTooSmall"
    assert world.condition("MemoryFits")["status"] == "False"
    assert world.status["stages"][1]["phase"] == "Failed", (
        "the stage that could not start, as in failure.stage"
    )


# --- the end


def test_a_finished_job_stays_finished_whatever_happens_to_its_children() -> None:
    for make in (states.succeeded, states.failed, states.planned):
        world = make()
        before = world.status
        world.jobsets.clear()
        world.pods.clear()
        world.attempts.clear()
        decision = world.reconcile()
        assert writes(decision).jobset is None
        assert decision.requeue_after is None
        assert world.status == before


@pytest.mark.parametrize("make", [states.succeeded, states.failed, states.planned])
def test_a_finished_job_stays_finished_with_an_invalid_time_in_its_condition(make: Any) -> None:
    world = make()
    created, reason = len(world.created), world.status["phase"]
    (finished,) = [each for each in world.status["conditions"] if each["type"] == ConditionType.FINISHED]
    # The API server accepts any two digits in an offset.
    finished["lastTransitionTime"] = "2026-11-21T12:00:00+99:00"
    world.jobsets.clear()
    world.pods.clear()
    world.attempts.clear()
    for _ in range(3):
        world.reconcile()
    assert len(world.created) == created
    assert world.condition("Finished")["status"] == "True"
    assert world.condition("Finished")["reason"] == reason


@pytest.mark.parametrize("make", [states.succeeded, states.failed, states.planned])
def test_the_end_of_a_job_is_recorded_once(make: Any) -> None:
    """A crash may have lost the status that follows the record: then both are written again."""
    world = make()
    world.job["status"] = {"observedGeneration": -1}
    actions = [world.reconcile().action for _ in range(3)]
    assert actions == [Finish(ends_now=True), Finish(), Finish()]


def test_a_finished_job_acknowledges_an_edit() -> None:
    world = states.succeeded()
    world.edit(suspend=True)
    world.reconcile()
    assert world.status["observedGeneration"] == 2
    assert {each["observedGeneration"] for each in world.status["conditions"]} == {2}
    assert world.status["phase"] == "Succeeded"


def test_the_result_is_recovered_without_status_and_children() -> None:
    for make, phase in ((states.succeeded, "Succeeded"), (states.failed, "Failed")):
        world = make()
        world.job["status"] = {"observedGeneration": -1}
        created = len(world.created)
        world.jobsets.clear()
        world.pods.clear()
        world.reconcile()
        assert world.status["phase"] == phase
        assert len(world.created) == created


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    world = World()
    world.until(Stage.CONVERT)
    world.job["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    world.jobsets.clear()
    decision = decide(world.observe())
    assert (writes(decision).jobset, writes(decision).deletions) == (None, ())
    assert decision.status.to_document() == world.status


# --- reporting


def test_progress_is_reported_at_most_every_thirty_seconds() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    world.reconcile()
    assert world.requeue_after == 10
    assert "step 10 of 100, loss 1.9, 9-18s left" in world.status["summary"]
    for seconds, step, shown in ((14, 14, 10), (15, 19, 10), (1, 20, 20)):
        world.wait(seconds)
        world.train(name, step)
        world.reconcile()
        assert world.status["progress"]["step"] == shown


@pytest.mark.parametrize(
    ("jobs", "observed", "reported"),
    [(1, 10, 30), (120, 10, 30), (200, 10, 50), (1000, 50, 250), (5000, 250, 600), (1_000_000, 500, 600)],
)
def test_many_live_jobs_are_observed_and_reported_less_often(
    jobs: int, observed: float, reported: float
) -> None:
    world = World(live_jobs=jobs)
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    world.reconcile()
    assert world.requeue_after == observed
    for seconds, step, shown in ((reported - 1, 14, 10), (1, 15, 15)):
        world.wait(seconds)
        world.train(name, step)
        world.reconcile()
        assert world.status["progress"]["step"] == shown


def test_usage_is_reported_as_often_as_progress() -> None:
    world = World(live_jobs=1000)
    world.run(world.until(Stage.CONVERT))
    world.reconcile()
    before = world.status["activeTime"]
    for seconds, same in ((249, True), (1, False)):
        world.wait(seconds)
        world.reconcile()
        assert (world.status["activeTime"] == before) is same


def test_what_has_happened_to_the_job_is_reported_at_once_with_its_progress() -> None:
    world = World(live_jobs=1000)
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    world.reconcile()
    world.train(name, 14)
    world.edit(suspend=True)
    world.reconcile()
    assert world.status["progress"]["step"] == 14


def test_progress_is_read_again_when_the_last_reading_is_old() -> None:
    """Whatever leads to a reconcile in between."""
    world = World()
    world.train(world.until(Stage.TRAIN), 10)
    seen = world.observe()
    seen = replace(seen, folder=replace(seen.folder, progress_age=7.0))
    assert decide(seen).requeue_after == 3


@pytest.mark.parametrize("unreadable", [None, "the store is away"])
def test_a_job_is_reconciled_every_few_minutes_with_any_number_of_other_jobs(unreadable: str | None) -> None:
    world = World(live_jobs=1_000_000)
    world.train(world.until(Stage.TRAIN), 10)
    world.unreadable = unreadable
    world.reconcile()
    assert world.requeue_after == 500


def test_a_job_without_a_profile_is_reconciled_each_minute() -> None:
    world = World(live_jobs=1_000_000, profiles=())
    world.reconcile()
    assert world.requeue_after == 60


@pytest.mark.parametrize("stage", list(Stage))
def test_a_running_stage_is_reconciled_at_the_pace_at_which_its_progress_is_read(stage: Stage) -> None:
    world = World()
    name = world.until(stage)
    world.run(name)
    world.reconcile()
    assert world.requeue_after == 10


def test_a_jobset_without_pods_is_reconciled_when_it_becomes_suspicious() -> None:
    world = World()
    world.reconcile()
    world.reconcile()
    assert len(world.live()) == 1
    assert world.requeue_after == 20


def test_each_transition_has_one_event() -> None:
    world = World()
    world.to_the_end()
    world.reconcile()
    assert [notice.reason for notice in world.events] == ["Checked", "Proven", "Succeeded"]


def test_a_failed_attempt_is_reported_once() -> None:
    world = World()
    world.stop(world.until(Stage.TRAIN))
    for _ in range(3):
        world.reconcile()
    assert [notice.reason for notice in world.events].count("Preempted") == 1


def test_the_history_names_and_keeps_the_node_of_the_failed_host() -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    name = world.until(Stage.TRAIN)
    for index, pod in enumerate(world.pods_of(name)):
        pod["spec"] = {"nodeName": f"node-{index}"}
        pod["metadata"]["labels"] = pod["metadata"]["labels"] | {
            "batch.kubernetes.io/job-completion-index": str(index)
        }
    key = world.key_of(name)
    failure = Failure(code=69, reason="Broken", message="it broke", host=1)
    world.attempts[key] = AttemptFiles(failure=failure)
    world.kill(name, 69)
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["node"] == "node-1"
    world.lose(name)
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["node"] == "node-1"


# --- reports in a burst


def _unreported(world: World) -> Decision:
    return decide(replace(world.observe(), report_later=True))


def test_the_first_jobset_is_created_without_its_report_if_that_may_wait() -> None:
    world = World()
    world.reconcile()
    decision = _unreported(world)
    assert isinstance(decision.action, Create)
    assert (decision.reported, decision.events, decision.status.conditions) == (False, (), None)
    assert decision.action == decide(world.observe()).action


@pytest.mark.parametrize(
    "make",
    [
        lambda: states.at(Stage.TRAIN),
        states.born_suspended,
        states.no_profile,
        states.succeeded,
        states.failed,
    ],
)
def test_no_other_decision_goes_without_its_report(make: Callable[[], World]) -> None:
    world = make()
    assert _unreported(world) == decide(world.observe())


def test_a_first_jobset_that_follows_an_error_in_the_status_is_reported() -> None:
    world = World()
    world.reconcile()
    failed = {
        "type": "Reconciling",
        "status": "True",
        "observedGeneration": 1,
        "reason": "APIServerUnavailable",
        "message": "no answer",
        "lastTransitionTime": "2026-11-27T12:00:00Z",
    }
    world.job["status"] = {"observedGeneration": -1, "conditions": [failed]}
    decision = _unreported(world)
    assert isinstance(decision.action, Create)
    assert decision.reported
