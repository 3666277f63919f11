"""Whether the model is already converted, and what the status says if it is not."""

from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import (
    ConversionCacheUse,
    ConvertManifest,
    ConvertOutcome,
    ExitCode,
    Failure,
    Outcome,
    PreflightOutcome,
    Stage,
)
from finetune_contract.failure import CONVERTED_MODEL_DAMAGED
from tests.unit.lifecycle.world import World, hit, job

DIGEST = "1" * 64


def cached(world: World, **changes: Any) -> ConvertManifest:
    """Adds a conversion of another job to the cache and returns its manifest."""
    manifest = world.manifest(uid="another-job").model_copy(update={"files_digest": DIGEST, **changes})
    world.cache["f1"] = manifest
    return manifest


def reported(world: World) -> dict[str, Any]:
    cache: dict[str, Any] = world.status["stages"][1].get("cache", {})
    return cache


def test_the_conversion_that_preflight_verified_is_pinned_for_later_stages() -> None:
    world = World()
    manifest = cached(world)
    world.conversion = hit(manifest)
    train = world.until(Stage.TRAIN)
    assert "support-bot-conv-1" not in world.created
    request = world.request(train)
    assert (request.converted, request.converted_files_digest) == (manifest.items, DIGEST)
    assert reported(world)["result"] == "Hit"
    evaluate = world.until(Stage.EVALUATE)
    assert world.request(evaluate).converted_files_digest == DIGEST


def test_a_cache_miss_keeps_the_reason_that_preflight_found() -> None:
    world = World()
    world.conversion = ConversionCacheUse(result="Miss", miss_because=["engine: maxtext 1 -> maxtext 2"])
    world.until(Stage.CONVERT)
    assert reported(world)["missBecause"] == ["engine: maxtext 1 -> maxtext 2"]
    assert reported(world)["result"] == "Miss"
    world.to_the_end()
    assert reported(world)["missBecause"] == ["engine: maxtext 1 -> maxtext 2"]
    assert reported(world)["sourceURI"].startswith("gs://cache/team-a/convert/f1/0b5e3a52-1")


def test_a_first_conversion_has_no_miss_reason() -> None:
    world = World()
    world.conversion = ConversionCacheUse(result="Miss")
    world.to_the_end()
    assert "missBecause" not in reported(world)


def test_an_entry_that_preflight_found_damaged_is_not_used() -> None:
    world = World()
    cached(world)
    reason = "the entry in the cache is damaged: 0/items/d/1 has other content than the saved one"
    world.conversion = ConversionCacheUse(result="Miss", miss_because=[reason])
    world.until(Stage.CONVERT)
    assert reported(world)["missBecause"] == [reason]


@pytest.mark.parametrize(
    "change",
    [
        {"files_digest": "2" * 64},
        {"items": "gs://cache/team-a/convert/f1/another-2/0/items"},
    ],
    ids=["another list of files", "another entry"],
)
def test_an_entry_replaced_after_preflight_verified_it_is_not_used(change: dict[str, Any]) -> None:
    world = World()
    world.conversion = hit(cached(world))
    cached(world, **change)
    world.until(Stage.CONVERT)
    assert reported(world)["missBecause"] == [
        "the entry that preflight compared was replaced or removed since"
    ]


def test_an_entry_deleted_after_preflight_verified_it_is_converted_again() -> None:
    world = World()
    world.conversion = hit(cached(world))
    world.cache.clear()
    world.until(Stage.CONVERT)
    assert reported(world)["missBecause"] == [
        "the entry that preflight compared was replaced or removed since"
    ]


ELSEWHERE = pytest.mark.parametrize(
    "items",
    [
        "gs://attacker/backdoored/items",
        "gs://cache/team-a/convert/f2/another--1/0/items",
        "gs://cache/team-a/convert/f1/../f2/another--1/0/items",
        "gs://cache/team-a/convert/f1//0/items",
        "gs://cache/team-a/convert/f1/./0/items",
        "gs://cache/team-a/convert/f1/0b5e3a52-1/../../../../elsewhere/0/items",
        "gs://cache/team-a/convert/f1x/another--1/0/items",
        "gs://cache/team-a/convert/f1/manifest.json",
    ],
)


@ELSEWHERE
def test_a_convert_record_cannot_point_stages_outside_the_cache(items: str) -> None:
    """The job's service account can write the record."""
    world = World(job=job(recovery={"maxInfrastructureRetries": 1}))
    for _ in range(2):
        name = world.until(Stage.CONVERT)
        world.run(name)
        found = world.manifest().model_copy(update={"items": items})
        world._write_result(name, Outcome.SUCCEEDED, 0, details=ConvertOutcome(manifest=found))
        world.end_pods(name, 0)
        world.end_jobset(name, "Completed")
    for _ in range(3):
        world.reconcile()
    assert [name for name in world.created if "-train-" in name] == []
    assert world.status["phase"] == "Failed"
    failure = world.status["failure"]
    assert failure["class"] == "Infrastructure"
    history = world.status["attempts"]["history"]
    assert [each["reason"] for each in history if each["stage"] == "Convert"] == ["ResultMalformed"] * 2
    assert "which is no entry of the job's cache, gs://cache/team-a" in failure["message"]


@ELSEWHERE
def test_a_manifest_that_points_outside_its_folder_is_a_miss(items: str) -> None:
    world = World()
    manifest = cached(world, items=items)
    world.conversion = hit(manifest)
    name = world.until(Stage.CONVERT)
    assert reported(world)["missBecause"] == ["its manifest in the cache names a folder outside of its own"]
    world.succeed(name)
    assert items != world.request(world.until(Stage.TRAIN)).converted


