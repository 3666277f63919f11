"""Time limits end attempts and are reported; a retry by the user runs once."""

import contextlib
import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from finetune_contract import ExitCode, Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts.attempt import MOST_ATTEMPTS, attempts_of
from finetune_operator.lifecycle.attempts.own_attempts import own_attempts
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.decision import Finish
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import ReadFailure, RetryRecord
from finetune_operator.rendering import attempt_of
from finetune_operator.rendering.labels import RESTART_LABEL
from tests.unit.lifecycle.world import Crash, World, job, profile
from tests.unit.lifecycle.writes import writes

NOT_CHARGED = {"preemption": 0, "infrastructure": 0, "user": 0}


def charged(world: World) -> dict[str, int]:
    return {name: world.status["attempts"][name] for name in NOT_CHARGED}


def wait_step_by_step(world: World, seconds: float) -> None:
    """Advances time from one requested reconcile to the next; deleted JobSets end when their pods receive SIGTERM."""
    end = world.now.timestamp() + seconds
    while world.now.timestamp() < end:
        world.wait(max(1.0, min(world.requeue_after or 30.0, end - world.now.timestamp())))
        world.reconcile()
        for name, jobset in list(world.jobsets.items()):
            if "deletionTimestamp" in jobset["metadata"]:
                world.stop(name)


# --- deadlines


def test_running_time_covers_all_attempts_and_excludes_suspension() -> None:
    world = World()
    world.edit(activeDeadlineSeconds=600)
    name = world.until(Stage.TRAIN)
    world.wait(400)
    world.train(name, 40)
    world.edit(suspend=True)
    world.reconcile()
    world.wait(5)
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Suspended"
    world.wait(100_000)
    world.edit(suspend=False)
    world.reconcile()
    (name,) = world.live()
    world.run(name)
    world.reconcile()
    assert world.status["phase"] == "Running"
    wait_step_by_step(world, 650)
    assert world.live() == []
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "DeadlineExceeded"
    assert world.status["failure"]["class"] == "User"
    assert charged(world) == NOT_CHARGED


def test_a_job_that_finishes_before_its_deadline_succeeds() -> None:
    world = World()
    world.edit(activeDeadlineSeconds=10_000)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_the_time_of_an_attempt_without_a_record_is_kept_with_its_result() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.wait(120)
    world.kill(name, 134)
    world.reconcile()
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    assert record.seconds == 120


# --- training that stalls


@pytest.mark.parametrize(
    ("stepped", "policy", "reason"),
    [
        (True, {"noStepSeconds": 300}, "Hung"),
        (False, {"startupSeconds": 300}, "StartupTimeout"),
    ],
)
def test_training_that_stalls_is_restarted_and_charged(
    stepped: bool, policy: dict[str, int], reason: str
) -> None:
    world = World()
    world.edit(hangPolicy=policy)
    name = world.until(Stage.TRAIN)
    if stepped:
        world.train(name, 20)
    wait_step_by_step(world, 280)
    assert world.live() == [name]
    wait_step_by_step(world, 60)
    world.reconcile()
    reported = world.status["attempts"]["history"][-1]
    assert (reported["reason"], reported["class"]) == (reason, "Infrastructure")
    wait_step_by_step(world, 10)
    assert world.live() == ["support-bot-train-2"]
    world.to_the_end()
    assert charged(world)["infrastructure"] == 1
    assert world.status["phase"] == "Succeeded"


