"""Plans that are lost, forged, or of an earlier release."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from finetune_contract import ConvertOutcome, Stage, StageResult
from finetune_operator.lifecycle.observation import AttemptFiles
from finetune_operator.planning import admit
from finetune_operator.planning.merge import merge
from finetune_operator.planning.stored_plan import digest
from tests.unit.lifecycle.world import UID, World, job, profile


def first_format(world: World, **changed: Any) -> dict[str, Any]:
    """``<job>-plan`` as an earlier release kept it in the job's namespace; ``changed``: of its data."""
    snapshot = admit(world.job, world.profiles).snapshot
    data = {
        "format": "1",
        "profile-name": snapshot.profile_name,
        "profile-hash": snapshot.profile_hash,
        "profile.json": json.dumps(snapshot.profile),
        "spec.json": json.dumps({**snapshot.spec, "suspend": False}),
        "run-folder": snapshot.run_folder.uri,
        "cache": "gs://cache",
        **changed,
    }
    return {"metadata": {"name": "support-bot-plan", "namespace": "team-a"}, "data": data}


def of_an_earlier_release(until: Stage = Stage.TRAIN, **spec: Any) -> World:
    """A job at that stage that a release with plans in the job's namespace has admitted."""
    world = World(job=job(**spec))
    world.until(until)
    for jobset in world.jobsets.values():
        del jobset["metadata"]["annotations"]["tpu-finetune.dev/plan"]
    del world.status["resolved"]["plan"]
    world.config_map = None
    world.first_format = first_format(world)
    # One cache served all namespaces then.
    world.attempts = {key: in_one_cache(files) for key, files in world.attempts.items()}
    return world


def in_one_cache(files: AttemptFiles) -> AttemptFiles:
    if files.result is None or not isinstance(files.result.details, ConvertOutcome):
        return files
    text = files.result.to_json().replace("gs://cache/team-a/", "gs://cache/")
    return replace(files, result=StageResult.model_validate_json(text))


def lost(**spec: Any) -> World:
    """A job in training whose stored plan is gone."""
    world = World(job=job(**spec))
    world.until(Stage.TRAIN)
    world.config_map = None
    return world


def reconciled(world: World) -> World:
    for _ in range(3):
        world.reconcile()
    return world


# --- lost ----------------------------------------------------------------------------------------------------


def test_a_lost_plan_is_made_again_where_it_comes_to_the_same() -> None:
    world = lost()
    named = world.status["resolved"]["plan"]["digest"]
    reconciled(world)
    assert world.config_map is not None
    assert world.config_map["data"]["digest"] == named
    assert world.status["phase"] == "Running"
    assert world.created == ["support-bot-prep-1", "support-bot-conv-1", "support-bot-train-1"]


def test_steering_a_job_does_not_keep_its_plan_from_being_made_again() -> None:
    world = lost()
    world.edit(suspend=True, retry={"generation": 3})
    world.reconcile()
    assert world.config_map is not None


@pytest.mark.parametrize("change", ["profile", "job", "no profile"])
def test_a_lost_plan_is_never_replaced_by_another(change: str) -> None:
    world = lost()
    if change == "profile":
        world.profiles = [profile(images={"trainer": "registry.example/other@sha256:" + "1" * 64})]
    elif change == "job":
        world.edit(resources={"tpu": "v6e-8"})
    else:
        world.profiles = []
    created = list(world.created)
    reconciled(world)
    assert world.config_map is None
    assert world.created == created
    stalled = world.condition("Stalled")
    reasons = ("PlanMissing",) if change != "no profile" else ("NoDefaultProfile",)
    assert (stalled["status"], stalled["reason"]) in {("True", reason) for reason in reasons}
    # What was known stays, and what runs is not deleted.
    assert world.status["resolved"]["plan"]["digest"]
    assert world.live() == ["support-bot-train-1"]


def test_a_job_without_its_plan_is_still_stopped_where_the_user_asks() -> None:
    world = lost()
    world.profiles = []
    world.edit(suspend=True)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]


def test_a_plan_that_was_tampered_with_is_not_believed() -> None:
    world = World()
    world.until(Stage.TRAIN)
    assert world.config_map is not None
    data = world.config_map["data"]
    data["profile.json"] = data["profile.json"].replace("finetune-trainer", "miner")
    created = list(world.created)
    reconciled(world)
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.created == created


def test_the_plan_of_another_job_is_not_believed() -> None:
    world = World()
    world.reconcile()
    other = World(job=copy.deepcopy(job()))
    other.job["metadata"]["uid"] = "another"
    other.reconcile()
    world.config_map = other.config_map
    reconciled(world)
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.created == []


