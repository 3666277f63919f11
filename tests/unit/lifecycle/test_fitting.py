"""The API server accepts the status for any measurements, records and names of a trainer."""

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune_contract import Failure, Outcome, Progress, Stage, StageResult
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.status_results import EvaluationStatus
from finetune_operator.api.status_stages import MetricPoint, ProgressStatus
from finetune_operator.api.timestamps import parse, stamp
from finetune_operator.lifecycle.fitting import fit_schema, read_status
from finetune_operator.lifecycle.observation import AttemptFiles
from tests.unit.api.schema_oracle import Place, check_rules, check_schema
from tests.unit.lifecycle.world import World
from tools.crd import job_crd, root_schema

STATUS = root_schema(job_crd())["properties"]["status"]

#: Lists problematic values explicitly because hypothesis seldom draws them.
floats = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0])
integers = st.integers(0, 2000) | st.sampled_from([2**31, 2**53])
seconds = st.floats(0, 1e12) | st.sampled_from([0.0, 1e-320, 1e12])
texts = st.text(max_size=20) | st.sampled_from(["", "x" * 300, "y" * 5000, "\x00", "🙂" * 2000])
uris = st.sampled_from(["gs://bucket/a", "file:///a", "gs://", "file://relative", "gs://b/" + "u" * 1000])
times = st.sampled_from(
    ["0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00", "2026-11-21T12:00:00Z", "2300-01-01T00:00:00Z"]
)
reasons = st.sampled_from(["Broken", "X" * 63, "Suspended", "Preempted"])


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


numbers = st.dictionaries(texts, floats, max_size=5)
results = record(loss=floats, perplexity=floats, tokens=integers, rows=integers)
reports = record(
    path=texts,
    name=texts,
    uri=texts,
    revision=texts,
    format=texts | st.just("Messages"),
    rows=integers,
    tokens=integers,
    trained_tokens=integers,
    truncated_rows=integers,
    dropped_rows=integers,
    checked=st.sampled_from(["Full", "Sample", "Off"]),
    weight=st.none() | st.floats(1e-9, 1e9),
    sequences=st.none() | integers,
    epoch_sequences=st.none() | integers,
)
uses = record(
    path=texts,
    result=st.sampled_from(["Hit", "Miss"]),
    fingerprint=texts,
    uri=st.none() | uris,
    size_bytes=integers,
    saved_seconds=seconds,
    miss_because=st.lists(texts, max_size=3),
)
digests = st.just("0" * 64)
conversions = record(
    result=st.sampled_from(["Hit", "Miss"]),
    uri=st.none() | uris,
    files_digest=st.none() | digests,
    size_bytes=integers,
    miss_because=st.lists(texts, max_size=20),
)
manifests = record(
    fingerprint=texts,
    inputs=st.dictionaries(texts, texts, max_size=3),
    items=uris,
    size_bytes=integers,
    seconds=seconds,
    export_proven=st.booleans(),
    proof=texts,
    created=times,
    files_digest=digests,
)
details: dict[Stage, st.SearchStrategy[dict[str, Any]]] = {
    Stage.PREFLIGHT: record(
        kind=st.just("Preflight"),
        model=record(
            source=texts,
            revision=texts,
            architecture=texts,
            parameters=integers,
            maxtext_model=texts,
            layout=texts,
            sizes=record(
                largest_piece=integers,
                largest_stack=integers,
                largest_block=integers,
                lora_width=integers,
                weights_bytes=integers,
            ),
        ),
        train=st.lists(reports, max_size=40),
        validation=st.lists(reports, max_size=10),
        prepared=st.lists(uses, max_size=5),
        warnings=st.lists(texts, max_size=3),
        steps=integers,
        max_seq_length=integers,
        row_width=integers,
        fingerprint=st.sampled_from(["f1", "F" * 128, "-"]),
        fingerprint_inputs=st.dictionaries(texts, texts, max_size=3),
        report=uris,
        conversion=st.none() | conversions,
    ),
    Stage.CONVERT: record(kind=st.just("Convert"), manifest=manifests, reused=st.booleans()),
    Stage.TRAIN: record(
        kind=st.just("Train"),
        step=integers,
        total_steps=integers,
        start_step=integers,
        first_loss=floats,
        last_loss=floats,
        evaluation_loss=st.none() | floats,
        checkpoints=st.lists(record(step=integers, uri=uris, metrics=numbers), max_size=15),
        seconds=st.dictionaries(texts, seconds, max_size=5),
        end_ids=st.lists(integers, max_size=5),
    ),
    Stage.EVALUATE: record(
        kind=st.just("Evaluate"),
        dataset=texts,
        dataset_hash=texts,
        baseline=st.none() | results,
        tuned=st.none() | results,
        samples_uri=uris,
        rows_uri=uris,
    ),
    Stage.EXPORT: record(
        kind=st.just("Export"),
        artifacts=st.lists(
            record(
                name=texts,
                type=st.sampled_from(["HuggingFace", "Adapter", "OrbaxParams"]),
                uri=uris,
                digest=texts,
                size_bytes=integers,
            ),
            max_size=40,
        ),
        manifest=uris,
    ),
}
failures = record(
    code=st.sampled_from([64, 66, 69, 70, 75, 78, 1, -9]),
    reason=reasons,
    message=texts.map(lambda text: text[:1024]),
    fix=texts.map(lambda text: text[:512]),
    evidence=texts.map(lambda text: text[:4096]),
    host=integers,
)
progresses = record(
    attempt=st.just(1) | integers,
    step=integers,
    total_steps=integers,
    start_step=integers,
    metrics=record(
        loss=floats, perplexity=floats, gradient_norm=floats, learning_rate=floats, tokens=integers
    ),
    evaluation=st.none() | record(step=integers, loss=floats, perplexity=floats, tokens=integers),
    step_time_p50=seconds,
    step_time_p95=seconds,
    tokens_per_second=floats,
    mfu=floats,
    curve=st.lists(st.tuples(integers, floats), max_size=48),
    checkpoints=st.lists(integers, max_size=10),
    compilations=integers,
    updated=times,
)


