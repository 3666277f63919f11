"""A job as decisions read it: bounded, and under control whatever else is wrong with its spec."""

from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.job import LONGEST_TEXT, MOST_TEXTS, Control, Job
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL
from tests.unit.lifecycle.world import World, job
from tests.unit.lifecycle.writes import writes

HOUR = 3600
#: Specs that the present schema refuses, as an older or a newer one may have stored them.
INVALID: dict[str, dict[str, Any]] = {
    "a retry that is a list": {"retry": ["now"]},
    "a retry that is a number": {"retry": 3},
    "a generation that is a text": {"retry": {"generation": "2"}},
    "a stage that does not exist": {"retry": {"generation": 1, "fromStage": "Deploy"}},
    "a time that is a text": {"childTTLSecondsAfterFinished": "soon"},
    "a model that is a text": {"model": "tiny"},
    "a suspension that is a text": {"suspend": "false"},
}


def training(**spec: Any) -> tuple[World, str]:
    world = World(job=job(**spec))
    name = world.until(Stage.TRAIN)
    world.train(name, 1)
    world.reconcile()
    return world, name


def stopped(world: World) -> list[str]:
    return [deletion.name for deletion in writes(decide(world.observe())).deletions]


@pytest.mark.parametrize("invalid", INVALID)
def test_a_job_whose_spec_is_invalid_runs_on_and_can_be_stopped(invalid: str) -> None:
    for stop in ({}, {"suspend": True}, {"cancel": True}):
        world, name = training()
        world.edit(**{**INVALID[invalid], **stop})
        assert stopped(world) == ([name] if stop else [])


@pytest.mark.parametrize("invalid", INVALID)
@pytest.mark.parametrize("limit", [{"activeDeadlineSeconds": 600}, {"budget": {"maxChipHours": 1}}])
def test_a_job_whose_spec_is_invalid_stays_limited(invalid: str, limit: dict[str, Any]) -> None:
    world, name = training(**limit)
    world.edit(**INVALID[invalid])
    world.wait(HOUR)
    assert stopped(world) == [name]


@pytest.mark.parametrize("invalid", INVALID)
def test_a_finished_job_whose_spec_is_invalid_stays_as_it_is(invalid: str) -> None:
    world = World()
    world.to_the_end()
    world.edit(**INVALID[invalid])
    world.reconcile()
    assert (world.status["phase"], world.retry) == ("Succeeded", None)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"cancel": True, "suspend": True}, {"cancel": True, "suspend": True}),
        ({"cancel": "true", "suspend": 1}, {}),
        ({"retry": {"generation": 2}}, {"retry_generation": 2}),
        (
            {"retry": {"generation": 2, "fromStage": "Train"}},
            {"retry_generation": 2, "retry_from": Stage.TRAIN},
        ),
        ({"retry": {"generation": 2, "fromStage": "Deploy"}}, {"retry_generation": 2}),
        ({"resumeFrom": {"runFolder": "gs://a/b/c"}}, {"resumes": True}),
        ({"childTTLSecondsAfterFinished": 0}, {"child_ttl": 0.0}),
        ({"activeDeadlineSeconds": 60}, {"deadline": 60.0}),
        ({"activeDeadlineSeconds": [60]}, {}),
        ({"budget": {"maxChipHours": "1.5", "maxCost": 2}}, {"chip_hours": 1.5, "cost": 2.0}),
        ({"budget": {"maxChipHours": "much", "maxCost": "inf"}}, {}),
        ({"budget": {"maxChipHours": 10**400, "maxCost": True}}, {}),
        ({"budget": 7}, {}),
    ],
)
def test_what_steers_a_job_is_read_leniently(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    found, nothing = Control.parse(spec), Control.parse({})
    read = {name: getattr(found, name) for name in Control.__slots__}
    assert read == {name: getattr(nothing, name) for name in Control.__slots__} | expected


def test_of_a_jobs_metadata_a_bounded_part_is_kept_with_kueues_labels_first() -> None:
    found = job()
    queue = {QUEUE_LABEL: "team", PRIORITY_LABEL: "high"}
    found["metadata"] |= {
        "labels": {f"a{number:04}": "x" for number in range(1000)} | queue,
        "annotations": {f"b{number:04}": "x" * number * 100 for number in range(1000)},
        "managedFields": [{}],
    }
    read = Job.parse(found)
    assert len(read.labels) == MOST_TEXTS
    assert read.labels.items() >= queue.items()
    assert read.labels == read.document["metadata"]["labels"]
    assert list(read.annotations) == [f"b{number:04}" for number in range(LONGEST_TEXT // 100 + 1)]
    assert read.document["metadata"].keys() == {
        "name", "namespace", "uid", "generation", "resourceVersion", "labels"
    }  # fmt: skip
