"""A job that goes on in the run folder of another one: once, from where that was, and never two in one folder."""

from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle import AttemptKey
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
    """A job that was deleted while it trained; what is left is its run folder."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, step)
    world.jobsets.clear()
    world.pods.clear()
    return world


def resumed(before: World, wanted: Any) -> World:
    """Another job, on the same storage."""
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


def test_every_stage_runs_anew_under_the_next_numbers_and_training_goes_on() -> None:
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
    # What the job before has used up or done is not this one's.
    assert world.status["attempts"]["total"] == len(world.created)
    assert next(each for each in world.status["stages"] if each["name"] == "Train")["attempt"] == 1


def test_a_folder_that_a_third_namespaces_job_uses_is_taken_over_when_that_job_has_ended() -> None:
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


def test_a_job_whose_note_was_deleted_keeps_its_attempts_and_writes_the_note_again() -> None:
    world = resumed(interrupted(), second())
    world.until(Stage.TRAIN)
    noted = list(world.takeovers)
    world.takeovers.clear()
    world.reconcile()
    world.reconcile()
    assert [note.uid for note in world.takeovers] == [UID]
    assert world.takeovers[0].first[Stage.TRAIN] == noted[0].first[Stage.TRAIN] == 2
    assert world.live() == ["second-train-2"]
    assert world.status["phase"] == "Running"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.created == ["second-prep-2", "second-train-2", "second-eval-1", "second-export-1"]


def third() -> Any:
    return second("third", "7e570000-0000-4000-8000-000000000000")


def test_a_job_whose_note_alone_was_deleted_is_not_taken_for_followed_by_the_job_before() -> None:
    world = resumed(interrupted(), second())
    world.until(Stage.TRAIN)
    world.jobsets.clear()
    world.pods.clear()
    world = resumed(world, third())
    name = world.until(Stage.TRAIN)
    assert [note.job for note in world.takeovers] == ["second", "third"]
    noted = world.takeovers.pop()
    world.reconcile()
    world.reconcile()
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]
    assert world.takeovers[-1].first[Stage.TRAIN] == noted.first[Stage.TRAIN]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_attempts_of_the_job_before_are_never_taken_for_ones_of_a_job_whose_note_was_deleted() -> None:
    """Also where the job has had so many that its status names the newest alone."""
    world = resumed(interrupted(), second(recovery={"maxInfrastructureRetries": 20}))
    name = world.until(Stage.TRAIN)
    for times in range(12):
        world.train(name, 40 + times)
        world.save(name)
        world.fail(name, 69)
        world.reconcile()
        name = world.until(Stage.TRAIN)
    counted, noted = dict(world.status["attempts"]), world.takeovers[-1]
    assert len(counted["history"]) == 10
    world.takeovers.clear()
    world.reconcile()
    world.reconcile()
    for stage in (Stage.PREFLIGHT, Stage.TRAIN):
        assert world.takeovers[-1].first[stage] >= noted.first[stage] > 1
    assert world.live() == [name]
    assert world.status["attempts"]["infrastructure"] == counted["infrastructure"]


def test_a_folder_of_a_namespace_that_is_not_served_is_not_taken_over() -> None:
    world = resumed(interrupted(), second())
    world.unserved = "team-c"
    world.reconcile()
    world.reconcile()
    assert (world.takeovers, world.created) == ([], [])
    assert world.condition("Valid")["reason"] == "RunFolderInUse"
    assert "does not serve" in world.condition("Valid")["message"]


def test_a_folder_in_which_a_stage_has_no_number_left_is_not_gone_on_in() -> None:
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


def test_an_operator_that_dies_after_the_note_goes_on_from_it() -> None:
    world = resumed(interrupted(), second())
    world.reconcile()
    world.reconcile()
    world.config_map = None  # deleted by hand: the job is admitted again
    world.to_the_end()
    assert len(world.takeovers) == 1
    assert world.status["phase"] == "Succeeded"


def test_a_chain_of_jobs_counts_on() -> None:
    first = resumed(interrupted(), second())
    first.to_the_end()
    third = resumed(first, second("third", "c0ffee00-0000-4000-8000-000000000000"))
    third.to_the_end()
    assert [note.job for note in third.takeovers] == ["second", "third"]
    assert third.created[0] == "third-prep-3"
    assert AttemptKey(Stage.TRAIN, 3) in third.attempts


def test_a_folder_that_another_job_has_taken_is_left_to_it() -> None:
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
    assert first.status["summary"].startswith('Not retried: FineTuneJob "second" goes on in this job')
    assert first.retry is None


def test_a_folder_in_which_nothing_ran_is_waited_for() -> None:
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
    # A note of it lies there, and its status was lost.
    (second("noted", "00000000-0000-4000-8000-000000000000"), False),
    (second(), True),
]


@pytest.mark.parametrize(("other", "free"), NEIGHBOURS)
def test_no_two_jobs_write_into_one_folder(other: Any, free: bool) -> None:
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


def test_a_job_whose_note_is_gone_from_the_folder_that_another_one_has_taken_stops_writing() -> None:
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
def test_a_folder_that_a_job_took_and_ran_nothing_in_is_taken_over_like_any_other(uid: str) -> None:
    idle = resumed(interrupted(), second("idle", uid))
    idle.reconcile()
    idle.reconcile()
    assert [note.job for note in idle.takeovers] == ["idle"]
    world = resumed(idle, second())
    # As they are listed: by the names of their files.
    world.takeovers.sort(key=lambda note: note.uid)
    world.to_the_end()
    assert [note.job for note in in_order(reversed(world.takeovers))] == ["idle", "second"]
    assert world.status["phase"] == "Succeeded"


def test_a_job_that_lost_its_folder_while_it_ran_stops_writing() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    taken = resumed(world, second())
    taken.reconcile()
    taken.reconcile()
    world.takeovers = taken.takeovers
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    assert world.condition("Valid")["reason"] == "RunFolderTaken"


def test_a_folder_of_another_namespace_is_refused_but_where_the_profile_opens_it() -> None:
    elsewhere = "gs://artifacts/team-b/support-bot-0b5e3a52"
    with pytest.raises(Refused) as caught:
        admit(second(folder=elsewhere), [profile()])
    assert caught.value.reason == Reason.POLICY_VIOLATION
    opened = profile(constraints={"uris": {"write": ["gs://artifacts/team-b/*"]}})
    assert admit(second(folder=elsewhere), [opened]).plan.run_folder.uri == elsewhere