def complaints(status: Any) -> list[Place]:
    """Returns the places of the errors that the API server would report."""
    return check_schema(status, STATUS) or check_rules(status, STATUS, sound=True)


@cache
def _reached(stage: Stage) -> World:
    world = World()
    world.until(stage)
    return world


def world_at(stage: Stage) -> tuple[World, str]:
    """Returns a world whose job has reached the stage, and the name of the stage's JobSet."""
    return deepcopy(_reached(stage)), f"support-bot-{stage.short}-1"


def fitted(document: dict[str, Any]) -> dict[str, Any]:
    return read_status(document).to_document()


few = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=25)


@pytest.mark.slow
@few
@given(progresses)
def test_any_progress_gives_a_status_that_the_api_server_accepts(document: dict[str, Any]) -> None:
    world, _ = world_at(Stage.TRAIN)
    world.progress = Progress.model_validate(document)
    for _ in range(2):
        world.reconcile()
        assert complaints(world.status) == []


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.slow
@few
@given(data=st.data())
def test_any_result_gives_a_status_that_the_api_server_accepts(stage: Stage, data: st.DataObject) -> None:
    world, name = world_at(stage)
    outcome = data.draw(st.sampled_from(Outcome))
    document = {
        "stage": stage,
        "attempt": 1,
        "outcome": outcome,
        "exit_code": data.draw(integers),
        "started": data.draw(times),
        "finished": data.draw(times),
        "details": data.draw(details[stage] if outcome is Outcome.SUCCEEDED else st.none() | details[stage]),
        "failure": data.draw(failures) if outcome is Outcome.FAILED else None,
    }
    # The operator reads a result from JSON.
    result = StageResult.model_validate_json(StageResult.model_validate(document).to_json())
    world.attempts[world.key_of(name)] = AttemptFiles(result=result, failure=result.failure)
    world.end_pods(name, 0 if outcome is Outcome.SUCCEEDED else 1)
    world.end_jobset(name, "Completed")
    for _ in range(2):
        world.reconcile()
        assert complaints(world.status) == []
        world.wait(world.requeue_after or 0)


@pytest.mark.slow
@few
@given(failures, st.sampled_from(["", "m" * 9000]))
def test_any_failure_gives_a_status_that_the_api_server_accepts(document: dict[str, Any], words: str) -> None:
    world, name = world_at(Stage.TRAIN)
    world.attempts[world.key_of(name)] = AttemptFiles(failure=Failure.model_validate(document))
    world.end_pods(name, 1)
    world.end_jobset(name, "Failed")
    world.jobsets[name]["status"]["conditions"][0]["message"] = words
    world.reconcile()
    assert complaints(world.status) == []


def test_a_long_message_of_a_jobset_is_truncated() -> None:
    world, name = world_at(Stage.TRAIN)
    world.end_pods(name, 0)
    world.end_jobset(name, "Failed")
    world.jobsets[name]["status"]["conditions"][0]["message"] = "m" * 9000
    world.reconcile()
    assert complaints(world.status) == []
    assert world.status["attempts"]["history"][-1]["reason"] == "PodLost"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_omitted_from_the_status(value: float) -> None:
    world, name = world_at(Stage.TRAIN)
    world.train(name, 10)
    assert world.progress is not None
    metrics = world.progress.metrics.model_copy(update={"perplexity": value})
    world.progress = Progress.model_validate_json(
        world.progress.model_copy(update={"metrics": metrics, "curve": [(9, value), (10, 1.5)]}).to_json()
    )
    assert repr(world.progress.metrics.perplexity) == repr(value)
    world.wait(60)
    world.reconcile()
    reported = world.status["progress"]
    assert [each["name"] for each in reported["metrics"]] == ["loss"]
    assert reported["curve"]["points"] == [{"step": 10, "value": "1.5"}]


