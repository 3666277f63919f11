"""Jobs while their run folder cannot be read, and damaged and foreign files in it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from finetune_contract import Failure, Outcome, Stage
from finetune_operator.api import FineTuneJobStatus, Reason
from finetune_operator.lifecycle.attempts.pending_records import pending_records
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.observation import AttemptFiles, ReadFailure, RetryRecord
from tests.unit.lifecycle.world import ConflictError, Crash, World, job, profile
from tests.unit.lifecycle.writes import writes

AWAY = "gs://artifacts: no answer in 20 s"
MALFORMED = ReadFailure(
    reason=Reason.RECORD_MALFORMED, message="gs://artifacts/x/attempts/retry-1.json is no Retry."
)
DENIED = ReadFailure(reason=Reason.STORAGE_PERMISSION_DENIED, message="gs://artifacts/x: 403")
HUGE = ReadFailure(reason=Reason.RUN_FOLDER_TOO_LARGE, message="gs://artifacts/x: more than 20,000 files")
NEWER = ReadFailure(reason=Reason.CONTRACT_NEWER, message="gs://artifacts/x was written under version 2.")
HOUR = 3600
WAYS = pytest.mark.parametrize("why", [AWAY, MALFORMED, DENIED, HUGE, NEWER], ids=lambda each: str(each)[:40])


def training(world: World | None = None, step: int = 40) -> tuple[World, str]:
    world = world or World()
    name = world.until(Stage.TRAIN)
    world.train(name, step)
    world.reconcile()
    return world, name


def deleting(world: World, name: str) -> bool:
    return "deletionTimestamp" in world.jobsets[name]["metadata"]


def reasons(world: World) -> list[str]:
    return [
        each["reason"] for each in world.status["attempts"].get("history", ()) if each["stage"] == "Train"
    ]


def broken(world: World) -> None:
    """Adds a record that no reader accepts, so that evaluating the run folder raises an error."""
    failure = Failure(code=69, reason="Lost", message="x").model_copy(update={"seconds": "an hour"})
    world.attempts[AttemptKey(Stage.TRAIN, 1)] = AttemptFiles(failure=failure)


@WAYS
def test_hang_timeout_counts_from_when_the_run_folder_is_readable_again(why: str | ReadFailure) -> None:
    """The trainer cannot write during an outage of the store, and writes again after the operator has read."""
    world, name = training()
    world.unreadable = why
    world.reconcile()
    world.wait(2 * HOUR)
    world.reconcile()
    world.unreadable = None
    world.reconcile()
    assert not deleting(world, name)
    assert world.requeue_after is not None
    world.wait(600)
    world.train(name, 50)
    world.reconcile()
    world.wait(600)
    world.reconcile()
    assert not deleting(world, name)


def test_training_without_progress_after_an_outage_is_hung() -> None:
    world, name = training()
    world.unreadable = AWAY
    world.reconcile()
    world.wait(2 * HOUR)
    world.reconcile()
    world.unreadable = None
    world.reconcile()
    back = world.now
    while not deleting(world, name):
        assert world.requeue_after is not None
        world.wait(world.requeue_after)
        world.reconcile()
    assert 900 < (world.now - back).total_seconds() < 1000
    world.stop(name)
    world.reconcile()
    assert reasons(world) == ["Hung"]


def test_short_outages_do_not_postpone_the_hang_timeout_forever() -> None:
    """One read in ten minutes fails; each failure could restart the hang timeout."""
    world, name = training()
    begun = world.now
    while not deleting(world, name):
        for unreadable in (None, AWAY):
            world.unreadable = unreadable
            world.wait(300)
            world.reconcile()
        assert (world.now - begun).total_seconds() < 7 * HOUR


def test_suspension_works_despite_an_error_from_the_run_folder() -> None:
    world, name = training()
    broken(world)
    world.wait(HOUR)
    world.edit(suspend=True)
    decision = decide(world.observe())
    assert [each.name for each in writes(decision).deletions] == [name]
    assert isinstance(decision.fault, TypeError)
    reported = next(
        each for each in decision.status.to_document()["conditions"] if each["type"] == "RunFolderReadable"
    )
    assert (reported["status"], reported["reason"]) == ("False", "RecordMalformed")
    assert "TypeError" in reported["message"]


@pytest.mark.parametrize("limit", ["deadline", "budget"])
def test_limits_act_despite_an_error_from_the_run_folder(limit: str) -> None:
    spec = {"activeDeadlineSeconds": HOUR} if limit == "deadline" else {"budget": {"maxChipHours": 4}}
    world, name = training(World(job=job(**spec)))
    broken(world)
    assert writes(decide(world.observe())).deletions == ()
    world.wait(2 * HOUR)
    assert [each.name for each in writes(decide(world.observe())).deletions] == [name]


def test_an_error_unrelated_to_the_run_folder_is_raised() -> None:
    world, _ = training()
    world.unreadable = AWAY
    world.job["spec"]["hyperparameters"] = None
    world.job["metadata"]["creationTimestamp"] = "no time"
    with pytest.raises(ValueError, match="no time"):
        decide(world.observe())


def test_a_stop_whose_reason_is_lost_with_the_status_counts_as_a_fault() -> None:
    world, name = training()
    world.unreadable = AWAY
    world.edit(suspend=True)
    world.reconcile()
    world.lose(name)
    world.job["status"] = {}
    world.unreadable = None
    world.edit(suspend=False)
    world.reconcile()
    assert reasons(world) == ["JobSetDeleted"]
    assert world.status["attempts"]["infrastructure"] == 1
    assert world.live() == ["support-bot-train-2"]


def test_suspension_works_despite_a_damaged_status() -> None:
    world, name = training()
    world.unreadable = AWAY
    world.job["status"] |= {
        "activeTime": {"asOf": "no time"},
        "stages": "none",
        "conditions": [{}],
        "cost": 3,
    }
    world.edit(suspend=True)
    assert [each.name for each in writes(decide(world.observe())).deletions] == [name]


@WAYS
def test_suspension_acts_despite_an_unreadable_run_folder(why: str | ReadFailure) -> None:
    world, name = training()
    world.unreadable = why
    world.reconcile()
    world.edit(suspend=True)
    world.reconcile()
    assert deleting(world, name)
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert world.condition("Suspended")["reason"] == "SuspendedByUser"
    assert world.status["observedGeneration"] == world.job["metadata"]["generation"]
    FineTuneJobStatus.model_validate(world.status, by_alias=True, by_name=False)
    world.unreadable = None
    world.reconcile()
    assert world.status["attempts"]["infrastructure"] == world.status["attempts"]["preemption"] == 0
    assert reasons(world) == ["Suspended"]
    assert "pending" not in world.status
    world.edit(suspend=False)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_stop_with_an_unreadable_folder_and_no_record_is_not_charged() -> None:
    world, name = training()
    world.unreadable = AWAY
    world.edit(suspend=True)
    world.reconcile()
    world.kill(name)
    world.edit(suspend=False)
    world.wait(HOUR)
    world.reconcile()
    world.unreadable = None
    world.reconcile()
    assert world.status["attempts"]["infrastructure"] == 0
    assert reasons(world) == ["Suspended"]
    assert world.created[-1] == "support-bot-train-2"


@WAYS
def test_the_deadline_stops_and_fails_a_job_with_an_unreadable_run_folder(why: str | ReadFailure) -> None:
    world, name = training(World(job=job(activeDeadlineSeconds=HOUR)))
    world.unreadable = why
    world.wait(HOUR + 1)
    world.reconcile()
    assert deleting(world, name)
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] not in ("Failed", "Running"), "the result is not known yet"
    world.unreadable = None
    world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "DeadlineExceeded"


@WAYS
@pytest.mark.parametrize("platforms", [False, True])
def test_usage_does_not_exceed_the_budget_with_an_unreadable_run_folder(
    why: str | ReadFailure, platforms: bool
) -> None:
    profiles = [profile(constraints={"maxChipHours": 8} if platforms else {})]
    spec = {} if platforms else {"budget": {"maxChipHours": 8}}
    world, name = training(World(job=job(**spec), profiles=profiles))
    world.unreadable = why
    world.wait(HOUR)
    world.reconcile()
    assert not deleting(world, name)
    world.wait(HOUR)
    world.reconcile()
    assert deleting(world, name)
    assert world.condition("WithinBudget")["reason"] == "BudgetExhausted"
    world.stop(name)
    world.reconcile()
    world.unreadable = None
    world.reconcile()
    assert world.status["attempts"]["infrastructure"] == world.status["attempts"]["preemption"] == 0
    assert reasons(world) == ["BudgetExhausted"]
    assert world.status["phase"] == ("Failed" if platforms else "Suspended")
    if platforms:
        assert world.status["failure"]["reason"] == "BudgetExhausted"


def test_a_suspension_by_the_budget_remains_with_an_unreadable_folder() -> None:
    world, name = training(World(job=job(budget={"maxChipHours": 4})))
    world.unreadable = AWAY
    world.wait(HOUR)
    world.reconcile()
    world.stop(name)
    for _ in range(3):
        world.wait(HOUR)
        world.reconcile()
        assert world.status["phase"] == "Suspended"
        assert world.condition("Suspended")["reason"] == "BudgetExhausted"


def test_hours_continue_from_the_last_status() -> None:
    """Earlier attempts, whose records cannot be read, also count."""
    world, name = training(World(job=job(budget={"maxChipHours": 12})))
    world.wait(HOUR)
    world.reconcile()
    world.stop(name)
    name = world.until(Stage.TRAIN)
    world.wait(HOUR)
    world.train(name, 50)
    world.reconcile()
    world.unreadable = AWAY
    world.reconcile()
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(8, abs=0.1)
    world.wait(HOUR / 2)
    world.reconcile()
    assert not deleting(world, name)
    world.wait(HOUR / 2)
    world.reconcile()
    assert deleting(world, name)


@pytest.mark.parametrize("crash_after", range(4))
@pytest.mark.parametrize("requested_again", [True, False])
def test_a_crash_after_any_write_loses_no_record(crash_after: int, requested_again: bool) -> None:
    world, name = training()
    world.unreadable = AWAY
    world.edit(suspend=True)
    with suppress(Crash):
        world.reconcile(crash_after=crash_after)
    if not requested_again:
        world.edit(suspend=False)
    world.reconcile()
    if deleting(world, name):
        world.kill(name)
    else:
        assert not requested_again
        assert pending_records(read_status(world.status)) == (), "the running stage has not been stopped"
        world.stop(name)
    world.reconcile()
    world.unreadable = None
    for after in range(4):
        try:
            world.reconcile(crash_after=after)
        except (Crash, ConflictError):
            continue
    world.edit(suspend=False)
    world.reconcile()
    assert world.status["attempts"]["infrastructure"] == 0
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_restarted_operator_reads_the_pending_record_in_the_status() -> None:
    """When the run folder is readable again, the JobSet, its pods and the reason to stop no longer exist."""
    world, name = training()
    world.unreadable = AWAY
    world.edit(suspend=True)
    world.reconcile()
    world.lose(name)
    world.edit(suspend=False)
    world.unreadable = None
    world.reconcile()
    assert reasons(world) == ["Suspended"]
    assert world.attempts[AttemptKey(Stage.TRAIN, 1)].failure is not None
    assert world.status["attempts"]["infrastructure"] == 0


@pytest.mark.parametrize("why", [MALFORMED, DENIED, HUGE])
def test_a_job_is_suspended_if_its_run_folder_stays_unreadable(why: ReadFailure) -> None:
    world, name = training()
    world.edit(hangPolicy={"blindSeconds": 600})
    world.unreadable = why
    world.reconcile()
    assert world.condition("RunFolderReadable")["status"] == "False"
    assert world.condition("RunFolderReadable")["reason"] == why.reason
    world.wait(599)
    world.reconcile()
    assert not deleting(world, name)
    world.wait(2)
    world.reconcile()
    assert deleting(world, name)
    world.stop(name)
    world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert world.condition("Suspended")["reason"] == "RunFolderUnreadable"
    assert why.message.rstrip(".") in world.status["summary"]
    assert world.condition("Stalled")["status"] == "False"
    world.unreadable = None
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.created[-2:] == ["support-bot-eval-1", "support-bot-export-1"]
    assert reasons(world)[0] == "RunFolderUnreadable"
    assert world.status["attempts"]["infrastructure"] == 0


@pytest.mark.parametrize("why", [AWAY, NEWER])
def test_the_limit_for_an_unreadable_run_folder_excludes_outages(why: str | ReadFailure) -> None:
    world, name = training()
    world.edit(hangPolicy={"blindSeconds": 600})
    world.unreadable = why
    for _ in range(48):
        world.wait(HOUR)
        world.reconcile()
    assert not deleting(world, name)
    assert world.condition("RunFolderReadable")["status"] == "Unknown"


def test_training_continues_without_a_limit_for_an_unreadable_run_folder() -> None:
    world, name = training()
    world.unreadable = MALFORMED
    for _ in range(48):
        world.wait(HOUR)
        world.reconcile()
    assert world.live() == [name]
    assert world.status["phase"] == "Running"


def test_a_malformed_progress_record_is_neither_a_hang_nor_an_outage() -> None:
    world, name = training()
    world.progress_unknown = MALFORMED
    for _ in range(24):
        world.wait(HOUR)
        world.reconcile()
    assert world.live() == [name]
    assert world.status["phase"] == "Running"
    assert world.condition("RunFolderReadable")["reason"] == "RecordMalformed"
    world.succeed(name)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_training_with_persistently_malformed_progress_is_suspended_once() -> None:
    world, name = training()
    world.edit(hangPolicy={"blindSeconds": 600})
    world.progress_unknown = MALFORMED
    world.reconcile()
    world.wait(601)
    world.reconcile()
    assert deleting(world, name)
    world.stop(name)
    for _ in range(3):
        world.wait(HOUR)
        world.reconcile()
        assert world.live() == []
        assert world.status["phase"] == "Suspended"
        assert world.requeue_after is not None
    world.progress_unknown = None
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_nothing_is_forgotten_after_an_outage() -> None:
    world, name = training()
    before = world.status
    world.unreadable = AWAY
    for _ in range(5):
        world.wait(HOUR)
        world.reconcile()
    for kept in ("stages", "attempts", "resolved", "progress", "startTime"):
        assert world.status[kept] == before[kept]
    assert world.condition("RunFolderReadable")["reason"] == "StoreUnavailable"
    assert world.condition("DataReady")["status"] == "True"
    assert world.condition("Running")["message"] == "All pods of Train, attempt 1, run."
    world.unreadable = None
    world.reconcile()
    assert world.condition("RunFolderReadable")["reason"] == "Readable"
    assert world.live() == [name]


def test_pods_that_end_with_an_unreadable_folder_are_not_reported_as_running() -> None:
    world, name = training()
    world.unreadable = AWAY
    world.succeed(name)
    world.reconcile()
    assert world.condition("Running")["status"] == "False"
    assert world.status["phase"] != "Running"


def test_suspension_does_not_wait_for_a_retry_that_cannot_be_recorded() -> None:
    world, name = training()
    world.edit(suspend=True, retry={"generation": 1})
    decision = world.reconcile()
    assert writes(decision).retry is None
    assert deleting(world, name)
    world.stop(name)
    world.reconcile()
    assert world.retry is not None


# --- damaged records


def malformed(world: World, key: AttemptKey) -> None:
    files = world.attempts.get(key, AttemptFiles())
    world.attempts[key] = replace(files, result=None, malformed=f"gs://a/{key.place} is no StageResult")


def test_a_malformed_result_is_a_failure_of_its_attempt() -> None:
    world, name = training()
    malformed(world, AttemptKey(Stage.TRAIN, 1))
    world.reconcile()
    assert not deleting(world, name), "the stage still runs"
    world.end_pods(name, 0)
    world.end_jobset(name, "Completed")
    world.reconcile()
    assert world.status["attempts"]["infrastructure"] == 1
    assert reasons(world) == ["ResultMalformed"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert reasons(world)[0] == "ResultMalformed"
    assert world.status["attempts"]["infrastructure"] == 1


def test_malformed_results_exhaust_the_retry_budget() -> None:
    world, name = training()
    for _ in range(40):
        if world.finished:
            break
        for name in world.live():
            world.run(name)
            malformed(world, world.key_of(name))
            world.end_pods(name, 0)
            world.end_jobset(name, "Completed")
        world.reconcile()
        world.wait(world.requeue_after or 300)
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["class"] == "Infrastructure"


def test_a_malformed_result_of_an_old_attempt_is_ignored_with_a_warning() -> None:
    world, name = training()
    world.stop(name)
    world.fail(world.until(Stage.TRAIN), 69)
    second = world.until(Stage.TRAIN)
    before = world.status["attempts"]["infrastructure"]
    malformed(world, AttemptKey(Stage.TRAIN, 1))
    world.reconcile()
    assert world.live() == [second]
    assert world.status["attempts"]["infrastructure"] <= before
    condition = world.condition("RunFolderReadable")
    assert (condition["status"], condition["reason"]) == ("True", "RecordsIgnored")
    assert "train" in condition["message"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_result_of_a_newer_major_version_is_unknown() -> None:
    world, name = training()
    world.write_success(name)
    key = AttemptKey(Stage.TRAIN, 1)
    good = world.attempts[key]
    world.attempts[key] = replace(
        good, result=None, newer="gs://a was written under version 2 of the contract"
    )
    world.end_pods(name, 0)
    world.end_jobset(name, "Completed")
    created = list(world.created)
    for _ in range(5):
        world.wait(HOUR)
        world.reconcile()
    assert world.created == created
    condition = world.condition("RunFolderReadable")
    assert (condition["status"], condition["reason"]) == ("Unknown", "ContractNewer")
    assert world.condition("Stalled")["status"] == "False"
    world.attempts[key] = good
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


# --- attempts of unknown owners


def failed_files(world: World, key: AttemptKey) -> AttemptFiles:
    succeeded = next(each.result for each in world.attempts.values() if each.result)
    failure = Failure(code=65, reason="BadData", message="claimed by another client")
    record = succeeded.model_copy(
        update={
            "stage": key.stage,
            "attempt": key.number,
            "restart": key.restart,
            "outcome": Outcome.FAILED,
            "exit_code": 65,
            "details": None,
            "failure": failure,
        }
    )
    return AttemptFiles(result=record, failure=failure)


FOREIGN = [
    AttemptKey(Stage.EVALUATE, 999),
    AttemptKey(Stage.EVALUATE, 1),
    AttemptKey(Stage.TRAIN, 2),
    AttemptKey(Stage.TRAIN, 999),
    AttemptKey(Stage.TRAIN, 1, 7),
    AttemptKey(Stage.PREFLIGHT, 2),
    AttemptKey(Stage.EXPORT, 1),
    AttemptKey(Stage.CONVERT, 500),
]


@pytest.mark.parametrize("key", FOREIGN, ids=str)
@pytest.mark.parametrize("what", ["request", "failed", "malformed", "newer"])
def test_an_attempt_that_the_job_did_not_create_changes_nothing(key: AttemptKey, what: str) -> None:
    world, name = training()
    world.attempts[key] = {
        "request": AttemptFiles(),
        "failed": failed_files(world, key),
        "malformed": AttemptFiles(malformed="gs://a is no StageResult"),
        "newer": AttemptFiles(newer="gs://a was written under version 2"),
    }[what]
    decision = world.reconcile()
    assert writes(decision).deletions == ()
    assert world.live() == [name]
    assert world.status["phase"] == "Running"
    assert world.condition("RunFolderReadable")["reason"] == "RecordsIgnored"
    assert f"{key.stage.short}-{key.number}" in world.condition("RunFolderReadable")["message"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["attempts"]["user"] == world.status["attempts"]["infrastructure"] == 0
    assert all(int(each.rpartition("-")[2]) <= 2 for each in world.created)


def test_foreign_attempts_in_the_run_folder_do_not_stop_a_job() -> None:
    world, name = training()
    for number in range(2, 1000):
        world.attempts[AttemptKey(Stage.TRAIN, number)] = AttemptFiles()
    world.fail(name, 69)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def wiped(world: World) -> None:
    world.job["status"] = {"observedGeneration": -1}


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("plan_lost", [True, False])
def test_attempts_are_recovered_by_number_without_status_and_children(stage: Stage, plan_lost: bool) -> None:
    world = World()
    name = world.until(stage)
    for each in [each for each in world.jobsets if each != name]:
        world.lose(each)
    before = list(world.created)
    wiped(world)
    if plan_lost:
        world.config_map = None
    world.unreadable = AWAY
    world.reconcile()
    world.reconcile()
    world.unreadable = None
    world.reconcile()
    assert world.live() == [name]
    assert world.status["stage"] == str(stage)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert len(set(world.created)) == len(world.created)
    assert world.created[: len(before)] == before
    assert world.status["attempts"]["infrastructure"] == 0


def test_attempts_beyond_the_truncated_history_still_count() -> None:
    world = World(job=job(recovery={"maxInfrastructureRetries": 100}))
    for index in range(13):
        name = world.until(Stage.TRAIN)
        world.train(name, 5 + index)
        world.checkpoint = 5 + index
        world.stop(name)
        world.lose(name)
        for each in [each for each in world.jobsets if each not in world.live()]:
            world.lose(each)
    world.reconcile()
    total = world.status["attempts"]["total"]
    world.reconcile()
    assert world.status["attempts"]["total"] == total >= 13


def test_an_unrequested_retry_record_changes_nothing() -> None:
    world = World()
    world.to_the_end()
    created = list(world.created)
    world.retry = RetryRecord(generation=7, from_stage=Stage.PREFLIGHT, first=dict.fromkeys(Stage, 2))
    for _ in range(3):
        world.reconcile()
    assert world.created == created


STATES: list[tuple[str, Callable[[World], None]]] = [
    ("away", lambda world: setattr(world, "unreadable", AWAY)),
    ("malformed", lambda world: setattr(world, "unreadable", MALFORMED)),
    ("newer", lambda world: setattr(world, "unreadable", NEWER)),
]


@pytest.mark.parametrize(("state", "to"), STATES, ids=[name for name, _ in STATES])
def test_a_second_reconcile_with_an_unreadable_folder_changes_nothing(
    state: str, to: Callable[[World], None]
) -> None:
    world, _ = training()
    to(world)
    world.reconcile()
    before = world.status
    world.reconcile()
    assert world.status == before


def test_a_job_with_a_lost_plan_can_be_suspended() -> None:
    world, name = training()
    world.config_map = None
    world.profiles.clear()
    world.reconcile()
    assert not deleting(world, name), "the running stage continues"
    world.edit(suspend=True)
    world.reconcile()
    assert deleting(world, name)
    assert [record.reason for _, record in pending_records(read_status(world.status))] == ["Suspended"]


def test_the_budget_holds_while_a_retry_record_is_pending() -> None:
    world, name = training(World(job=job(budget={"maxChipHours": 4})))
    world.edit(retry={"generation": 1})
    world.wait(HOUR)
    decision = world.reconcile()
    assert writes(decision).retry is None
    assert deleting(world, name)


def test_usage_with_an_unreadable_run_folder_is_written_periodically() -> None:
    """Little is lost if the pods are deleted, and not every reconcile writes."""
    world, _ = training()
    world.unreadable = AWAY
    world.reconcile()
    writes, before = 0, world.status
    for _ in range(120):
        world.wait(5)
        world.reconcile()
        writes += world.status != before
        before = world.status
    assert 8 <= writes <= 12
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(4 * 600 / HOUR, rel=0.15)


def test_hours_never_decrease_when_evidence_disappears_unseen() -> None:
    world, name = training()
    world.unreadable = AWAY
    hours = 0.0
    for _ in range(6):
        world.wait(HOUR)
        world.reconcile()
        assert float(world.status["cost"]["chipHours"]) >= hours
        hours = float(world.status["cost"]["chipHours"])
    world.lose(name)
    world.reconcile()
    world.unreadable = None
    world.reconcile()
    world.run(world.live()[0])
    world.wait(HOUR)
    world.reconcile()
    assert float(world.status["cost"]["chipHours"]) == pytest.approx(28, abs=0.2)


def test_a_stage_without_steps_has_its_time_limit_with_an_unreadable_folder() -> None:
    world = World()
    world.edit(hangPolicy={"stageSeconds": HOUR})
    name = world.until(Stage.EVALUATE)
    world.unreadable = AWAY
    world.wait(HOUR + 1)
    world.reconcile()
    assert deleting(world, name)
    world.kill(name)
    world.reconcile()
    world.unreadable = None
    world.reconcile()
    assert world.status["attempts"]["infrastructure"] == 1
    assert world.status["attempts"]["history"][-1]["reason"] == "StageTimeout"
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_a_malformed_result_is_recorded_once() -> None:
    world, name = training()
    malformed(world, AttemptKey(Stage.TRAIN, 1))
    world.end_pods(name, 0)
    world.end_jobset(name, "Completed")
    world.reconcile()
    for _ in range(3):
        assert AttemptKey(Stage.TRAIN, 1) not in dict(writes(world.reconcile()).records)


def test_nothing_is_recorded_for_a_finished_job() -> None:
    world = World()
    world.to_the_end()
    malformed(world, AttemptKey(Stage.EXPORT, 1))
    decision = world.reconcile()
    assert writes(decision).records == ()
    assert world.status["phase"] == "Succeeded"


def test_a_restart_between_two_reconciles_counts() -> None:
    world = World()
    name = world.until(Stage.EVALUATE)
    world.stop(name)
    world.succeed(name)
    world.lose(name)
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert "support-bot-eval-2" not in world.created
    assert world.status["attempts"]["infrastructure"] == 0


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_job_can_be_stopped_whatever_times_its_status_has(since: str) -> None:
    world = World()
    name = world.until(Stage.TRAIN)
    world.unreadable = ReadFailure(reason=Reason.STORAGE_PERMISSION_DENIED, message="denied")
    world.reconcile()
    world.condition("RunFolderReadable")["lastTransitionTime"] = since
    world.edit(hangPolicy={"blindSeconds": 600}, suspend=True)
    world.reconcile()
    assert name not in world.jobsets or "deletionTimestamp" in world.jobsets[name]["metadata"]


def test_a_job_whose_pods_are_unknown_is_stopped_until_they_can_be_read() -> None:
    """Enough objects with its labels would otherwise give its author a slice without a budget or a deadline."""
    world, name = training()
    world.pods = {}
    world.unreadable = ReadFailure(reason=Reason.TOO_MANY_OBJECTS, message="pods: more than 20000 objects.")
    world.reconcile()
    assert name not in world.jobsets
    world.reconcile()
    suspended = next(each for each in world.status["conditions"] if each["type"] == "Suspended")
    assert (suspended["status"], suspended["reason"]) == ("True", "TooManyObjects")
    assert "The job's pods are unknown: pods: more than 20000 objects" in world.status["summary"]

    world.unreadable = None
    world.reconcile()
    world.reconcile()
    assert world.status["phase"] == "Provisioning"
    assert list(world.jobsets)[-1] == "support-bot-train-2"
    assert reasons(world) == ["RunFolderUnreadable"]
    assert not world.status["attempts"].get("infrastructure")