def test_a_manifest_of_another_fingerprint_is_a_miss() -> None:
    world = World()
    world.conversion = hit(cached(world, fingerprint="f2"))
    world.until(Stage.CONVERT)


def test_an_entry_that_preflight_did_not_look_up_is_not_used() -> None:
    """The job's service account can write the record."""
    world = World()
    world.succeed(world.until(Stage.PREFLIGHT))
    key, files = next(iter(world.attempts.items()))
    assert files.result is not None
    assert isinstance(files.result.details, PreflightOutcome)
    forged = files.result.details.model_copy(update={"conversion": None})
    world.attempts[key] = replace(files, result=files.result.model_copy(update={"details": forged}))
    cached(world)
    world.until(Stage.CONVERT)


def test_an_unreadable_manifest_is_a_miss_with_the_reason() -> None:
    world = World()
    world.manifest_fault = "its manifest is not a ConvertManifest"
    world.until(Stage.CONVERT)
    assert reported(world)["missBecause"] == ["its manifest is not a ConvertManifest"]


def test_a_conversion_that_convert_finds_in_the_cache_is_a_hit() -> None:
    """Another job converted the model after preflight read the cache."""
    world = World()
    world.conversion = ConversionCacheUse(result="Miss")
    name = world.until(Stage.CONVERT)
    manifest = cached(world)
    world.run(name)
    world._write_result(name, Outcome.SUCCEEDED, 0, details=ConvertOutcome(manifest=manifest, reused=True))
    world.end_pods(name, 0)
    world.end_jobset(name, "Completed")
    assert world.request(world.until(Stage.TRAIN)).converted == manifest.items
    assert reported(world)["result"] == "Hit"
    assert reported(world)["savedSeconds"] == "12"


# --- damage that is found when the model is loaded


def damaged(world: World, name: str, items: str | None = None, *, clipped: bool = False) -> None:
    """The stage finds that the converted model differs from what was written."""
    request = world.request(name)
    where = items or str(request.converted)
    failure = Failure(
        code=ExitCode.UNAVAILABLE, reason=CONVERTED_MODEL_DAMAGED, message="it is damaged", actual="d/1 is missing",
        where=f"{where[:511]}…" if clipped else where,
    )  # fmt: skip
    world._write_result(name, Outcome.FAILED, failure.code, failure=failure)
    world.end_pods(name, int(failure.code))
    world.settle(name)


@pytest.mark.parametrize("stage", [Stage.TRAIN, Stage.EVALUATE])
def test_a_hit_that_a_stage_finds_damaged_is_reconverted_and_retried(stage: Stage) -> None:
    world = World()
    manifest = cached(world)
    world.conversion = hit(manifest)
    name = world.until(stage)
    damaged(world, name)
    convert = world.until(Stage.CONVERT)
    assert world.request(convert).use_cache == "Refresh"
    assert reported(world)["missBecause"] == [f"{stage} found the converted model damaged: d/1 is missing"]
    again = world.until(stage)
    assert again != name
    assert world.request(again).converted == "gs://cache/team-a/convert/f1/0b5e3a52-1/0/items"
    assert world.status["attempts"]["infrastructure"] == 1
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert [each for each in world.created if "-train-" in each][1:] == (
        ["support-bot-train-2"] if stage is Stage.TRAIN else []
    )


def test_a_damaged_conversion_of_the_job_itself_is_repeated() -> None:
    world = World()
    first = world.until(Stage.TRAIN)
    damaged(world, first)
    convert = world.until(Stage.CONVERT)
    assert convert == "support-bot-conv-2"
    second = world.until(Stage.TRAIN)
    assert world.request(second).converted == "gs://cache/team-a/convert/f1/0b5e3a52-2/0/items"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["stages"][1]["cache"]["result"] == "Miss"


def test_a_truncated_address_in_a_record_is_recognized() -> None:
    long = "gs://cache/team-a/convert/f1/0b5e3a52-1/" + "/".join(["0" * 120] * 5)
    world = World()
    world.conversion = hit(cached(world, items=long))
    damaged(world, world.until(Stage.TRAIN), clipped=True)
    world.until(Stage.CONVERT)


def test_repeated_damage_exhausts_the_retry_budget() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 2}))
    for _ in range(3):
        damaged(world, world.until(Stage.TRAIN))
        world.reconcile()
    for _ in range(5):
        world.wait(world.requeue_after or 0)
        world.reconcile()
    assert world.status["phase"] == "Failed"
    assert [name for name in world.created if "-conv-" in name] == [
        f"support-bot-conv-{n}" for n in (1, 2, 3)
    ]


def test_damage_of_another_conversion_does_not_invalidate_this_one() -> None:
    world = World()
    damaged(world, world.until(Stage.TRAIN), "gs://cache/team-a/convert/f1/0b5e3a52-9/0/items")
    world.until(Stage.TRAIN)
    assert [name for name in world.created if "-conv-" in name] == ["support-bot-conv-1"]


def test_a_manual_retry_does_not_use_a_damaged_conversion() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 0}))
    damaged(world, world.until(Stage.TRAIN))
    world.reconcile()
    assert world.status["phase"] == "Failed"
    world.edit(retry={"generation": 1})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert [name for name in world.created if "-conv-" in name] == [
        "support-bot-conv-1",
        "support-bot-conv-2",
    ]