def test_a_valid_status_is_unchanged_and_fitting_is_idempotent() -> None:
    world = World()
    world.to_the_end()
    assert fitted(world.status) == world.status
    spoilt = world.status | {"summary": "s" * 2000, "stage": "Nowhere"}
    once = fitted(spoilt)
    assert once == fitted(once)
    assert "stage" not in once
    assert once["summary"] == "s" * 1023 + "…"


def test_a_status_with_arbitrary_values_is_fitted() -> None:
    status = FineTuneJobStatus.model_construct(
        observed_generation=1,
        summary="s" * 2000,
        start_time=parse("9999-12-31T23:59:59Z"),
        progress=ProgressStatus.model_construct(
            step=2**80,
            total_steps=5,
            metrics=(MetricPoint.model_construct(name="loss", value="nan", step=1),),
        ),
        evaluation=EvaluationStatus.model_construct(samples_uri="gs://", result={"x" * 300: "1"}),
    )
    assert fit_schema(status).to_document() == {
        "observedGeneration": 1,
        "summary": "s" * 1023 + "…",
        "startTime": "9999-12-31T23:59:59Z",
        "evaluation": {"result": {}},
    }


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (None, {}),
        ({}, {}),
        ({"observedGeneration": "many", "phase": "Running"}, {"phase": "Running"}),
        ({"phase": "Lost", "startTime": "yesterday", "made": 3, "summary": "fine"}, {"summary": "fine"}),
        ({"stages": "none", "attempts": {"total": 2, "history": [{"stage": "Train"}]}}, {"attempts": [2]}),
        ({"conditions": [{"type": "Finished"}], "cost": {"chipHours": 3}}, {"conditions": []}),
    ],
)
def test_the_valid_parts_of_a_foreign_status_are_read(stored: Any, read: dict[str, Any]) -> None:
    found = read_status(stored).to_document()
    assert found.pop("observedGeneration") == -1
    if "attempts" in found:
        assert found["attempts"].pop("history") == []
        found["attempts"] = [found["attempts"]["total"]]
    assert found == read


def test_invalid_points_of_a_curve_are_dropped_alone() -> None:
    points = [{"step": step, "value": value} for step, value in enumerate(["1", "nan", "2", "inf", "3"])]
    curve = {"metric": "loss", "points": points}
    progress = {"step": 1, "totalSteps": 5, "curve": curve}
    reported = fitted({"observedGeneration": 1, "progress": progress})["progress"]["curve"]["points"]
    assert [each["value"] for each in reported] == ["1", "2", "3"]


def test_an_address_is_omitted_instead_of_truncated() -> None:
    long = "gs://bucket/" + "u" * 2000
    model = {"name": "model", "type": "HuggingFace"}
    status = {
        "observedGeneration": 1,
        "evaluation": {"samplesURI": long},
        "artifacts": [{**model, "uri": long}, {**model, "uri": "gs://bucket/model"}],
    }
    assert fitted(status) == {
        "observedGeneration": 1,
        "evaluation": {},
        "artifacts": [{**model, "uri": "gs://bucket/model"}],
    }


def test_a_clock_that_is_ahead_does_not_delay_a_retry() -> None:
    world, name = world_at(Stage.TRAIN)
    world.fail(name, 69)
    key = world.key_of(name)
    files = world.attempts[key]
    assert files.result is not None
    late = files.result.model_copy(update={"finished": parse("2300-01-01T00:00:00Z")})
    world.attempts[key] = replace(files, result=late)
    del world.jobsets[name]
    world.reconcile()
    assert world.created[-1] == "support-bot-train-2"


@given(st.datetimes(timezones=st.timezones()))
def test_every_time_is_formatted_alike(time: Any) -> None:
    assert len(stamp(time)) == len("2026-11-21T12:00:00Z")
    parse(stamp(time))


def test_a_duplicate_metric_does_not_remove_another() -> None:
    world = World()
    world.train(world.until(Stage.TRAIN), 10)
    assert world.progress is not None
    measured = {"loss": 7.0, "reward": 0.5}
    metrics = world.progress.metrics.model_copy(update={"method_metrics": measured})
    world.progress = world.progress.model_copy(update={"metrics": metrics})
    world.reconcile()
    shown = {each["name"]: each["value"] for each in world.status["progress"]["metrics"]}
    assert shown == {"loss": "1.9", "reward": "0.5"}
