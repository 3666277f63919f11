"""Takeovers: a run folder is taken over once, from its last state, and two jobs never write to one folder."""

from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import in_order
from finetune_operator.planning import Refused, admit
from tests.unit.lifecycle.world import World, job, profile

FOLDER = "gs://artifacts/team-a/support-bot-0b5e3a52"
UID = "9d0c1111-0000-4000-8000-000000000000"


def second(name: str = "second", uid: str = UID, folder: str = FOLDER, **spec: Any) -> Any:
    wanted = job(resumeFrom={"runFolder": folder}, **spec)
    wanted["metadata"] |= {"name": name, "uid": uid, "creationTimestamp": "2026-11-21T12:30:00Z"}
    return wanted


def interrupted(step: int = 30) -> World:
    """A job that was deleted during training; its run folder remains."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, step)
    world.jobsets.clear()
    world.pods.clear()
    return world


def resumed(before: World, wanted: Any) -> World:
    """Returns the world of another job on the same storage."""
    return World(
        job=wanted,
        attempts=before.attempts,
        progress=before.progress,
        cache=before.cache,
        takeovers=before.takeovers,
        retry=before.retry,
        checkpoint=before.checkpoint,
        now=before.now,
    )


def test_all_stages_run_under_the_next_numbers_and_training_resumes() -> None:
    world = resumed(interrupted(), second())
    world.reconcile()
    world.reconcile()
    assert [note.job for note in world.takeovers] == ["second"]
    assert world.created == []
    name = world.until(Stage.TRAIN)
    # The conversion was in the cache.
    assert world.created == ["second-prep-2", "second-train-2"]
    world.train(name, 40)
    assert world.progress is not None
    assert world.progress.start_step == 30
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["resolved"]["runFolder"] == FOLDER
    assert world.request("second-train-2").run_folder == FOLDER
    # Usage and attempts of the earlier job do not count for this one.
    assert world.status["attempts"]["total"] == len(world.created)
    assert next(each for each in world.status["stages"] if each["name"] == "Train")["attempt"] == 1


def test_a_folder_used_from_a_third_namespace_is_taken_over_afterwards() -> None:
    world = resumed(interrupted(), second())
    world.reconcile()
    user = job(resumeFrom={"runFolder": FOLDER})
    user["metadata"] |= {"name": "cee", "namespace": "team-c", "uid": "0c1c1c1c-0"}
    user["status"] = {"resolved": {"runFolder": FOLDER}}
    world.neighbours = [user]
    world.reconcile()
    assert (world.takeovers, world.created) == ([], [])
    valid = world.condition("Valid")
    assert valid["reason"] == "RunFolderInUse"
    assert '"cee" in namespace team-c' in valid["message"]
    world.neighbours = []
    world.until(Stage.TRAIN)
    assert [(note.namespace, note.job) for note in world.takeovers] == [("team-a", "second")]


def test_a_deleted_takeover_record_is_rewritten_and_attempts_are_kept() -> None:
    world = resumed(interrupted(), second())
    world.until(Stage.TRAIN)
    recorded = list(world.takeovers)
    world.takeovers.clear()
    world.reconcile()
    world.reconcile()
    assert [note.uid for note in world.takeovers] == [UID]
    assert world.takeovers[0].first[Stage.TRAIN] == recorded[0].first[Stage.TRAIN] == 2
    assert world.live() == ["second-train-2"]
    assert world.status["phase"] == "Running"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.created == ["second-prep-2", "second-train-2", "second-eval-1", "second-export-1"]


def third() -> Any:
    return second("third", "7e570000-0000-4000-8000-000000000000")


def test_a_deleted_takeover_record_keeps_the_folder_with_its_newest_owner() -> None:
    world = resumed(interrupted(), second())
    world.until(Stage.TRAIN)
    world.jobsets.clear()
    world.pods.clear()
    world = resumed(world, third())
    name = world.until(Stage.TRAIN)
    assert [note.job for note in world.takeovers] == ["second", "third"]
    recorded = world.takeovers.pop()
    world.reconcile()
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]
    assert world.takeovers[-1].first[Stage.TRAIN] == recorded.first[Stage.TRAIN]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_attempts_of_the_source_do_not_count_without_a_takeover_record() -> None:
    """This also holds if the job itself has had so many attempts that its status names only the newest."""
    world = resumed(interrupted(), second(recovery={"maxInfrastructureRetries": 20}))
    name = world.until(Stage.TRAIN)
    for times in range(12):
        world.train(name, 40 + times)
        world.save(name)
        world.fail(name, 69)
        world.reconcile()
        name = world.until(Stage.TRAIN)
    counted, recorded = dict(world.status["attempts"]), world.takeovers[-1]
    assert len(counted["history"]) == 10
    world.takeovers.clear()
    world.reconcile()
    world.reconcile()
    for stage in (Stage.PREFLIGHT, Stage.TRAIN):
        assert world.takeovers[-1].first[stage] >= recorded.first[stage] > 1
    assert world.live() == [name]
    assert world.status["attempts"]["infrastructure"] == counted["infrastructure"]


def test_a_folder_of_an_unserved_namespace_is_not_taken_over() -> None:
    world = resumed(interrupted(), second())
    world.unserved = "team-c"
    world.reconcile()
    world.reconcile()
    assert (world.takeovers, world.created) == ([], [])
    assert world.condition("Valid")["reason"] == "RunFolderInUse"
    assert "does not serve" in world.condition("Valid")["message"]


def test_a_folder_without_attempt_numbers_left_is_not_taken_over() -> None:
    before = interrupted()
    first = before.attempts[AttemptKey(Stage.TRAIN, 1)]
    before.attempts |= {AttemptKey(Stage.TRAIN, number): first for number in range(2, 1000)}
    world = resumed(before, second())
    for _ in range(3):
        world.reconcile()
    assert world.takeovers == []
    assert world.created == []
    assert world.condition("Valid")["reason"] == "TooManyAttempts"
    assert "without spec.resumeFrom" in world.condition("Valid")["message"]


def test_an_operator_that_crashes_after_the_takeover_record_continues() -> None:
    world = resumed(interrupted(), second())
    world.reconcile()
    world.reconcile()
    world.config_map = None  # deleted manually: the job is admitted again
    world.to_the_end()
    assert len(world.takeovers) == 1
    assert world.status["phase"] == "Succeeded"


def test_a_chain_of_jobs_continues_the_attempt_numbers() -> None:
    first = resumed(interrupted(), second())
    first.to_the_end()
    third = resumed(first, second("third", "c0ffee00-0000-4000-8000-000000000000"))
    third.to_the_end()
    assert [note.job for note in third.takeovers] == ["second", "third"]
    assert third.created[0] == "third-prep-3"
    assert AttemptKey(Stage.TRAIN, 3) in third.attempts


def test_a_folder_taken_by_another_job_is_left_alone() -> None:
    first = World()
    first.to_the_end()
    taken = resumed(first, second())
    taken.reconcile()
    taken.reconcile()
    assert taken.takeovers
    ended = dict(first.status)
    first.takeovers = taken.takeovers
    first.edit(retry={"generation": 1, "fromStage": "Train"})
    first.reconcile()
    first.reconcile()
    assert first.status["phase"] == ended["phase"] == "Succeeded"
    assert first.status["summary"].startswith('Not retried: FineTuneJob "second" continues in this job')
    assert first.retry is None


def test_a_job_waits_for_a_folder_in_which_nothing_ran() -> None:
    world = World(job=second(folder="gs://artifacts/team-a/mistyped"))
    world.reconcile()
    world.reconcile()
    assert world.condition("Valid")["reason"] == "RunNotFound"
    assert world.created == []
    assert world.status["waiting"]["reason"] == "WaitingForInput"


NEIGHBOURS: list[tuple[Any, bool]] = [
    ({**job(), "status": {"resolved": {"runFolder": FOLDER}}}, False),
    (
        {
            **job(),
            "status": {
                "resolved": {"runFolder": FOLDER},
                "conditions": [{"type": "Finished", "status": "True"}],
            },
        },
        True,
    ),
    ({**job(), "status": {"resolved": {"runFolder": "gs://artifacts/team-a/another"}}}, True),
    # Its status was lost, or is not written yet.
    (job(), False),
    ({**job(), "status": None}, False),
    # Its takeover record exists, and its status was lost.
    (second("noted", "00000000-0000-4000-8000-000000000000"), False),
    (second(), True),
]


@pytest.mark.parametrize(("other", "free"), NEIGHBOURS)
def test_two_jobs_never_write_to_one_folder(other: Any, free: bool) -> None:
    if free:
        assert admit(second(), [profile()], neighbours=[other]).plan.resumes
        return
    with pytest.raises(Refused) as caught:
        admit(second(), [profile()], neighbours=[other])
    assert caught.value.reason == Reason.RUN_FOLDER_IN_USE
    assert other["metadata"]["name"] in caught.value.message


ELSEWHERE = "gs://artifacts/team-b/support-bot-0b5e3a52"
OPENED = profile(constraints={"uris": {"write": ["gs://artifacts/team-b/*"]}})


def of_team_b(other: Any) -> Any:
    other["metadata"] |= {"namespace": "team-b"}
    return other


def test_a_live_owner_in_another_namespace_keeps_its_folder() -> None:
    for status in ({"resolved": {"runFolder": ELSEWHERE}}, {}):
        owner = of_team_b({**job(), "status": status})
        with pytest.raises(Refused) as caught:
            admit(second(folder=ELSEWHERE), [OPENED], neighbours=[owner])
        assert caught.value.reason == Reason.RUN_FOLDER_IN_USE
        assert 'FineTuneJob "support-bot" in namespace team-b uses' in caught.value.message


def test_a_job_without_its_record_in_a_folder_taken_over_stops_writing() -> None:
    world = resumed(interrupted(), second())
    name = world.until(Stage.TRAIN)
    third = resumed(world, second("third", "c0ffee00-0000-4000-8000-000000000000"))
    third.takeovers = []
    third.reconcile()
    third.reconcile()
    assert [note.job for note in third.takeovers] == ["third"]
    world.takeovers = third.takeovers
    world.neighbours = [third.job]
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    assert world.condition("Valid")["reason"] == "RunFolderTaken"


@pytest.mark.parametrize("uid", ["00000000-1", "ffffffff-1"])
def test_a_folder_taken_over_without_attempts_is_taken_over_again(uid: str) -> None:
    idle = resumed(interrupted(), second("idle", uid))
    idle.reconcile()
    idle.reconcile()
    assert [note.job for note in idle.takeovers] == ["idle"]
    world = resumed(idle, second())
    # The reader lists takeover records by file name.
    world.takeovers.sort(key=lambda note: note.uid)
    world.to_the_end()
    assert [note.job for note in in_order(reversed(world.takeovers))] == ["idle", "second"]
    assert world.status["phase"] == "Succeeded"


def test_a_job_that_lost_its_folder_while_running_stops_writing() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    taken = resumed(world, second())
    taken.reconcile()
    taken.reconcile()
    world.takeovers = taken.takeovers
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    assert world.condition("Valid")["reason"] == "RunFolderTaken"


def test_a_folder_of_another_namespace_needs_permission_of_the_profile() -> None:
    elsewhere = "gs://artifacts/team-b/support-bot-0b5e3a52"
    with pytest.raises(Refused) as caught:
        admit(second(folder=elsewhere), [profile()])
    assert caught.value.reason == Reason.POLICY_VIOLATION
    opened = profile(constraints={"uris": {"write": ["gs://artifacts/team-b/*"]}})
    assert admit(second(folder=elsewhere), [opened]).plan.run_folder.uri == elsewhere
