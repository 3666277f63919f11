"""Objects in a job's namespace that only claim to be its children, and the effect of a perfect forgery."""

import copy
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.rendering.labels import (
    ATTEMPT_LABEL,
    PLAN_ANNOTATION,
    RESTART_LABEL,
    STAGE_LABEL,
    UID_LABEL,
)
from tests.unit.lifecycle.world import UID, World
from tests.unit.lifecycle.writes import writes


@pytest.fixture
def training() -> World:
    world = World()
    world.until(Stage.TRAIN)
    return world


def add_foreign_jobset(world: World, name: str = "another-owners-training", **labels: str) -> dict[str, Any]:
    """Adds a running JobSet of another owner with the job's labels."""
    made = copy.deepcopy(world.jobsets["support-bot-train-1"])
    made["metadata"] |= {"name": name, "uid": "js-of-another-owner"}
    made["metadata"]["labels"] |= {UID_LABEL: UID, **labels}
    del made["metadata"]["ownerReferences"]
    world.jobsets[name] = made
    return made


def add_foreign_pods(world: World, **labels: str) -> None:
    (pod,) = copy.deepcopy(world.pods_of("support-bot-train-1"))
    pod["metadata"] |= {"name": "foreign", "ownerReferences": []}
    pod["metadata"]["labels"] |= labels
    world.pods["foreign-0"] = pod


def test_a_jobset_with_the_jobs_labels_is_neither_adopted_nor_deleted(training: World) -> None:
    add_foreign_jobset(training, **{ATTEMPT_LABEL: "2"})
    training.succeed("support-bot-train-1")
    training.to_the_end()
    assert training.status["phase"] == "Succeeded"
    assert "deletionTimestamp" not in training.jobsets["another-owners-training"]["metadata"]


OWNER = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneJob",
    "name": "support-bot",
    "uid": UID,
    "controller": True,
}


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{**OWNER, "controller": False}],
        [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": UID, "controller": True},
            {**OWNER, "controller": False},
        ],
        [{**OWNER, "uid": "of-another-job"}],
        [{**OWNER, "uid": "of-another-job", "name": "another-bot"}],
        [{key: value for key, value in OWNER.items() if key != "uid"}],
        [{**OWNER, "kind": "FineTuneProfile"}],
        [{**OWNER, "apiVersion": "example.com/v1"}],
    ],
    ids=[
        "no owner",
        "the job is not the controller",
        "something else is the controller",
        "controller is another FineTuneJob, of the same name",
        "controller is another FineTuneJob",
        "controller without a uid",
        "controller of another kind",
        "controller of another group",
    ],
)
def test_a_jobset_whose_controller_is_not_the_job_is_foreign(
    training: World, owners: list[dict[str, Any]]
) -> None:
    """This also holds for a JobSet with the name that matches its labels and with the digest of the job's plan."""
    made = add_foreign_jobset(training, "support-bot-eval-1", **{STAGE_LABEL: "Evaluate"})
    made["metadata"]["ownerReferences"] = owners
    assert made["metadata"]["name"] not in {each.name for each in training.observe().jobsets}
    training.reconcile()
    assert training.status["phase"] == "Running"
    training.edit(suspend=True)
    training.reconcile()
    assert "deletionTimestamp" not in made["metadata"]


def test_a_foreign_pod_with_the_jobs_labels_does_not_delay_the_job(training: World) -> None:
    add_foreign_pods(training, **{STAGE_LABEL: "Export", ATTEMPT_LABEL: "7"})
    training.succeed("support-bot-train-1")
    training.to_the_end()
    assert training.status["phase"] == "Succeeded"


@pytest.mark.parametrize(
    "labels",
    [
        {RESTART_LABEL: "999999999"},
        {RESTART_LABEL: "9" * 63},
        {RESTART_LABEL: "-1"},
        {RESTART_LABEL: "٣"},
        {ATTEMPT_LABEL: "9" * 63},
        {ATTEMPT_LABEL: "0"},
        {STAGE_LABEL: "Destroy"},
        {STAGE_LABEL: "Export", ATTEMPT_LABEL: "999"},
    ],
)
@pytest.mark.parametrize("kind", ["pod", "jobset"])
def test_numbers_in_labels_are_bounded(training: World, kind: str, labels: dict[str, str]) -> None:
    """This also holds for an object with forged owner references and labels."""
    if kind == "pod":
        (pod,) = copy.deepcopy(training.pods_of("support-bot-train-1"))
        pod["metadata"]["labels"] |= labels
        training.pods["forged-0"] = pod
    else:
        made = add_foreign_jobset(training, **labels)
        made["metadata"]["ownerReferences"] = training.jobsets["support-bot-train-1"]["metadata"][
            "ownerReferences"
        ]
    training.reconcile()
    assert training.status["phase"] == "Running"
    assert training.created[-1] == "support-bot-train-1"
    assert training.status["attempts"]["total"] == 3


def test_a_claim_of_a_million_restarts_counts_as_a_thousand_attempts(training: World) -> None:
    training.jobsets["support-bot-train-1"]["status"] = {"restarts": 10**6}
    training.reconcile()
    assert training.status["attempts"]["total"] <= 1002


@pytest.mark.parametrize("edit", [{}, {"suspend": True}, {"cancel": True}])
def test_a_jobset_without_its_plans_digest_is_no_way_out_of_limits(
    training: World, edit: dict[str, bool]
) -> None:
    """A tenant may edit the annotations of JobSets in its namespace. The JobSet is stopped, or replaced."""
    name = "support-bot-train-1"
    training.run(name)
    training.reconcile()
    del training.jobsets[name]["metadata"]["annotations"][PLAN_ANNOTATION]
    training.edit(**edit)
    training.reconcile()
    assert "deletionTimestamp" in training.jobsets[name]["metadata"]


def test_a_perfect_forgery_harms_only_the_job_that_it_claims(training: World) -> None:
    """A client that may create JobSets in the namespace can run anything there; the operator stops the job's training
    and uses the forged attempt. Nothing outside the namespace is read, written, stopped or deleted."""
    made = add_foreign_jobset(training, name="support-bot-eval-1", **{STAGE_LABEL: "Evaluate"})
    made["metadata"]["ownerReferences"] = training.jobsets["support-bot-train-1"]["metadata"][
        "ownerReferences"
    ]
    decision = training.reconcile()
    assert writes(decision).jobset is None
    assert {each.name for each in writes(decision).deletions} <= {"support-bot-eval-1", "support-bot-train-1"}
    # The owner of the namespace deletes the forgery, and the job finishes.
    training.lose("support-bot-eval-1")
    if training.live():
        training.succeed(training.live()[0])
    training.to_the_end()
    assert training.status["phase"] == "Succeeded"
