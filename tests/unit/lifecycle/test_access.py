"""A stage that storage, STS or IAM refuse: the grant may take minutes to arrive."""

from dataclasses import replace
from datetime import timedelta

import pytest

from finetune_contract import ExitCode, Stage
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from tests.unit.lifecycle.world import World

STORAGE = "StoragePermissionDenied"
DENIED = "gs://data/chat.jsonl: access is denied. Grant the stage's service account roles/storage.objectViewer there."


def refuse(world: World, stage: Stage, reason: str = STORAGE) -> None:
    """One attempt, which is refused after 20 seconds."""
    name = world.until(stage)
    world.wait(20)
    world.fail(name, ExitCode.PERMISSION_DENIED, reason, DENIED)
    world.reconcile()


@pytest.mark.parametrize("reason", [STORAGE, "PermissionDenied"])
@pytest.mark.parametrize("stage", list(Stage)[:4])
def test_access_that_is_refused_is_tried_for_10_to_15_minutes(stage: Stage, reason: str) -> None:
    world = World()
    world.until(stage)
    since, waits = world.now + timedelta(seconds=20), []
    for _ in range(5):
        refuse(world, stage, reason)
        assert world.condition("Finished")["status"] == "False"
        assert world.condition("Stalled")["status"] == "False"
        assert world.status["attempts"]["user"] == 0
        assert world.status["phase"] == ("Validating" if stage is Stage.PREFLIGHT else "Recovering")
        assert world.live() == []
        waits.append(world.requeue_after)
        world.wait(world.requeue_after or 0)
        world.reconcile()
    assert waits == [30, 60, 120, 240, 240]
    refuse(world, stage, reason)
    assert timedelta(minutes=10) < world.now - since < timedelta(minutes=15)
    failure = world.status["failure"]
    assert (world.status["phase"], failure["class"], failure["reason"]) == ("Failed", "User", reason)
    assert failure["message"] == DENIED
    assert world.status["attempts"]["user"] == 1


@pytest.mark.parametrize(("stage", "account"), [(Stage.PREFLIGHT, "ft-cpu"), (Stage.TRAIN, "ft-train")])
def test_the_status_names_role_and_account_from_the_first_refusal_on(stage: Stage, account: str) -> None:
    world = World()
    refuse(world, stage)
    for expected in ("The next attempt starts at", "Retrying."):
        waiting = world.status["waiting"]
        assert waiting["reason"] == "WaitingForInput"
        for text in (
            DENIED,
            f'ServiceAccount "{account}" of namespace "team-a"',
            "10 to 15 minutes",
            expected,
        ):
            assert text in waiting["message"]
            assert text in world.status["summary"]
        world.wait(world.requeue_after or 0)
        world.reconcile()
    world.until(stage)
    assert ("waiting" in world.status) is (stage is Stage.PREFLIGHT)


def test_a_grant_that_arrives_lets_the_job_go_on() -> None:
    world = World()
    for stage in (Stage.PREFLIGHT, Stage.TRAIN, Stage.EXPORT):
        refuse(world, stage)
        world.wait(world.requeue_after or 0)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["attempts"]["user"] == 0


def test_a_refusal_weeks_after_one_that_passed_is_waited_for_again() -> None:
    world = World()
    refuse(world, Stage.TRAIN)
    world.wait(world.requeue_after or 0)
    name = world.until(Stage.TRAIN)
    world.wait(86400 * 20)
    world.fail(name, ExitCode.UNAVAILABLE)
    world.reconcile()
    world.wait(world.requeue_after or 0)
    refuse(world, Stage.TRAIN)
    assert world.status["phase"] != "Failed"


@pytest.mark.parametrize("times", ["same", "future"])
def test_times_that_tenants_write_do_not_prolong_the_wait(times: str) -> None:
    """The number of attempts bounds it, too."""
    world = World()
    start = world.now
    forged = start + {"same": -timedelta(days=1), "future": timedelta(days=1)}[times]
    for number in range(1, 30):
        refuse(world, Stage.PREFLIGHT)
        files = world.attempts[AttemptKey(Stage.PREFLIGHT, number)]
        assert files.result is not None
        result = files.result.model_copy(update={"finished": forged})
        world.attempts[AttemptKey(Stage.PREFLIGHT, number)] = replace(files, result=result)
        if world.status["phase"] == "Failed":
            break
        world.wait(world.requeue_after or 0)
    assert world.status["phase"] == "Failed"
    assert number <= 10


def test_a_refusal_of_the_hub_is_not_waited_for() -> None:
    world = World()
    refuse(world, Stage.PREFLIGHT, "HubAccessDenied")
    assert world.status["phase"] == "Failed"


def test_a_retry_by_hand_waits_anew() -> None:
    world = World()
    for _ in range(6):
        refuse(world, Stage.PREFLIGHT)
        world.wait(world.requeue_after or 0)
    assert world.status["phase"] == "Failed"
    world.edit(retry={"generation": 1})
    world.reconcile()
    refuse(world, Stage.PREFLIGHT)
    assert world.status["phase"] != "Failed"


def test_a_stage_whose_run_folder_is_denied_says_so_without_a_record() -> None:
    """The trainer could write no record: its termination message says which role is missing."""
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.end_pods(name, ExitCode.PERMISSION_DENIED)
    for pod in world.pods_of(name):
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = f"{STORAGE}: {DENIED}"
    world.settle(name)
    world.reconcile()
    assert world.status["phase"] != "Failed"
    assert DENIED in world.status["summary"]


def test_a_refusal_hours_after_one_in_an_attempt_that_had_access_is_waited_for_again() -> None:
    world = World()
    refuse(world, Stage.TRAIN)
    world.wait(world.requeue_after or 0)
    name = world.until(Stage.TRAIN)
    for step in range(10, 90, 10):
        world.wait(1800)
        world.train(name, step)
        world.reconcile()
    world.fail(name, ExitCode.PERMISSION_DENIED, STORAGE, DENIED)
    world.reconcile()
    assert world.status["phase"] == "Recovering"
    assert world.status["attempts"]["user"] == 0
