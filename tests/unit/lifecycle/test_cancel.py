"""``spec.cancel``: from every state the job saves, frees its slice and ends for good."""

from collections.abc import Callable

import pytest

from finetune_contract import ExitCode, Stage
from finetune_operator.api import FineTuneJobStatus, Reason
from finetune_operator.lifecycle.attempts.pending_records import pending_records
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.observation import ReadFailure
from finetune_operator.planning.requests import MAX_ATTEMPT
from tests.unit.lifecycle import states
from tests.unit.lifecycle.test_limits import renumbered
from tests.unit.lifecycle.test_takeover import FOLDER, UID, interrupted, resumed, second
from tests.unit.lifecycle.world import Crash, World, job, profile

PRICED = profile(
    currency="USD",
    flavors=[
        {
            "name": "on-demand",
            "capacity": "OnDemand",
            "accelerator": "tpu-v6e-slice",
            "topologies": ["2x2"],
            "chipsPerHost": 4,
            "chipHourPrice": 2.5,
        }
    ],
)


def is_stopped(world: World) -> bool:
    return all("deletionTimestamp" in world.jobsets[name]["metadata"] for name in world.live())


def cancelled(world: World) -> World:
    """Cancels the job and lets it end: whatever runs saves, and hours pass in which nothing may start."""
    world.edit(cancel=True)
    for _ in range(4):
        world.reconcile()
        for name in world.live():
            if is_stopped(world):
                world.stop(name) if world.pods_of(name) else world.lose(name)
        world.wait(3600)
    return world


def assert_ended_as_cancelled(world: World, stage: str | None) -> None:
    status = world.status
    FineTuneJobStatus.model_validate(status, by_alias=True, by_name=False)
    assert (status["phase"], world.finished) == ("Failed", True)
    failure = status["failure"]
    assert (failure["class"], failure["reason"], failure.get("stage")) == ("User", "Cancelled", stage)
    assert (world.condition("Succeeded")["reason"], world.condition("Finished")["reason"]) == (
        "Cancelled",
    ) * 2
    assert world.live() == []
    assert "waiting" not in status
    assert status.get("attempts", {}).get("user", 0) == 0


def ends_of(world: World, stage: str) -> list[str]:
    history = world.status["attempts"]["history"]
    return [each["reason"] for each in history if each["stage"] == stage]


# --- a stage runs


@pytest.mark.parametrize("stage", list(Stage))
def test_a_running_stage_saves_and_stops_and_then_the_job_ends(stage: Stage) -> None:
    world = World()
    name = world.until(stage)
    world.edit(cancel=True)
    world.reconcile()
    assert is_stopped(world)
    key = world.key_of(name)
    recorded = world.attempts[key].failure
    assert recorded is not None
    assert (recorded.reason, recorded.code) == ("Cancelled", ExitCode.STOPPED)
    assert not world.finished
    assert world.condition("Reconciling")["reason"] == "Cancelling"
    assert world.status["summary"].startswith(f"Cancelling: {stage} is saving")
    created = list(world.created)
    world.stop(name)
    world.reconcile()
    assert_ended_as_cancelled(world, stage)
    stages = {each["name"]: each["phase"] for each in world.status["stages"]}
    assert [stages[each] for each in Stage] == [
        "Succeeded" if each.order < stage.order else "Failed" if each is stage else "Skipped"
        for each in Stage
    ]
    attempts = world.status["attempts"]
    assert (attempts["preemption"], attempts["infrastructure"], attempts["user"]) == (0, 0, 0)
    assert (attempts["history"][-1]["reason"], attempts["history"][-1].get("class")) == ("Cancelled", None)
    world.wait(86400)
    world.reconcile()
    assert world.created == created


def test_the_summary_says_where_training_stopped_and_how_to_continue() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 33)
    cancelled(world)
    assert world.status["summary"].startswith("Cancelled in Train at step 33 of 100. To continue it, ")
    assert "spec.resumeFrom.runFolder" in world.status["failure"]["suggestion"]
    assert [each["step"] for each in world.status["checkpoints"]] == [30]


