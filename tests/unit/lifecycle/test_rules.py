"""One rule of the job's course at a time."""

from typing import Any

import pytest

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import ConditionType, FineTuneJobStatus
from finetune_operator.lifecycle import AttemptFiles, decide
from tests.unit.lifecycle import states
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job, profile


def test_five_stages_run_one_after_the_other() -> None:
    world = World()
    world.to_the_end()
    assert world.created == [f"support-bot-{stage.short}-1" for stage in Stage]
    assert world.status["phase"] == "Succeeded"
    assert "Loss 2 before, 1 after." in world.status["summary"]


def test_each_stage_is_told_what_the_earlier_ones_found() -> None:
    world = World()
    world.to_the_end()
    told = {world.key_of(name).stage: world.request(name) for name in world.created}
    assert (told[Stage.PREFLIGHT].fingerprint, told[Stage.PREFLIGHT].converted) == (None, None)
    assert told[Stage.CONVERT].fingerprint == "f1"
    assert told[Stage.TRAIN].converted == "gs://cache/team-a/convert/f1/0b5e3a52-1/0/items"
    assert told[Stage.EXPORT].train_step == TOTAL_STEPS


def test_evaluate_is_skipped_where_nothing_is_asked_for() -> None:
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


def test_all_conditions_are_there_from_the_first_look() -> None:
    world = World()
    world.reconcile()
    assert [each["type"] for each in world.status["conditions"]] == list(ConditionType)
    assert {each["observedGeneration"] for each in world.status["conditions"]} == {1}


def test_transition_times_move_only_with_the_status() -> None:
    world = World()
    world.reconcile()
    first = world.condition("Reconciling")["lastTransitionTime"]
    world.wait(60)
    world.to_the_end()
    assert world.condition("Valid")["lastTransitionTime"] == first
    assert world.condition("Reconciling")["lastTransitionTime"] != first


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: states.at(Stage.TRAIN), ("True", "False", "Unknown", "False")),
        (states.born_suspended, ("True", "False", "Unknown", "False")),
        (states.no_profile, ("False", "True", "Unknown", "False")),
        (states.planned, ("False", "False", "Unknown", "True")),
        (states.succeeded, ("False", "False", "True", "True")),
        (states.failed, ("False", "True", "False", "True")),
    ],
)
def test_tools_read_the_state_off_four_conditions(make: Any, told: tuple[str, ...]) -> None:
    world = make()
    found = [world.condition(kind)["status"] for kind in ("Reconciling", "Stalled", "Succeeded", "Finished")]
    assert tuple(found) == told
    FineTuneJobStatus.model_validate(world.status, by_alias=True, by_name=False)


# --- preflight


