"""A job that starts from the model of another one: its values, its waits and its refusals."""

from typing import Any

import pytest

from finetune_operator.api import FineTuneJobStatus, Reason
from finetune_operator.planning import Refused, admit, read_stored_plan, render_stored_plan, replan
from tests.unit.lifecycle import states
from tests.unit.lifecycle.world import TOTAL_STEPS, World, job, profile

MODEL = "gs://artifacts/team-a/support-bot-0b5e3a52/export/model"


def second(**requested: Any) -> Any:
    wanted = job(model={"fromJob": {"name": "support-bot", **requested}})
    wanted["metadata"] |= {"name": "second", "uid": "9d0c1111-0000-4000-8000-000000000000"}
    return wanted


def first(**status: Any) -> Any:
    """Returns a job that has succeeded, with fields of ``status`` replaced."""
    done = states.succeeded().job
    return {**done, "status": {**done["status"], **status}}


def refusal(source: Any, *profiles: Any, **requested: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(second(**requested), profiles or [profile()], source=source)
    return caught.value


def test_the_plan_stores_the_exported_model_of_the_source_job() -> None:
    wanted = second()
    admission = admit(wanted, [profile()], source=first())
    assert admission.plan.model.uri == MODEL
    kept = read_stored_plan(render_stored_plan(admission.stored))
    again = replan(wanted, kept)
    assert again.model.uri == MODEL
    assert again.lineage == {
        "name": "support-bot",
        "uid": first()["metadata"]["uid"],
        "base": "gs://models/tiny",
        "step": TOTAL_STEPS,
        "digest": "sha256:3",
    }


def test_a_chain_of_jobs_keeps_its_original_base_model() -> None:
    resolved = {
        "model": {"source": MODEL, "fromJob": {"name": "zeroth", "uid": "1", "base": "Qwen/Qwen3-0.6B"}},
        "runFolder": MODEL.removesuffix("/export/model"),
    }
    plan = admit(second(), [profile(models={"allow": ["Qwen/*"]})], source=first(resolved=resolved)).plan
    assert plan.lineage is not None
    assert plan.lineage["base"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("requested", "checkpoints"),
    [
        ({"checkpoint": "Last"}, [{"step": 50}, {"step": TOTAL_STEPS, "tags": ["Last"]}]),
        ({"checkpoint": "Best"}, [{"step": 50, "tags": ["Last"]}, {"step": TOTAL_STEPS, "tags": ["Best"]}]),
        ({"checkpoint": "Step", "step": TOTAL_STEPS}, []),
    ],
)
def test_a_checkpoint_can_be_named_if_it_is_the_exported_one(requested: Any, checkpoints: Any) -> None:
    assert (
        admit(second(**requested), [profile()], source=first(checkpoints=checkpoints)).plan.model.uri == MODEL
    )


ADAPTER = {"name": "adapter", "type": "Adapter", "uri": "gs://a/adapter", "digest": "d", "sizeBytes": 1}
ON_HUB = {"name": "model", "type": "HuggingFace", "uri": "hf://acme/bot@1", "digest": "d", "sizeBytes": 1}

REFUSED: list[tuple[Any, dict[str, Any], Reason, str]] = [
    (None, {}, Reason.SOURCE_JOB_NOT_FOUND, 'no FineTuneJob "support-bot"'),
    ({**first(), "status": {}}, {}, Reason.SOURCE_JOB_RUNNING, "has not ended yet (Pending)"),
    (states.failed().job, {}, Reason.SOURCE_JOB_UNUSABLE, "ended as Failed"),
    (states.planned().job, {}, Reason.SOURCE_JOB_UNUSABLE, "ended as Planned"),
    (states.reach("cancelled"), {}, Reason.SOURCE_JOB_UNUSABLE, "is cancelled and has made no model"),
    (first(artifacts=[ADAPTER, ON_HUB]), {}, Reason.SOURCE_JOB_UNUSABLE, "spec.export.content"),
    (
        first(),
        {"checkpoint": "Best"},
        Reason.SOURCE_JOB_UNUSABLE,
        "its best checkpoint, which its status does not name",
    ),
    (
        first(),
        {"checkpoint": "Step", "step": 5},
        Reason.SOURCE_JOB_UNUSABLE,
        "of step 100, and that of",
    ),
    (
        first(checkpoints=[{"step": 7, "tags": ["Best"]}]),
        {"checkpoint": "Best"},
        Reason.SOURCE_JOB_UNUSABLE,
        "Set spec.export.checkpoint of that job to Best",
    ),
]


@pytest.mark.parametrize(
    ("source", "requested", "reason", "expected"), REFUSED, ids=[each[3] for each in REFUSED]
)
def test_an_unusable_source_job_is_refused_with_a_fix(
    source: Any, requested: Any, reason: Reason, expected: str
) -> None:
    refused = refusal(source, **requested)
    assert refused.reason == reason
    assert refused.message.startswith("spec.model.fromJob: ")
    assert expected in refused.message


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
def test_a_record_of_the_source_job_cannot_redirect_the_model(uri: str) -> None:
    """The account of the source job can write the record."""
    strict = profile(constraints={"mode": "Strict", "uris": {"read": ["gs://*"]}}, namespaces=["team-a"])
    refused = refusal(first(artifacts=[exported(uri)]), strict)
    assert refused.reason == Reason.SOURCE_JOB_UNUSABLE
    assert f"and its run folder has it in '{MODEL}' only" in refused.message
    with_copy = first(artifacts=[exported(uri), exported(MODEL)])
    assert admit(second(), [strict], source=with_copy).plan.model.uri == MODEL


@pytest.mark.parametrize(
    "folder", ["gs://artifacts/team-a/../team-b/run-12345678", f"gs://{'a' * 1015}", None]
)
def test_an_invalid_run_folder_gives_no_model(folder: str | None) -> None:
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
    ("rule", "expected"),
    [
        ({"models": {"allow": ["Qwen/*"]}}, "does not cover spec.model gs://models/tiny"),
        (
            {"constraints": {"uris": {"read": ["gs://data/*"]}}, "storage": {"artifacts": "gs://other"}},
            f"does not cover spec.model.fromJob {MODEL}",
        ),
    ],
)
def test_the_profiles_rules_apply_to_models_of_other_jobs(rule: Any, expected: str) -> None:
    refused = refusal(first(), profile(**rule))
    assert refused.reason == Reason.POLICY_VIOLATION
    assert expected in refused.message


def test_a_job_waits_for_its_source_job_and_then_reports_the_model() -> None:
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
    reported = FineTuneJobStatus.model_validate(world.status).resolved
    assert reported is not None
    assert reported.model is not None
    assert reported.model.from_job is not None
    assert (reported.model.from_job.name, reported.model.from_job.step) == ("support-bot", TOTAL_STEPS)
