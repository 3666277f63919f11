"""Plans that are lost, forged, or of an earlier release."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import ConvertOutcome, Stage, StageResult
from finetune_operator.lifecycle.kept_plans import kept_plans
from finetune_operator.lifecycle.observation import AttemptFiles
from finetune_operator.planning import admit
from finetune_operator.planning.defaulted import DefaultedProfileSpec, profile_spec
from finetune_operator.planning.merge import merge
from finetune_operator.planning.stored_plan import (
    _sha256,
    digest,
    read_stored_plan,
    render_stored_plan,
)
from tests.unit.lifecycle.world import UID, World, job, profile


def first_format(world: World, **changed: Any) -> dict[str, Any]:
    """``<job>-plan`` as an earlier release stored it in the job's namespace; ``changed`` replaces data."""
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


def of_an_earlier_release(**spec: Any) -> World:
    """A job in training, admitted by a release that stored plans in the job's namespace."""
    world = World(job=job(**spec))
    world.until(Stage.TRAIN)
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
    """A job in training whose stored plan is lost."""
    world = World(job=job(**spec))
    world.until(Stage.TRAIN)
    world.config_map = None
    return world


def reconciled(world: World) -> World:
    for _ in range(3):
        world.reconcile()
    return world


# --- lost ----------------------------------------------------------------------------------------------------


def test_a_lost_plan_is_recreated_if_the_result_is_the_same() -> None:
    world = lost()
    named = world.status["resolved"]["plan"]["digest"]
    reconciled(world)
    assert world.config_map is not None
    assert world.config_map["data"]["digest"] == named
    assert world.status["phase"] == "Running"
    assert world.created == ["support-bot-prep-1", "support-bot-conv-1", "support-bot-train-1"]


def test_control_fields_do_not_prevent_recreating_a_lost_plan() -> None:
    world = lost()
    world.edit(suspend=True, retry={"generation": 3})
    world.reconcile()
    assert world.config_map is not None


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_plan_without_defaults_of_the_hosts_resources_keeps_the_pods_that_it_had(is_lost: bool) -> None:
    world = World(job=job())
    world.reconcile()
    assert world.config_map is not None
    snapshot = replace(read_stored_plan(world.config_map), host_defaults=False)
    assert "host-resources" not in snapshot.stored
    world = World(job=world.job, config_map=render_stored_plan(snapshot))
    world.reconcile()
    if is_lost:
        world.config_map = None
    world.until(Stage.TRAIN)
    assert world.config_map == {**render_stored_plan(snapshot), "metadata": world.config_map["metadata"]}
    (train,) = (each for name, each in world.jobsets.items() if name == "support-bot-train-1")
    pod = train["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"] == {"google.com/tpu": "4"}


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
    # Known values stay, and running stages are not deleted.
    assert world.status["resolved"]["plan"]["digest"]
    assert world.live() == ["support-bot-train-1"]


def test_another_profile_for_the_namespace_changes_no_admitted_job() -> None:
    world = World(job=job(), profiles=[profile("only", default=False)])
    world.until(Stage.TRAIN)
    before = world.status["resolved"]
    world.profiles = [*world.profiles, profile("newer")]
    world.succeed(world.live()[0])
    world.until(Stage.EVALUATE)
    assert world.status["resolved"] == before
    world.config_map = None
    reconciled(world)
    assert world.config_map is not None
    assert world.config_map["data"]["profile-name"] == "only"
    assert world.condition("Valid")["status"] == "True"


def test_a_job_that_waits_for_a_profile_follows_the_profiles_that_there_are() -> None:
    several = [profile("one", default=False), profile("two", default=False)]
    world = World(job=job(), profiles=several)
    world.reconcile()
    assert world.condition("Valid")["reason"] == "NoDefaultProfile"
    world.profiles = several[1:]
    reconciled(world)
    assert world.status["resolved"]["profile"]["name"] == "two"


def test_a_job_without_its_plan_can_be_suspended() -> None:
    world = lost()
    world.profiles = []
    world.edit(suspend=True)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]


def test_a_plan_that_was_tampered_with_is_refused() -> None:
    world = World()
    world.until(Stage.TRAIN)
    assert world.config_map is not None
    data = world.config_map["data"]
    data["profile.json"] = data["profile.json"].replace("finetune-trainer", "miner")
    created = list(world.created)
    reconciled(world)
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.created == created


