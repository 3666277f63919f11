"""Plans that are lost, forged, or cannot be used."""

import copy
import json
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.planning.defaulted import DefaultedProfileSpec, profile_spec
from finetune_operator.planning.stored_plan import (
    _sha256,
    read_stored_plan,
)
from tests.unit.lifecycle.world import UID, World, job, profile


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


def test_a_plans_text_and_with_it_its_digest_stays_the_same() -> None:
    """A lost plan is made again by a later release only if it has the same digest."""
    world = World(
        job=job(hyperparameters={"learningRate": 2e-5, "steps": 3}, evaluation={"prompts": ["Grüße"]})
    )
    world.reconcile()
    assert world.config_map is not None
    text = world.config_map["data"]["spec.json"]
    assert '"learningRate": 2e-05' in text
    assert '"Gr\\u00fc\\u00dfe"' in text
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True)


def test_control_fields_do_not_prevent_recreating_a_lost_plan() -> None:
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
    stored = read_stored_plan(world.config_map)
    data = {name: value for name, value in stored.data.items() if name != "contract"}
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


def test_only_preflights_request_says_whether_the_length_is_explicit() -> None:
    world = World(job=job(datasets={"train": [{"uri": "gs://data/chat.jsonl"}], "maxSeqLength": 2048}))
    world.to_the_end()
    requested = [
        name for name in world.created if "max_seq_length_explicit" in request_of(world.jobsets[name])["data"]
    ]
    assert requested == ["support-bot-prep-1"]


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

        def refuse(name: str, spec: dict[str, Any]) -> DefaultedProfileSpec:
            return profile_spec(name, spec | {"namespaces": [""]})

        monkeypatch.setattr("finetune_operator.planning.stored_plan.profile_spec", refuse)
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