def test_a_job_created_again_under_its_name_gets_a_plan_of_its_own() -> None:
    first, second = World(), World(job=job())
    second.job["metadata"]["uid"] = "9" + UID[1:]
    for world in (first, second):
        world.reconcile()
        assert world.config_map is not None
    assert first.config_map["metadata"]["name"] != second.config_map["metadata"]["name"]  # type: ignore[index]


#: What the trainer of a release before the contract's minor versions reads; it refuses every key beyond these.
BEFORE_1_0 = Path(__file__).parents[1] / "contract" / "before-1.0" / "StageRequest.json"


def request_of(jobset: dict[str, Any]) -> dict[str, Any]:
    """The stage request that a JobSet's container is given."""
    (container,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    (text,) = [each["value"] for each in container["env"] if each["name"] == "FINETUNE_REQUEST"]
    found: dict[str, Any] = json.loads(text.replace("$$", "$"))
    return found


# --- of an earlier release -----------------------------------------------------------------------------------


def test_a_running_job_of_an_earlier_release_keeps_running_under_its_plan() -> None:
    world = of_an_earlier_release()
    reconciled(world)
    assert world.config_map is not None
    assert world.status["phase"] == "Running"
    assert world.live() == ["support-bot-train-1"]
    # One cache served all namespaces then, and its converted model lies there.
    assert world.config_map["data"]["cache"] == "gs://cache"
    world.succeed("support-bot-train-1")
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize("until", [Stage.PREFLIGHT, Stage.TRAIN])
def test_every_request_of_a_job_of_an_earlier_release_is_one_that_its_trainer_understands(
    until: Stage,
) -> None:
    world = of_an_earlier_release(
        until,
        datasets={
            "train": [{"uri": "gs://data/chat.jsonl"}],
            "validation": [{"uri": "gs://data/held-back.jsonl"}],
            "maxSeqLength": 2048,
        },
        method={"type": "SFT", "lora": {"rank": 8}},
        engineOverrides={"remat_policy": "full"},
        export={"destinations": [{"uri": "gs://artifacts/team-a/exports/bot"}]},
    )
    reconciled(world)
    before = len(world.created)
    # The stage that ran at the upgrade is interrupted, so that its next attempt is rendered anew.
    world.edit(suspend=True)
    world.reconcile()
    world.stop(world.created[-1])
    world.edit(suspend=False)
    rendered: dict[str, dict[str, Any]] = {}
    for _ in range(60):
        world.reconcile()
        rendered |= {name: request_of(world.jobsets[name]) for name in world.live()}
        if world.status["phase"] == "Succeeded":
            break
        for name in world.live():
            world.succeed(name)
    assert world.status["phase"] == "Succeeded", world.status["summary"]
    schema = json.loads(BEFORE_1_0.read_text())
    assert set(world.created[before:]) <= set(rendered)
    for name in world.created[before:]:
        jsonschema.validate(rendered[name], schema)


def test_only_preflight_is_asked_about_the_length_of_sequences() -> None:
    world = World(job=job(datasets={"train": [{"uri": "gs://data/chat.jsonl"}], "maxSeqLength": 2048}))
    world.to_the_end()
    asked = [
        name for name in world.created if "max_seq_length_asked" in request_of(world.jobsets[name])["data"]
    ]
    assert asked == ["support-bot-prep-1"]


def test_what_an_earlier_release_has_left_is_taken_over_once() -> None:
    world = of_an_earlier_release()
    reconciled(world)
    world.config_map = None
    assert world.first_format is not None
    reconciled(world)
    # The status names the stored plan now, and the one in the job's namespace is not asked any more.
    assert world.condition("Stalled")["reason"] == "PlanMissing"


@pytest.mark.parametrize(
    "forged",
    [
        lambda made: {**made, "images": {"trainer": "docker.io/evil/miner:latest"}},
        lambda made: {**made, "pod": {"privileged": True, "hostNetwork": True}},
        lambda made: {**made, "storage": {**made["storage"], "artifacts": "gs://other-team"}},
        lambda made: {**made, "serviceAccounts": {"tpu": "cluster-admin-bot", "cpu": "cluster-admin-bot"}},
    ],
)
@pytest.mark.parametrize("hashed", [False, True])
def test_a_forged_plan_in_the_jobs_namespace_is_not_taken_over(forged: Any, hashed: bool) -> None:
    """``hashed``: with the hash of what was forged beside it, where the status names another."""
    world = of_an_earlier_release()
    made = forged(profile()["spec"])
    changed = {"profile.json": json.dumps(made)} | ({"profile-hash": digest(made)} if hashed else {})
    world.first_format = first_format(world, **changed)
    created = list(world.created)
    reconciled(world)
    assert world.config_map is None
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.created == created


def test_a_forged_spec_in_a_plan_of_an_earlier_release_obeys_the_profile() -> None:
    world = World(profiles=[profile(models={"allow": ["gs://models/*"]})])
    world.until(Stage.TRAIN)
    del world.status["resolved"]["plan"]
    world.config_map = None
    spec = json.loads(first_format(world)["data"]["spec.json"])
    world.first_format = first_format(
        world, **{"spec.json": json.dumps(merge(spec, {"model": {"uri": "gs://elsewhere/model"}}))}
    )
    created = list(world.created)
    reconciled(world)
    world.succeed("support-bot-train-1")
    reconciled(world)
    assert world.condition("Valid")["reason"] == "PolicyViolation"
    assert world.created == created


@pytest.mark.parametrize(
    "forged",
    [
        {"datasets": {"train": "x"}},
        {"datasets": {"train": [{"uri": ["gs://data/chat.jsonl"]}]}},
        {"datasets": {"train": [{"uri": "gs://artifacts/team-a/../team-b/rows.jsonl"}]}},
        {"model": {"orbax": {"uri": "gs://elsewhere/0/items"}}},
        {"model": {"fromJob": {"name": "x", "uid": "y", "base": "Qwen/Qwen3-0.6B"}}},
        {"resumeFrom": {"runFolder": "gs://artifacts/team-b/other-12345678"}},
        {"resumeFrom": {"runFolder": ["gs://artifacts/team-b/other-12345678"]}},
        {"resources": "x"},
        {"engineOverrides": {"base_output_directory": 1}},
    ],
)
def test_a_spec_that_cannot_have_been_admitted_is_not_taken_over(forged: dict[str, Any]) -> None:
    world = of_an_earlier_release()
    spec = json.loads(first_format(world)["data"]["spec.json"])
    world.first_format = first_format(world, **{"spec.json": json.dumps(merge(spec, forged))})
    created = list(world.created)
    reconciled(world)
    assert world.config_map is None
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.created == created


def test_a_forged_number_of_steps_obeys_the_profile() -> None:
    limits = {"limits": [{"path": "hyperparameters.steps", "max": 100}]}
    world = World(profiles=[profile(constraints=limits)])
    world.until(Stage.TRAIN)
    del world.status["resolved"]["plan"]
    world.config_map = None
    spec = merge(json.loads(first_format(world)["data"]["spec.json"]), {"hyperparameters": {"steps": 10**6}})
    world.first_format = first_format(world, **{"spec.json": json.dumps(spec)})
    created = list(world.created)
    reconciled(world)
    world.succeed("support-bot-train-1")
    reconciled(world)
    assert world.condition("Valid")["reason"] == "PolicyViolation"
    assert world.created == created


def of_an_earlier_release_that_is_refused_now(**spec: Any) -> World:
    """A job in training that exports to a folder of its bucket that belongs to no namespace, which was allowed."""
    world = of_an_earlier_release(**spec)
    export = {"destinations": [{"uri": "gs://artifacts/exports/bot"}]}
    world.job["spec"]["export"] = export
    made = merge(json.loads(world.first_format["data"]["spec.json"]), {"export": export})  # type: ignore[index]
    world.first_format["data"]["spec.json"] = json.dumps(made)  # type: ignore[index]
    return world


@pytest.mark.parametrize("limit", [{"activeDeadlineSeconds": 600}, {"budget": {"maxChipHours": 1}}])
def test_a_job_of_an_earlier_release_that_is_refused_now_stays_within_its_limits(
    limit: dict[str, Any],
) -> None:
    world = of_an_earlier_release_that_is_refused_now(**limit)
    reconciled(world)
    assert world.config_map is not None
    assert world.condition("Valid")["reason"] == "PolicyViolation"
    assert world.live() == ["support-bot-train-1"]
    world.wait(3601)
    reconciled(world)
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]