def test_usage_counts_until_the_end_of_the_grace_period() -> None:
    world = World(profiles=[PRICED])
    name = world.until(Stage.TRAIN)
    world.wait(1800)
    world.edit(cancel=True)
    world.reconcile()
    world.wait(60)
    world.stop(name)
    world.reconcile()
    assert_ended_as_cancelled(world, "Train")
    hours = 4 * 1860 / 3600
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(hours, abs=1e-5)
    assert float(world.status["cost"]["amount"]) == pytest.approx(hours * 2.5, abs=1e-5)
    used = world.status["cost"], world.status["activeTime"]
    world.jobsets.clear()
    world.wait(3600)
    world.reconcile()
    assert (world.status["cost"], world.status["activeTime"]) == used


def test_a_lost_status_is_derived_again_from_the_records() -> None:
    world = cancelled(states.at(Stage.TRAIN))
    world.job["status"] = {"observedGeneration": -1}
    world.reconcile()
    assert_ended_as_cancelled(world, "Train")
    assert world.status["attempts"]["history"][-1]["reason"] == "Cancelled"


def test_a_missing_jobset_without_a_record_was_deleted_on_purpose() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(cancel=True)
    world.lose(name)
    world.reconcile()
    assert_ended_as_cancelled(world, "Train")
    assert world.status["attempts"]["history"][-1]["reason"] == "Cancelled"
    assert world.status["attempts"]["infrastructure"] == 0


@pytest.mark.parametrize("writes_before", range(6))
def test_a_crash_after_any_write_loses_nothing(writes_before: int) -> None:
    """The operator crashes after so many writes of each reconcile, and then continues."""
    world = World()
    name = world.until(Stage.TRAIN)
    world.train(name, 33)
    world.edit(cancel=True)
    for _ in range(2):
        try:
            world.reconcile(crash_after=writes_before)
        except Crash:
            world.reconcile()
        if name in world.jobsets and world.pods_of(name):
            world.stop(name)
    for _ in range(3):
        world.reconcile()
    assert_ended_as_cancelled(world, "Train")
    assert ends_of(world, "Train") == ["Cancelled"]
    assert world.untold == []


# --- nothing runs, or not yet


def _in_queue() -> World:
    world = World(profiles=[profile(queue={"localQueue": "team-tpu"})])
    for stage in (Stage.PREFLIGHT, Stage.CONVERT):
        world.succeed(world.until(stage))
    world.reconcile()
    (name,) = world.live()
    world.workload(name, ("QuotaReserved", "False", "Pending", "4 more needed"))
    world.reconcile()
    assert world.status["phase"] == "Queued"
    return world


def _between_stages() -> World:
    world = states.at(Stage.CONVERT)
    world.succeed("support-bot-conv-1")
    return world