def test_a_missing_input_is_looked_for_again_with_growing_patience_and_charged_to_nobody() -> None:
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
    # Those that looked in vain are cleared away, but for the newest.
    world.reconcile()
    assert sorted(world.jobsets) == ["support-bot-prep-7", "support-bot-prep-8"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_bad_data_ends_the_job_before_any_tpu() -> None:
    world = World()
    world.fail(world.until(Stage.PREFLIGHT), ExitCode.BAD_DATA)
    world.reconcile()
    assert world.created == ["support-bot-prep-1"]
    assert world.status["failure"]["suggestion"] == "Mend it."
    assert world.status["summary"].endswith("No TPU time was used.")
    assert world.condition("DataReady")["status"] == "False"
    assert {each["phase"] for each in world.status["stages"][1:]} == {"Skipped"}


def test_plan_only_ends_after_preflight() -> None:
    world = states.planned()
    assert world.created == ["support-bot-prep-1"]
    assert world.status["phase"] == "Planned"


# --- convert


def test_a_conversion_in_the_cache_is_used_and_says_what_it_saved() -> None:
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
def test_a_cache_that_is_not_to_be_used_is_not(setting: str) -> None:
    world = World(job=job(cache=setting))
    world.cache["f1"] = world.manifest(uid="another-job")
    name = world.until(Stage.TRAIN)
    assert "support-bot-conv-1" in world.created
    assert world.request(name).converted == "gs://cache/team-a/convert/f1/0b5e3a52-1/0/items"
    assert world.status["stages"][1]["cache"]["missBecause"] == [f"spec.cache is {setting}"]


def test_an_unproven_conversion_is_no_hit() -> None:
    world = World()
    world.cache["f1"] = world.manifest(uid="another-job", proven=False)
    world.until(Stage.CONVERT)


def test_a_conversion_that_died_after_its_manifest_is_done() -> None:
    world = World()
    name = world.until(Stage.CONVERT)
    world.cache["f1"] = world.manifest()
    world.kill(name)
    world.reconcile()
    assert world.created[-1] == "support-bot-train-1"
    assert world.status["stages"][1]["cache"]["result"] == "Miss"


# --- suspend


def test_suspending_stops_the_stage_and_charges_nobody() -> None:
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


def test_a_job_that_is_born_suspended_starts_nothing() -> None:
    world = states.born_suspended()
    assert world.created == []
    assert world.status["phase"] == "Suspended"
    world.edit(suspend=False)
    world.to_the_end()


def test_a_suspended_attempt_that_dies_without_a_word_is_charged_to_nobody() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    world.lose(name)
    world.reconcile()
    world.edit(suspend=False)
    world.to_the_end()
    assert world.status["attempts"]["infrastructure"] == 0


# --- what stands in the way


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


@pytest.mark.parametrize(
    ("stage", "controller", "account", "group"),
    [
        (Stage.PREFLIGHT, "McJAX", "ft-cpu", "cpu"),
        (Stage.TRAIN, "McJAX", "ft-train", "slice"),
        (Stage.TRAIN, "Pathways", "ft-train", "pathways-head"),
    ],
)
def test_a_jobset_that_makes_no_pods_is_told_with_what_may_be_missing(
    stage: Stage, controller: str, account: str, group: str
) -> None:
    world = World(job=job(resources={"tpu": "v6e-4", "controller": controller}))
    name = world.until(stage)
    world.pods.clear()
    world.reconcile()
    assert "makes no pods" not in world.status["summary"]
    world.wait(30)
    world.reconcile()
    assert world.status["waiting"]["reason"] == "WaitingForInput"
    for part in (name, f'ServiceAccount "{account}" in namespace "team-a"', f"describe job {name}-{group}-0"):
        assert part in world.status["summary"]
    world.run(name)
    world.reconcile()
    assert "waiting" not in world.status


def test_a_job_that_finds_no_node_says_what_the_scheduler_says() -> None:
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


def test_an_image_that_cannot_be_pulled_is_named() -> None:
    world = World()
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}
    _pending(world, {"containerStatuses": [{"name": "trainer", "image": "trainer:v9", "state": state}]})
    assert world.status["waiting"]["reason"] == "WaitingForImage"
    assert "trainer:v9" in world.status["waiting"]["message"]


def test_a_store_that_cannot_be_read_is_waited_for() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    before = world.status
    world.succeed(name)
    world.unreadable = "gs://artifacts/team-a: timed out after 10 s"
    decision = world.reconcile()
    assert decision.jobset is None
    assert decision.records == ()
    assert "gs://artifacts" in world.status["waiting"]["message"]
    assert world.status["stages"] == before["stages"]
    assert world.condition("Reconciling")["reason"] == "StoreUnavailable"
    world.unreadable = None
    world.to_the_end()
    assert "waiting" not in world.status


def test_a_missing_profile_is_named_and_its_arrival_noticed() -> None:
    world = World(job=job(profileRef={"name": "late"}))
    world.reconcile()
    assert world.condition("Valid")["reason"] == "ProfileNotFound"
    assert "late" in world.condition("Valid")["message"]
    assert world.requeue_after is not None
    world.profiles.append(profile("late", default=False))
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_profile_deleted_after_admission_is_not_missed() -> None:
    world = World()
    world.until(Stage.CONVERT)
    world.profiles.clear()
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_an_edit_that_is_refused_starts_nothing_new_and_stops_nothing() -> None:
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
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"], "what runs goes on"
    world.stop(name)
    world.reconcile()
    assert name not in world.jobsets, "JobSet was about to start the old slice again"
    world.reconcile()
    request = world.request("support-bot-train-2")
    assert request.mesh.hosts == 2
    assert request.hyperparameters.global_batch_size == 8
    assert world.status["attempts"]["preemption"] == 1