def test_an_edit_heals_a_job_of_an_earlier_release_that_is_refused_now() -> None:
    world = of_an_earlier_release_that_is_refused_now()
    reconciled(world)
    world.succeed("support-bot-train-1")
    created = list(world.created)
    reconciled(world)
    assert world.created == created
    world.edit(export={"destinations": [{"uri": "gs://artifacts/team-a/exports/bot"}]})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_without_a_job_of_an_earlier_release_a_plan_in_its_namespace_decides_nothing() -> None:
    world = World()
    evil = {**profile()["spec"], "images": {"trainer": "docker.io/evil/miner:latest"}}
    world.first_format = first_format(
        world, **{"profile.json": json.dumps(evil), "profile-hash": digest(evil)}
    )
    world.until(Stage.TRAIN)
    template = world.jobsets["support-bot-prep-1"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = template["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example/finetune-trainer@")


def test_a_jobset_made_under_another_plan_is_replaced() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.jobsets[name]["metadata"]["annotations"]["tpu-finetune.dev/plan"] = "0" * 64
    world.reconcile()
    world.stop(name)
    world.to_the_end()
    assert world.created[-3:-1] == ["support-bot-train-2", "support-bot-eval-1"]
    history = world.status["attempts"]["history"]
    assert [each["reason"] for each in history if each["stage"] == "Train"] == ["Replaced", "Succeeded"]
    assert world.status["attempts"]["user"] == world.status["attempts"]["infrastructure"] == 0


@pytest.mark.parametrize("limit", [{"activeDeadlineSeconds": 600}, {"budget": {"maxChipHours": 1}}])
def test_a_job_without_its_plan_stays_within_its_limits(limit: dict[str, Any]) -> None:
    world = lost(**limit)
    world.edit(checkpointing={"everySteps": 50})
    reconciled(world)
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.live() == ["support-bot-train-1"]
    world.wait(3601)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]
    (pending,) = world.status["pending"]
    assert pending["reason"] in ("DeadlineExceeded", "BudgetExhausted")
    reconciled(world)
    assert world.condition("Stalled")["reason"] == "PlanMissing"