def test_a_plan_without_a_contract_version_is_refused() -> None:
    world = World()
    world.reconcile()
    assert world.config_map is not None
    snapshot = read_stored_plan(world.config_map)
    data = {name: value for name, value in snapshot.stored.items() if name != "contract"}
    world.config_map["data"] = {**data, "digest": _sha256(data)}
    reconciled(world)
    stalled = world.condition("Stalled")
    assert stalled["reason"] == "PlanMissing"
    assert "KeyError('contract')" in stalled["message"]
    assert world.created == []


def test_the_plan_of_another_job_is_refused() -> None:
    world = World()
    world.reconcile()
    other = World(job=copy.deepcopy(job()))
    other.job["metadata"]["uid"] = "another"
    other.reconcile()
    world.config_map = other.config_map
    reconciled(world)
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.created == []


def test_a_job_recreated_under_the_same_name_gets_its_own_plan() -> None:
    first, second = World(), World(job=job())
    second.job["metadata"]["uid"] = "9" + UID[1:]
    for world in (first, second):
        world.reconcile()
        assert world.config_map is not None
    assert first.config_map["metadata"]["name"] != second.config_map["metadata"]["name"]  # type: ignore[index]


def request_of(jobset: dict[str, Any]) -> dict[str, Any]:
    """Returns the stage request of a JobSet's container."""
    (container,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    (text,) = [each["value"] for each in container["env"] if each["name"] == "FINETUNE_REQUEST"]
    found: dict[str, Any] = json.loads(text.replace("$$", "$"))
    return found


# --- of an earlier release -----------------------------------------------------------------------------------


def test_a_running_job_of_an_earlier_release_keeps_its_plan() -> None:
    world = of_an_earlier_release()
    reconciled(world)
    assert world.config_map is not None
    assert world.status["phase"] == "Running"
    assert world.live() == ["support-bot-train-1"]
    # One cache served all namespaces then and contains the converted model.
    assert world.config_map["data"]["cache"] == "gs://cache"
    world.succeed("support-bot-train-1")
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_only_preflights_request_says_whether_the_length_is_explicit() -> None:
    world = World(job=job(datasets={"train": [{"uri": "gs://data/chat.jsonl"}], "maxSeqLength": 2048}))
    world.to_the_end()
    requested = [
        name for name in world.created if "max_seq_length_explicit" in request_of(world.jobsets[name])["data"]
    ]
    assert requested == ["support-bot-prep-1"]


def test_objects_of_an_earlier_release_are_migrated_once() -> None:
    world = of_an_earlier_release()
    reconciled(world)
    world.config_map = None
    assert world.first_format is not None
    reconciled(world)
    # The status now names the stored plan, and the one in the job's namespace is no longer read.
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
def test_a_forged_plan_in_the_jobs_namespace_is_not_migrated(forged: Any, hashed: bool) -> None:
    """``hashed``: with the hash of the forgery, while the status names another."""
    world = of_an_earlier_release()
    made = forged(profile()["spec"])
    changed = {"profile.json": json.dumps(made)} | ({"profile-hash": digest(made)} if hashed else {})
    world.first_format = first_format(world, **changed)
    created = list(world.created)
    reconciled(world)
    assert world.config_map is None
    assert world.condition("Stalled")["reason"] == "PlanMissing"
    assert world.created == created


def test_a_forged_spec_in_an_earlier_plan_obeys_the_profile() -> None:
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
def test_a_spec_that_was_never_admissible_is_not_migrated(forged: dict[str, Any]) -> None:
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
    """A job in training that exports to a folder of no namespace in its bucket, which was allowed."""
    world = of_an_earlier_release(**spec)
    export = {"destinations": [{"uri": "gs://artifacts/exports/bot"}]}
    world.job["spec"]["export"] = export
    made = merge(json.loads(world.first_format["data"]["spec.json"]), {"export": export})  # type: ignore[index]
    world.first_format["data"]["spec.json"] = json.dumps(made)  # type: ignore[index]
    return world


@pytest.mark.parametrize("limit", [{"activeDeadlineSeconds": 600}, {"budget": {"maxChipHours": 1}}])
def test_an_earlier_job_that_is_refused_now_stays_within_its_limits(
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


def test_an_edit_makes_an_earlier_job_that_is_refused_now_admissible() -> None:
    world = of_an_earlier_release_that_is_refused_now()
    reconciled(world)
    world.succeed("support-bot-train-1")
    created = list(world.created)
    reconciled(world)
    assert world.created == created
    world.edit(export={"destinations": [{"uri": "gs://artifacts/team-a/exports/bot"}]})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_plan_in_the_namespace_of_a_new_job_is_ignored() -> None:
    world = World()
    evil = {**profile()["spec"], "images": {"trainer": "docker.io/evil/miner:latest"}}
    world.first_format = first_format(
        world, **{"profile.json": json.dumps(evil), "profile-hash": digest(evil)}
    )
    world.until(Stage.TRAIN)
    template = world.jobsets["support-bot-prep-1"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = template["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example/finetune-trainer@")


def test_a_jobset_of_another_plan_is_replaced() -> None:
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


@pytest.mark.parametrize(
    "change", ["invalid spec", "no profile", "strict profile", "plan of another format", "narrower schema"]
)
@pytest.mark.parametrize(
    "limit",
    [{"activeDeadlineSeconds": 600}, {"budget": {"maxChipHours": 1}}, {"budget": {"maxCost": 1}}],
)
def test_a_job_whose_plan_cannot_be_used_stays_within_its_limits(
    change: str, limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    elif change == "narrower schema":

        def refuse(name: str, text: str) -> DefaultedProfileSpec:
            return profile_spec(name, json.loads(text) | {"namespaces": [""]})

        monkeypatch.setattr("finetune_operator.planning.stored_plan.stored_profile_spec", refuse)
        # Another release is another process.
        kept_plans.clear()
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
    if change == "narrower schema":
        assert world.condition("Stalled")["reason"] == "ProfileInvalid"
    assert world.live() == ["support-bot-train-1"]
    world.wait(3601)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]
    (pending,) = world.status["pending"]
    assert pending["reason"] in ("DeadlineExceeded", "BudgetExhausted")


def test_a_job_without_its_plan_obeys_the_chip_hours_of_its_profile() -> None:
    world = lost()
    world.profiles = [profile(constraints={"maxChipHours": 1})]
    world.edit(engineOverrides={"nonsense": "1"}, budget={"onExhausted": "Fail"})
    reconciled(world)
    assert world.live() == ["support-bot-train-1"]
    world.wait(3601)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]


@pytest.mark.parametrize("spec", [{}, {"budget": {"maxChipHours": 3}}])
def test_a_job_without_plan_and_profile_obeys_the_limits_in_its_status(spec: Any) -> None:
    """The profile allowed one chip hour; the slice has four chips."""
    world = World(job=job(**spec), profiles=[profile(constraints={"maxChipHours": 1})])
    world.until(Stage.TRAIN)
    world.reconcile()
    world.config_map, world.profiles = None, []
    reconciled(world)
    assert world.live() == ["support-bot-train-1"]
    world.wait(901)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets["support-bot-train-1"]["metadata"]


def test_the_status_shows_the_plan() -> None:
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


def test_large_jobs_are_not_kept_for_the_next_decision() -> None:
    """Tenants decide how large their jobs are, and thousands of plans are kept."""
    kept_plans.clear()
    world = World(
        job=job(evaluation={"prompts": [f"{number:04}" + "\u4e2d" * 2_000 for number in range(16)]})
    )
    world.until(Stage.TRAIN)
    assert len(kept_plans) == 0


def test_only_the_plans_of_a_jobs_last_decision_are_kept() -> None:
    kept_plans.clear()
    world = World(job=job())
    world.until(Stage.TRAIN)
    before = len(kept_plans)
    for steps in (40, 50, 60):
        world.edit(checkpointing={"everySteps": steps})
        world.reconcile()
    assert len(kept_plans) == before <= 2


def test_the_plans_of_an_ended_job_are_dropped() -> None:
    kept_plans.clear()
    world = World(job=job())
    world.to_the_end()
    kept_plans.forget(world.job["metadata"]["uid"])
    world.reconcile()
    assert len(kept_plans) == 0