def _suspended(*, born: bool = False) -> World:
    if born:
        return states.born_suspended()
    world = states.at(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    world.stop("support-bot-train-1")
    world.reconcile()
    assert world.status["phase"] == "Suspended"
    return world


def _suspending() -> World:
    world = states.at(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    return world


def _past_deadline() -> World:
    world = states.at(Stage.TRAIN)
    world.edit(activeDeadlineSeconds=60)
    world.wait(61)
    return world


def _out_of_budget() -> World:
    world = states.at(Stage.TRAIN)
    world.edit(budget={"maxChipHours": 1, "onExhausted": "Suspend"})
    world.wait(3600)
    world.reconcile()
    world.stop("support-bot-train-1")
    world.reconcile()
    assert world.condition("Suspended")["reason"] == "BudgetExhausted"
    return world


def _last_attempt() -> World:
    world = states.at(Stage.TRAIN)
    world.run(renumbered(world, "support-bot-train-1", MAX_ATTEMPT))
    return world


WAITS: dict[str, tuple[Callable[[], World], str]] = {
    "admitted": (lambda: _reached("admitted"), "Preflight"),
    "waits for an input": (lambda: _reached("waiting for input"), "Preflight"),
    "no node is free": (lambda: _reached("provisioning"), "Train"),
    "in the queue": (_in_queue, "Train"),
    "can never be admitted to the queue": (lambda: _reached("can never be admitted"), "Train"),
    "between two stages": (_between_stages, "Train"),
    "between two attempts": (lambda: _reached("waiting to try again"), "Train"),
    "being restarted": (lambda: _reached("recovering"), "Train"),
    "suspending": (_suspending, "Train"),
    "suspended": (_suspended, "Train"),
    "born suspended": (lambda: _suspended(born=True), "Preflight"),
    "past its deadline": (_past_deadline, "Train"),
    "out of budget": (_out_of_budget, "Train"),
    "an edit refused between stages": (lambda: _reached("an edit refused between stages"), "Evaluate"),
    "in its last attempt": (_last_attempt, "Train"),
}


def _reached(state: str) -> World:
    return states.STATES[state][0]()


@pytest.mark.parametrize("moment", WAITS)
def test_a_waiting_job_ends_and_starts_nothing(moment: str) -> None:
    make, stage = WAITS[moment]
    world = make()
    created = list(world.created)
    cancelled(world)
    assert_ended_as_cancelled(world, stage)
    assert world.created == created


def test_a_job_of_which_nothing_runs_ends_in_one_reconcile() -> None:
    world = _suspended()
    world.edit(cancel=True)
    world.reconcile()
    assert_ended_as_cancelled(world, "Train")


def _taken() -> World:
    """The run folder is still in use by the job that began it."""
    world = resumed(interrupted(), second())
    user = job(resumeFrom={"runFolder": FOLDER})
    user["metadata"] |= {"name": "cee", "namespace": "team-c", "uid": "0c1c1c1c-0"}
    user["status"] = {"resolved": {"runFolder": FOLDER}}
    world.neighbours = [user]
    world.reconcile()
    world.reconcile()
    assert world.condition("Valid")["reason"] == "RunFolderInUse"
    return world


def _unreadable_from_the_start() -> World:
    world = World(unreadable="gs://artifacts: 403")
    for _ in range(3):
        world.reconcile()
    assert world.created == []
    return world


UNSTARTED: dict[str, Callable[[], World]] = {
    "born cancelled": World,
    "no profile": states.no_profile,
    "against the rules": lambda: _reached("against the rules"),
    "invalid": lambda: World(job=job(method={"type": "SFT", "dpo": {"beta": 1}})),
    "waits for a run folder": _taken,
    "is to take over a run folder": lambda: resumed(interrupted(), second()),
    "the store is away": _unreadable_from_the_start,
}


@pytest.mark.parametrize("moment", UNSTARTED)
def test_a_job_that_never_started_ends_at_once(moment: str) -> None:
    world = UNSTARTED[moment]()
    planned = world.config_map
    world.edit(cancel=True)
    world.reconcile()
    assert_ended_as_cancelled(world, None)
    assert (world.created, world.takeovers, world.config_map) == ([], [], planned)
    assert world.status["summary"].startswith("The job was cancelled before it started.")
    assert world.condition("Valid")["status"] == "Unknown"


# --- the end may come first


@pytest.mark.parametrize("make", [states.succeeded, states.failed, states.planned])
def test_a_job_that_has_ended_stays_as_it_is(make: Callable[[], World]) -> None:
    world = make()
    before = world.status
    world.edit(cancel=True)
    world.reconcile()
    for kept in ("phase", "summary", "completionTime", "failure"):
        assert world.status.get(kept) == before.get(kept)
    assert world.status["observedGeneration"] == 2


def test_a_job_whose_last_stage_has_succeeded_succeeds() -> None:
    world = World()
    name = world.until(Stage.EXPORT)
    world.write_success(name)
    world.edit(cancel=True)
    world.reconcile()
    world.end_pods(name, 0)
    world.end_jobset(name, "Completed")
    world.reconcile()
    assert world.status["phase"] == "Succeeded"


def test_a_job_that_fails_before_the_signal_reports_its_own_failure() -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.edit(cancel=True)
    world.reconcile()
    world.fail(name, ExitCode.DIVERGED, "Diverged", "the loss is NaN")
    world.reconcile()
    assert world.status["failure"]["reason"] == "Diverged"


@pytest.mark.parametrize("stage", [None, "Train"])
def test_a_retry_of_a_cancelled_job_has_no_effect(stage: str | None) -> None:
    world = cancelled(states.at(Stage.TRAIN))
    created = list(world.created)
    world.edit(retry={"generation": 1, **({"fromStage": stage} if stage else {})})
    for _ in range(3):
        world.reconcile()
    assert_ended_as_cancelled(world, "Train")
    assert world.created == created
    assert world.retry is None
    assert world.status["summary"].startswith("Not retried: spec.cancel is true, which cannot be taken back.")


def test_a_retry_and_a_cancellation_at_once_end_the_job() -> None:
    world = states.at(Stage.TRAIN)
    world.edit(retry={"generation": 1})
    cancelled(world)
    assert_ended_as_cancelled(world, "Train")
    assert world.retry is None
    assert world.status["retryGeneration"] == 1
    assert world.status["summary"].startswith("Cancelled in Train")


def test_a_retried_job_can_be_cancelled_before_its_status_shows_the_retry() -> None:
    world = states.failed()
    world.edit(retry={"generation": 1})
    world.reconcile()
    assert world.retry is not None
    created = list(world.created)
    cancelled(world)
    assert_ended_as_cancelled(world, "Train")
    assert world.created == created


# --- the run folder or the plan is missing


@pytest.mark.parametrize(
    "why",
    ["gs://artifacts: timed out", ReadFailure(reason=Reason.RECORD_MALFORMED, message="x is no Retry.")],
)
def test_it_stops_at_once_and_ends_when_the_run_folder_can_be_read(why: str | ReadFailure) -> None:
    world = states.at(Stage.TRAIN)
    world.unreadable = why
    world.reconcile()
    world.edit(cancel=True)
    world.reconcile()
    assert is_stopped(world)
    assert [each.reason for _, each in pending_records(read_status(world.status))] == ["Cancelled"]
    assert world.condition("Reconciling")["reason"] == "Cancelling"
    world.stop("support-bot-train-1")
    for _ in range(3):
        world.wait(3600)
        world.reconcile()
    assert not world.finished
    assert world.status["phase"] == "Suspended"
    assert "ends when its run folder can be read" in world.status["summary"]
    world.unreadable = None
    world.reconcile()
    assert_ended_as_cancelled(world, "Train")
    assert ends_of(world, "Train") == ["Cancelled"]


def test_a_success_that_could_not_be_read_counts() -> None:
    world = World()
    name = world.until(Stage.EXPORT)
    world.unreadable = "gs://artifacts: timed out"
    world.succeed(name)
    world.edit(cancel=True)
    world.reconcile()
    assert not world.finished
    world.unreadable = None
    world.reconcile()
    assert world.status["phase"] == "Succeeded"


def test_a_job_with_a_lost_plan_stops_and_ends_when_the_plan_is_back() -> None:
    world = states.at(Stage.TRAIN)
    plan, profiles = world.config_map, list(world.profiles)
    world.config_map, world.profiles = None, []
    world.reconcile()
    world.edit(cancel=True)
    world.reconcile()
    assert is_stopped(world)
    assert [each.reason for _, each in pending_records(read_status(world.status))] == ["Cancelled"]
    world.stop("support-bot-train-1")
    world.reconcile()
    assert not world.finished
    assert world.status["summary"].startswith("Cancelled, and ends when this is corrected: ")
    world.config_map, world.profiles = plan, profiles
    world.reconcile()
    assert_ended_as_cancelled(world, "Train")
    assert "pending" not in world.status


# --- another job continues it


def test_another_job_continues_where_it_was_cancelled() -> None:
    before = World()
    name = before.until(Stage.TRAIN)
    before.train(name, 33)
    cancelled(before)
    world = resumed(before, second())
    world.neighbours = [before.job]
    name = world.until(Stage.TRAIN)
    assert [each.uid for each in world.takeovers] == [UID]
    world.train(name, 40)
    assert world.progress is not None
    assert world.progress.start_step == 33
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_job_that_continues_another_one_can_be_cancelled_and_continued_itself() -> None:
    world = resumed(interrupted(), second())
    name = world.until(Stage.TRAIN)
    world.train(name, 47)
    cancelled(world)
    assert_ended_as_cancelled(world, "Train")
    third = resumed(world, second("third", "7e570000-0000-4000-8000-000000000000"))
    third.neighbours = [world.job]
    third.to_the_end()
    train = next(each for each in third.status["stages"] if each["name"] == "Train")
    assert (third.status["phase"], train["resumedFromStep"]) == ("Succeeded", 47)


@pytest.mark.parametrize("stage", [Stage.PREFLIGHT, Stage.TRAIN])
def test_a_deleted_job_that_a_finalizer_keeps_frees_its_slice(stage: Stage) -> None:
    world = World()
    name = world.until(stage)
    world.reconcile()
    world.job["metadata"] |= {
        "deletionTimestamp": "2026-11-21T12:00:00Z",
        "finalizers": ["example.dev/keep"],
    }
    world.reconcile()
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    world.lose(name)
    world.reconcile()
    assert world.live() == []