@pytest.mark.parametrize("change", ["invalid spec", "no profile", "strict profile", "plan of another format"])
@pytest.mark.parametrize(
    "limit",
    [{"activeDeadlineSeconds": 600}, {"budget": {"maxChipHours": 1}}, {"budget": {"maxCost": 1}}],
)
def test_a_job_whose_plan_cannot_be_used_stays_within_its_limits(change: str, limit: dict[str, Any]) -> None:
    priced = copy.deepcopy(profile())
    priced["spec"]["flavors"][0]["chipHourPrice"] = 1.5
    priced["spec"]["currency"] = "USD"
    world = World(job=job(**limit), profiles=[priced])
    world.until(Stage.TRAIN)
    world.wait(60)
    world.reconcile()
    assert world.config_map is not None
    if change == "plan of another format":
        world.config_map["data"]["format"] = "99"
    else:
        world.config_map = None
        world.edit(checkpointing={"everySteps": 50})
    if change == "invalid spec":
        world.edit(engineOverrides={"nonsense": "1"})
    elif change == "no profile":
        world.profiles = []
    elif change == "strict profile":
        del world.profiles[0]["spec"]["constraints"]
    reconciled(world)
    assert world.live() == ["support-bot-train-1"]
    world.wait(3601)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]
    (pending,) = world.status["pending"]
    assert pending["reason"] in ("DeadlineExceeded", "BudgetExhausted")


def test_a_job_without_its_plan_stays_within_the_chip_hours_of_its_profile() -> None:
    world = lost()
    world.profiles = [profile(constraints={"maxChipHours": 1})]
    world.edit(engineOverrides={"nonsense": "1"}, budget={"onExhausted": "Fail"})
    reconciled(world)
    assert world.live() == ["support-bot-train-1"]
    world.wait(3601)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]


@pytest.mark.parametrize("spec", [{}, {"budget": {"maxChipHours": 3}}])
def test_a_job_without_its_plan_and_profile_stays_within_what_its_status_says_is_left(spec: Any) -> None:
    """The profile allowed one chip hour, of the slice's four chips."""
    world = World(job=job(**spec), profiles=[profile(constraints={"maxChipHours": 1})])
    world.until(Stage.TRAIN)
    world.reconcile()
    world.config_map, world.profiles = None, []
    reconciled(world)
    assert world.live() == ["support-bot-train-1"]
    world.wait(901)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]


def test_the_status_shows_what_the_plan_says() -> None:
    world = World(job=job(method={"type": "SFT", "lora": {"rank": 8}}))
    world.reconcile()
    world.reconcile()
    resolved = world.status["resolved"]
    assert resolved["method"] == {"type": "SFT", "loraRank": 8, "loraAlpha": "16"}
    numbers = resolved["hyperparameters"]
    assert (numbers["learningRate"], numbers["optimizer"], numbers["warmupRatio"]) == (
        "0.0002",
        "AdamW",
        "0.03",
    )
    assert resolved["serviceAccounts"] == {"tpu": "ft-train", "cpu": "ft-cpu"}
    assert resolved["cache"] == "gs://cache/team-a"
    assert world.config_map is not None
    assert resolved["plan"]["digest"] == world.config_map["data"]["digest"]