def test_a_step_before_the_jobset_was_created_shows_nothing_about_its_training() -> None:
    """A clock or a file that is wrong does not end a training that has just started."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 20)
    assert world.progress is not None
    world.progress = world.progress.model_copy(update={"updated": datetime(1, 1, 1, tzinfo=UTC)})
    wait_step_by_step(world, 1700)
    assert world.live() == [name]
    wait_step_by_step(world, 200)
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == "StartupTimeout"


@pytest.mark.parametrize(
    ("stage", "stepped", "limit"),
    [
        (Stage.TRAIN, True, "noStepSeconds"),
        (Stage.TRAIN, False, "startupSeconds"),
        (Stage.CONVERT, False, "stageSeconds"),
        (Stage.EVALUATE, False, "stageSeconds"),
    ],
)
def test_a_hang_is_noticed_in_time_with_any_number_of_jobs(stage: Stage, stepped: bool, limit: str) -> None:
    world = World(live_jobs=1_000_000)
    world.edit(hangPolicy={limit: 300})
    name = world.until(stage)
    world.run(name)
    if stepped:
        world.train(name, 20)
    world.wait(270)
    world.reconcile()
    assert world.live() == [name]
    assert world.requeue_after == pytest.approx(31, abs=2)
    world.wait(world.requeue_after or 0)
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]


def test_unreadable_progress_does_not_shorten_the_requeue_time() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.run(name)
    world.progress_unknown = ReadFailure(reason=Reason.STORE_UNAVAILABLE, message="not JSON")
    world.wait(100_000)
    world.reconcile()
    assert world.live() == [name]
    assert world.requeue_after == 10


def test_the_exit_of_a_hung_trainer_does_not_make_it_a_preemption() -> None:
    world = World()
    world.edit(hangPolicy={"noStepSeconds": 60})
    name = world.until(Stage.TRAIN)
    world.train(name, 20)
    lingering = world.jobsets[name]
    world.wait(61)
    world._collect = lambda name: None  # type: ignore[method-assign]  # its pods use their grace period
    world.reconcile()
    assert "deletionTimestamp" in lingering["metadata"]
    del world.__dict__["_collect"]
    world.stop(name)
    world.reconcile()
    assert world.status["attempts"]["history"][-1]["reason"] == "Hung"


def test_a_cpu_stage_has_no_hang_timeout() -> None:
    world = World()
    world.edit(hangPolicy={"startupSeconds": 60})
    name = world.until(Stage.CONVERT)
    wait_step_by_step(world, 600)
    assert world.live() == [name]


# --- capacity


def flavors(*capacities: str) -> list[dict[str, Any]]:
    return [
        {
            "name": capacity.lower(),
            "capacity": capacity,
            "accelerator": "tpu-v6e-slice",
            "topologies": ["2x2"],
            "chipsPerHost": 4,
        }
        for capacity in capacities
    ]


def waiting(world: World, name: str) -> None:
    world.schedule(name)
    world.reconcile()


def until_placed(world: World, stage: Stage) -> str:
    """The stage's JobSet exists, and its pods find no node."""
    while True:
        world.reconcile()
        for name in world.live():
            if world.key_of(name).stage is stage:
                waiting(world, name)
                return name
            world.succeed(name)


