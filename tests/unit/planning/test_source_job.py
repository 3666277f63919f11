"""A job that starts from the model of another one: what it takes over, what it waits for, what it refuses."""

from typing import Any

import pytest

from finetune_operator.api import FineTuneJobStatus, Reason
from finetune_operator.planning import Refused, admit, read_stored_plan, render_stored_plan, replan
from tests.unit.lifecycle import states
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job, profile

MODEL = "gs://artifacts/team-a/support-bot-0b5e3a52/export/model"


def second(**asked: Any) -> Any:
    wanted = job(model={"fromJob": {"name": "support-bot", **asked}})
    wanted["metadata"] |= {"name": "second", "uid": "9d0c1111-0000-4000-8000-000000000000"}
    return wanted


def first(**status: Any) -> Any:
    """A job that has succeeded, and ``status`` over what it says."""
    done = states.succeeded().job
    return {**done, "status": {**done["status"], **status}}


def refusal(source: Any, *profiles: Any, **asked: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(second(**asked), profiles or [profile()], source=source)
    return caught.value


def test_the_exported_model_is_started_from_and_kept_whatever_becomes_of_the_job() -> None:
    wanted = second()
    admission = admit(wanted, [profile()], source=first())
    assert admission.plan.model.uri == MODEL
    kept = read_stored_plan(render_stored_plan(admission.snapshot))
    again = replan(wanted, kept)
    assert again.model.uri == MODEL
    assert again.lineage == {
        "name": "support-bot",
        "uid": first()["metadata"]["uid"],
        "base": "gs://models/tiny",
        "step": TOTAL_STEPS,
        "digest": "sha256:3",
    }


def test_a_chain_of_jobs_remembers_the_model_that_it_began_with() -> None:
    resolved = {
        "model": {"source": MODEL, "fromJob": {"name": "zeroth", "uid": "1", "base": "Qwen/Qwen3-0.6B"}},
        "runFolder": MODEL.removesuffix("/export/model"),
    }
    plan = admit(second(), [profile(models={"allow": ["Qwen/*"]})], source=first(resolved=resolved)).plan
    assert plan.lineage is not None
    assert plan.lineage["base"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("asked", "checkpoints"),
    [
        ({"checkpoint": "Last"}, [{"step": 50}, {"step": TOTAL_STEPS, "tags": ["Last"]}]),
        ({"checkpoint": "Best"}, [{"step": 50, "tags": ["Last"]}, {"step": TOTAL_STEPS, "tags": ["Best"]}]),
        ({"checkpoint": "Step", "step": TOTAL_STEPS}, []),
    ],
)
def test_a_checkpoint_may_be_named_where_it_is_the_exported_one(asked: Any, checkpoints: Any) -> None:
    assert admit(second(**asked), [profile()], source=first(checkpoints=checkpoints)).plan.model.uri == MODEL


ADAPTER = {"name": "adapter", "type": "Adapter", "uri": "gs://a/adapter", "digest": "d", "sizeBytes": 1}
ON_HUB = {"name": "model", "type": "HuggingFace", "uri": "hf://acme/bot@1", "digest": "d", "sizeBytes": 1}

REFUSED: list[tuple[Any, dict[str, Any], Reason, str]] = [
    (None, {}, Reason.SOURCE_JOB_NOT_FOUND, 'no FineTuneJob "support-bot"'),
    ({**first(), "status": {}}, {}, Reason.SOURCE_JOB_RUNNING, "has not ended yet (Pending)"),
    (states.failed().job, {}, Reason.SOURCE_JOB_UNUSABLE, "ended as Failed"),
    (states.planned().job, {}, Reason.SOURCE_JOB_UNUSABLE, "ended as Planned"),
    (first(artifacts=[ADAPTER, ON_HUB]), {}, Reason.SOURCE_JOB_UNUSABLE, "spec.export.content"),
    (first(), {"checkpoint": "Best"}, Reason.SOURCE_JOB_UNUSABLE, "its best one, of which it knows nothing"),
    (
        first(),
        {"checkpoint": "Step", "step": 5},
        Reason.SOURCE_JOB_UNUSABLE,
        "of step 100, and asked for is that of",
    ),
    (
        first(checkpoints=[{"step": 7, "tags": ["Best"]}]),
        {"checkpoint": "Best"},
        Reason.SOURCE_JOB_UNUSABLE,
        "Set spec.export.checkpoint of that job to Best",
    ),
]


@pytest.mark.parametrize(("source", "asked", "reason", "told"), REFUSED, ids=[each[3] for each in REFUSED])
def test_what_is_no_model_to_start_from_is_refused_with_what_to_do(
    source: Any, asked: Any, reason: Reason, told: str
) -> None:
    refused = refusal(source, **asked)
    assert refused.reason == reason
    assert refused.message.startswith("spec.model.fromJob: ")
    assert told in refused.message


def exported(uri: str) -> dict[str, Any]:
    return {"name": "model", "type": "HuggingFace", "uri": uri, "digest": "d", "sizeBytes": 1}


@pytest.mark.parametrize(
    "uri",
    [
        "gs://artifacts/team-b/run-12345678/export/model",
        "gs://artifacts/team-a/another-12345678/export/model",
        "gs://artifacts/team-a/../team-b/run-12345678/export/model",
        "gs://artifacts/team-a/%2e%2e/team-b/run-12345678/export/model",
        "gs://artifacts/team-a/support-bot-0b5e3a52/export/model#/../y\n",
        "gs://models/../other-bucket/x",
    ],
)
def test_a_record_of_the_other_job_sends_nobody_elsewhere(uri: str) -> None:
    """It lies where that job's own account may write."""
    strict = profile(constraints={"mode": "Strict", "uris": {"read": ["gs://*"]}}, namespaces=["team-a"])
    refused = refusal(first(artifacts=[exported(uri)]), strict)
    assert refused.reason == Reason.SOURCE_JOB_UNUSABLE
    assert f"and its run folder has it in '{MODEL}' only" in refused.message
    with_copy = first(artifacts=[exported(uri), exported(MODEL)])
    assert admit(second(), [strict], source=with_copy).plan.model.uri == MODEL


@pytest.mark.parametrize(
    "folder", ["gs://artifacts/team-a/../team-b/run-12345678", f"gs://{'a' * 1015}", None]
)
def test_a_run_folder_that_is_no_place_gives_no_model(folder: str | None) -> None:
    resolved = {"model": {"source": "gs://models/tiny"}, **({"runFolder": folder} if folder else {})}
    refused = refusal(first(resolved=resolved, artifacts=[exported(f"{folder}/export/model")]))
    assert refused.reason == Reason.SOURCE_JOB_UNUSABLE


def test_a_job_that_starts_from_itself_is_refused() -> None:
    wanted = second()
    wanted["metadata"]["name"] = "support-bot"
    with pytest.raises(Refused) as caught:
        admit(wanted, [profile()], source=first())
    assert caught.value.reason == Reason.INVALID_SPEC


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"models": {"allow": ["Qwen/*"]}}, "does not cover spec.model gs://models/tiny"),
        (
            {"constraints": {"uris": {"read": ["gs://data/*"]}}, "storage": {"artifacts": "gs://other"}},
            f"does not cover spec.model.fromJob {MODEL}",
        ),
    ],
)
def test_the_profiles_rules_hold_for_what_another_job_has_made(rule: Any, told: str) -> None:
    refused = refusal(first(), profile(**rule))
    assert refused.reason == Reason.POLICY_VIOLATION
    assert told in refused.message


def test_a_job_waits_for_the_one_whose_model_it_takes_and_then_tells_where_it_comes_from() -> None:
    world = World(job=second())
    world.reconcile()
    assert world.condition("Valid")["reason"] == "SourceJobNotFound"
    assert world.condition("Stalled")["status"] == "True"

    world.source = {**first(), "status": {"phase": "Running"}}
    world.reconcile()
    assert (world.condition("Valid")["status"], world.condition("Stalled")["status"]) == ("True", "False")
    assert world.status["waiting"]["reason"] == "WaitingForInput"
    assert world.status["summary"].startswith('Waiting: spec.model.fromJob: FineTuneJob "support-bot"')
    assert world.requeue_after is not None
    assert world.config_map is None

    world.source = first()
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert {world.request(name).model.uri for name in world.created} == {MODEL}
    told = FineTuneJobStatus.model_validate(world.status).resolved
    assert told is not None
    assert told.model is not None
    assert told.model.from_job is not None
    assert (told.model.from_job.name, told.model.from_job.step) == ("support-bot", TOTAL_STEPS)