def test_the_controller_of_an_admitted_job_cannot_be_edited() -> None:
    """Converted model and checkpoints are laid out for it."""
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


def test_the_status_names_the_image_for_cpu_of_the_profile() -> None:
    images = {"trainer": "registry.example/t:1", "cpu": "registry.example/t:1-cpu"}
    world = World(profiles=[profile(images=images)])
    world.until(Stage.CONVERT)
    assert world.status["resolved"]["images"] == images
    world.to_the_end()


def test_the_sequence_length_of_the_status_is_what_the_models_limit_left_of_it() -> None:
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
        "the stage that could not be started, as failure.stage says"
    )


# --- the end


def test_a_finished_job_stays_finished_whatever_becomes_of_its_children() -> None:
    for make in (states.succeeded, states.failed, states.planned):
        world = make()
        before = world.status
        world.jobsets.clear()
        world.pods.clear()
        world.attempts.clear()
        decision = world.reconcile()
        assert decision.jobset is None
        assert decision.requeue_after is None
        assert world.status == before


def test_a_finished_job_acknowledges_an_edit() -> None:
    world = states.succeeded()
    world.edit(suspend=True)
    world.reconcile()
    assert world.status["observedGeneration"] == 2
    assert {each["observedGeneration"] for each in world.status["conditions"]} == {2}
    assert world.status["phase"] == "Succeeded"


def test_the_end_is_found_again_without_status_and_children() -> None:
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
    assert (decision.jobset, decision.deletions, decision.status) == (None, (), world.status)


# --- telling


def test_progress_is_told_at_most_every_ten_seconds_while_only_steps_move() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 10)
    world.reconcile()
    assert world.requeue_after == 10
    assert "step 10 of 100, loss 1.9, 9-18s left" in world.status["summary"]
    for seconds, step, shown in ((4, 14, 10), (5, 19, 10), (1, 20, 20)):
        world.wait(seconds)
        world.train(name, step)
        world.reconcile()
        assert world.status["progress"]["step"] == shown


def test_many_live_jobs_report_less_often() -> None:
    world = World(live_jobs=1000)
    world.train(world.until(Stage.TRAIN), 10)
    world.reconcile()
    assert world.requeue_after == 50


@pytest.mark.parametrize("unreadable", [None, "the store is away"])
def test_any_number_of_other_jobs_leaves_a_look_in_each_minute(unreadable: str | None) -> None:
    world = World(live_jobs=1_000_000)
    world.train(world.until(Stage.TRAIN), 10)
    world.unreadable = unreadable
    world.reconcile()
    assert world.requeue_after == 60


def test_any_number_of_other_jobs_leaves_a_job_without_a_profile_a_look_in_each_minute() -> None:
    world = World(live_jobs=1_000_000, profiles=())
    world.reconcile()
    assert world.requeue_after == 60


@pytest.mark.parametrize("stage", list(Stage))
def test_only_training_is_looked_at_where_no_watch_tells(stage: Stage) -> None:
    world = World()
    name = world.until(stage)
    world.run(name)
    world.reconcile()
    assert world.requeue_after == (10 if stage is Stage.TRAIN else 30)


def test_a_jobset_without_pods_is_looked_at_when_that_becomes_strange() -> None:
    world = World()
    world.reconcile()
    world.reconcile()
    assert len(world.live()) == 1
    assert world.requeue_after == 20


def test_one_event_tells_each_transition() -> None:
    world = World()
    world.to_the_end()
    world.reconcile()
    assert [notice.reason for notice in world.events] == ["Checked", "Proven", "Succeeded"]


def test_a_bad_end_is_told_once() -> None:
    world = World()
    world.stop(world.until(Stage.TRAIN))
    for _ in range(3):
        world.reconcile()
    assert [notice.reason for notice in world.events].count("Preempted") == 1


def test_the_history_tells_the_node_of_the_host_that_failed_and_keeps_it() -> None:
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