def test_without_nodes_each_flavor_is_tried_and_then_the_job_fails() -> None:
    world = World(
        job=job(resources={"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}),
        profiles=[profile(flavors=flavors("OnDemand", "Spot"))],
    )
    world.edit(preRunningDeadlineSeconds=600)
    name = until_placed(world, Stage.TRAIN)
    assert world.status["resolved"]["resources"]["capacity"] == "Spot"
    wait_step_by_step(world, 570)
    assert world.live() == [name]
    wait_step_by_step(world, 100)
    (second,) = world.live()
    assert second == "support-bot-train-2"
    assert world.status["resolved"]["resources"]["capacity"] == "OnDemand"
    waiting(world, second)
    wait_step_by_step(world, 700)
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "NoCapacity"
    assert "No other flavor is left" in world.status["failure"]["message"]
    assert charged(world) == NOT_CHARGED


def test_after_a_run_on_the_second_flavor_the_first_is_tried_again() -> None:
    world = World(
        job=job(resources={"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}),
        profiles=[profile(flavors=flavors("OnDemand", "Spot"))],
    )
    world.edit(preRunningDeadlineSeconds=600)
    until_placed(world, Stage.TRAIN)
    wait_step_by_step(world, 700)
    (second,) = world.live()
    world.run(second)
    world.reconcile()
    assert world.status["phase"] == "Running"
    world.fail(second, 69)
    wait_step_by_step(world, 30)
    assert world.live() == ["support-bot-train-3"]
    assert world.status["resolved"]["resources"]["capacity"] == "Spot"


# --- children of a finished job


@pytest.mark.parametrize("ttl", [0, 3600])
def test_children_of_a_finished_job_are_deleted_after_the_ttl(ttl: int) -> None:
    world = World()
    world.edit(childTTLSecondsAfterFinished=ttl)
    world.to_the_end()
    world.wait(1)
    decision = world.reconcile()
    if ttl:
        assert world.jobsets
        assert decision.requeue_after == pytest.approx(3599)
        world.wait(3599)
        world.reconcile()
    assert not world.jobsets
    status = world.status
    world.wait(10)
    assert world.reconcile().requeue_after is None
    assert world.status == status


def test_a_job_that_ends_is_reconciled_when_the_ttl_has_passed() -> None:
    """No event follows the end."""
    world = World()
    world.edit(childTTLSecondsAfterFinished=60)
    world.succeed(world.until(Stage.EXPORT))
    world.reconcile()
    assert world.status["phase"] == "Succeeded"
    assert world.requeue_after == 60


def test_children_stay_without_a_ttl() -> None:
    world = World()
    world.to_the_end()
    world.wait(10**8)
    world.reconcile()
    assert len(world.jobsets) == len(Stage)


# --- manual retries


def failed() -> World:
    world = World()
    world.fail(world.until(Stage.TRAIN), ExitCode.DIVERGED, "Diverged")
    world.reconcile()
    assert world.status["phase"] == "Failed"
    return world


def test_a_retry_continues_from_the_failed_stage_with_new_budgets() -> None:
    world = failed()
    world.edit(retry={"generation": 1})
    world.reconcile()
    world.reconcile()
    assert world.live() == ["support-bot-train-2"]
    assert world.status["phase"] in ("Provisioning", "Recovering")
    assert world.condition("Finished")["status"] == "False"
    assert "completionTime" not in world.status
    assert world.status["retryGeneration"] == 1
    assert charged(world) == NOT_CHARGED
    assert world.status["attempts"]["total"] == 4
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert "failure" not in world.status


def test_the_end_after_a_retry_is_recorded_again() -> None:
    world = failed()
    world.edit(retry={"generation": 1})
    world.fail(world.until(Stage.TRAIN), ExitCode.DIVERGED, "Diverged")
    actions = [world.reconcile().action for _ in range(2)]
    assert [isinstance(each, Finish) and each.ends_now for each in actions] == [True, False]


def test_a_retry_acts_once() -> None:
    world = failed()
    world.edit(retry={"generation": 1})
    world.reconcile()
    world.reconcile()
    world.fail(world.until(Stage.TRAIN), ExitCode.DIVERGED, "Diverged")
    for _ in range(5):
        world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.live() == []
    world.edit(retry={"generation": 2})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


@pytest.mark.parametrize("crash_after", [0, 1, 2, 3])
def test_a_retry_survives_a_crash_between_any_two_writes(crash_after: int) -> None:
    world = failed()
    world.edit(retry={"generation": 1})
    for _ in range(2):
        with contextlib.suppress(Crash):
            world.reconcile(crash_after=crash_after)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.created.count("support-bot-train-2") == 1
    assert "support-bot-train-3" not in world.created


def test_a_retry_repeats_the_named_stage_and_all_later_ones() -> None:
    world = World()
    world.to_the_end()
    world.edit(retry={"generation": 1, "fromStage": "Evaluate"})
    world.reconcile()
    world.to_the_end()
    again = [name for name in world.created if name.endswith("-2")]
    assert again == ["support-bot-eval-2", "support-bot-export-2"]
    assert world.status["phase"] == "Succeeded"


def test_a_job_that_succeeded_has_nothing_to_retry() -> None:
    world = World()
    world.to_the_end()
    before = list(world.created)
    world.edit(retry={"generation": 3})
    for _ in range(3):
        world.reconcile()
    assert world.created == before
    assert world.status["retryGeneration"] == 3
    assert world.status["phase"] == "Succeeded"


def test_the_retry_generation_at_creation_changes_nothing() -> None:
    world = World(job=job(retry={"generation": 7}))
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert all(name.endswith("-1") for name in world.created)


def renumbered(world: World, name: str, number: int) -> str:
    """Renames the JobSet as if it were the stage's attempt ``number``."""
    old = world.jobsets.pop(name)
    key = attempt_of(old)
    assert key is not None
    new = f"{name.rpartition('-')[0]}-{number}"
    old["metadata"]["name"] = new
    old["metadata"]["labels"]["tpu-finetune.dev/attempt"] = str(number)
    world.jobsets[new] = old
    world.pods.clear()
    world.attempts[AttemptKey(key[0], number)] = world.attempts.pop(AttemptKey(key[0], 1))
    return new


@pytest.mark.parametrize("missing", [True, False], ids=["an input is missing", "it fails"])
def test_a_job_fails_after_the_last_attempt_number_and_is_not_retried(missing: bool) -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    code = ExitCode.INPUT_MISSING if missing else ExitCode.BAD_DATA
    world.fail(name, code, "DataMissing", "There is no data yet.")
    renumbered(world, name, 999)
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "TooManyAttempts"
    assert "There is no data yet." in world.status["failure"]["message"]
    assert "another name" in world.status["failure"]["suggestion"]
    world.edit(retry={"generation": 1})
    for _ in range(3):
        world.reconcile()
    assert world.retry is None
    assert world.status["phase"] == "Failed"
    assert world.status["summary"].startswith("Not retried: Preflight has had JobSet number 999")
    assert world.created == [name]


def test_a_stage_is_retried_though_an_earlier_one_has_no_number_left() -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.succeed(name)
    renumbered(world, name, 999)
    world.fail(world.until(Stage.TRAIN), ExitCode.DIVERGED, "Diverged")
    world.reconcile()
    world.edit(retry={"generation": 1, "fromStage": "Preflight"})
    world.reconcile()
    assert world.status["summary"].startswith("Not retried: Preflight")
    world.edit(retry={"generation": 1})
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_an_impossible_retry_leaves_the_running_stage_alone() -> None:
    world = World()
    name = world.until(Stage.PREFLIGHT)
    world.succeed(name)
    renumbered(world, name, 999)
    train = world.until(Stage.TRAIN)
    world.edit(retry={"generation": 1, "fromStage": "Preflight"})
    for _ in range(3):
        world.reconcile()
    assert world.live() == [train]
    assert world.retry is None
    assert world.status["summary"].startswith("Not retried: ")
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_recorded_retry_does_not_start_a_stage_without_numbers() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.fail(name, ExitCode.DIVERGED, "Diverged")
    renumbered(world, name, 999)
    world.reconcile()
    world.retry = RetryRecord(generation=1, from_stage=Stage.TRAIN, first={Stage.TRAIN: 1000})
    world.edit(retry={"generation": 1})
    for _ in range(3):
        world.reconcile()
    assert world.live() == []
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "TooManyAttempts"
    assert "another name" in world.status["failure"]["suggestion"]


def test_a_missing_input_is_retried_for_weeks() -> None:
    world = World()
    waited = []
    for _ in range(12):
        world.fail(world.until(Stage.PREFLIGHT), ExitCode.INPUT_MISSING, "DataMissing")
        world.reconcile()
        waited.append(world.requeue_after)
        world.wait(world.requeue_after or 0)
    assert waited[0] == 15
    assert waited[-1] == 1800


def test_no_retry_starts_during_an_outage_of_the_store() -> None:
    world = failed()
    world.unreadable = "gs://artifacts: timed out"
    world.edit(retry={"generation": 1})
    world.reconcile()
    assert world.live() == []
    world.unreadable = None
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_the_hang_timeout_of_a_run_after_an_eviction_starts_anew() -> None:
    world = World()
    world.edit(hangPolicy={"noStepSeconds": 300})
    name = world.until(Stage.TRAIN)
    world.train(name, 20)
    # Kueue revokes the quota and assigns it again hours later: the same attempt, with new pods.
    world.hold(name, held=True)
    world.wait(10_000)
    world.hold(name, held=False)
    world.run(name)
    world.reconcile()
    assert world.live() == [name]
    assert world.status["phase"] == "Running"
    wait_step_by_step(world, 200)
    assert world.live() == [name]


def test_a_restart_label_on_a_jobset_adds_no_attempts() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    before = len(attempts_of(world.observe()))
    world.jobsets[name]["metadata"]["labels"][RESTART_LABEL] = "999"
    assert len(attempts_of(world.observe())) == before


def test_an_excessive_restart_count_is_bounded_and_ends_the_stage() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    for number in range(2, 30):
        made = copy.deepcopy(world.jobsets[name])
        made["metadata"] |= {"name": f"support-bot-train-{number}", "uid": f"u{number}"}
        made["metadata"]["labels"]["tpu-finetune.dev/attempt"] = str(number)
        made["status"] = {"restarts": 2**31 - 1}
        world.jobsets[made["metadata"]["name"]] = made
    found = attempts_of(world.observe())
    assert len(found) == MOST_ATTEMPTS
    assert {each.key.number for each in found if each.live} == set(range(1, 30))
    status = decide(world.observe()).status.to_document()
    readable = next(each for each in status["conditions"] if each["type"] == "RunFolderReadable")
    assert "more than 1000 attempts" in readable["message"]


def test_a_jobset_that_has_restarted_too_often_ends_its_stage() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.jobsets[name]["status"] = {"restarts": 2**31 - 1}
    decision = decide(world.observe())
    assert [each.name for each in writes(decision).deletions] == [name]
    world.reconcile()
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "RetriesExhausted"
    assert "the limit for restarts of a JobSet" in str(world.status["failure"])


def test_restarts_known_only_from_a_listing_are_bounded() -> None:
    listed = [AttemptKey(Stage.TRAIN, 1, restart) for restart in range(2000)]
    ended = {"stage": "Train", "attempt": 1, "jobSet": "x-train-1", "reason": "Hang"}
    reported = {"attempts": {"total": 1, "history": [ended]}}
    own = own_attempts(listed, (), job=Job.parse(job() | {"status": reported}), jobsets=(), pods=())
    assert max(key.restart for key in own) == 999


@pytest.mark.parametrize(
    ("limit", "chips"),
    [
        ("4", 4),
        (4, 4),
        ("1k", 1000),
        ("4000m", 4),
        ("1Ki", 1024),
        ("4e0", 4),
        ("1E", 10**6),
        ("1Ei", 10**6),
        ("9" * 30, 10**6),
        ("four", None),
        ("9" * 400, None),
        ("1e999999", None),
        ("-1", None),
    ],
)
def test_any_quantity_of_chips_is_parsed_or_unknown(limit: object, chips: int | None) -> None:
    world = World()
    jobset = world.jobsets[world.until(Stage.TRAIN)]
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    for container in pod["containers"]:
        container["resources"] = {}
    pod["containers"][0]["resources"] = {"limits": {"google.com/tpu": limit}}
    assert JobSet.parse(jobset).chips == chips
    world.wait(600)
    assert decide(world.observe()).fault is None


def test_a_jobset_without_jobs_raises_nothing() -> None:
    world = World()
    world.jobsets[world.until(Stage.TRAIN)]["spec"].pop("replicatedJobs")
    world.wait(600)
    world.edit(suspend=True)
    assert len(writes(decide(world.observe())).deletions) == 1
