"""What the ledger records of a job, when, and on which day."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.ledger.amounts import amount, text_of
from finetune_operator.ledger.record import RECORD_BYTES, LedgerOutcome, LedgerRecord, TrainedSteps
from finetune_operator.lifecycle.accounting.records import closing_records, remainder
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.status.profile import profile_status
from finetune_operator.planning import admit
from tests.unit.lifecycle.simulated_jobs import DISRUPTED, PRICES
from tests.unit.lifecycle.test_limits import flavors
from tests.unit.lifecycle.world import LEDGER, TOTAL_STEPS, UID, Crash, World, job, profile

HOUR = 3600
CHIPS = 4


def made(**spec: Any) -> World:
    offered = [{**each, "chipHourPrice": PRICES[each["capacity"]]} for each in flavors("OnDemand", "Spot")]
    resources = {"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}
    world = World(
        job=job(**{"resources": resources} | spec),
        profiles=[profile(flavors=offered, currency="USD")],
        ledger={},
    )
    world.job["metadata"]["labels"] = {"team": "nlp"}
    return world


def work(world: World, name: str, hours: float) -> None:
    world.wait(hours * HOUR)
    world.train(name, 10)
    world.reconcile()


def names(world: World) -> list[str]:
    return [uri.removeprefix(f"{LEDGER}/v1/").replace(f"/team-a/{UID}", "") for uri in world.ledger or {}]


def of(world: World, stage: Stage) -> list[LedgerRecord]:
    return [each for each in (world.ledger or {}).values() if each.stage is stage]


def test_each_attempt_is_recorded_when_it_has_ended() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    assert names(world) == ["2026-11-21/prep-1-1.json", "2026-11-21/conv-1-2.json"]
    work(world, name, 2)
    world.succeed(name)
    world.reconcile()
    (found,) = of(world, Stage.TRAIN)
    assert found.chip_hours == 2 * CHIPS
    assert found.cost == Decimal("6.4")
    assert found.model_dump(
        include={"outcome", "reason", "capacity", "flavor", "chips", "chip_hour_price", "currency", "tpu"}
    ) == {
        "outcome": "Succeeded",
        "reason": "Succeeded",
        "capacity": "Spot",
        "flavor": "spot",
        "chips": CHIPS,
        "chip_hour_price": 0.8,
        "currency": "USD",
        "tpu": "v6e-4",
    }
    assert (found.profile, found.model, found.labels) == ("local", "gs://models/tiny", {"team": "nlp"})
    assert (found.namespace, found.job, found.uid) == ("team-a", "support-bot", UID)


def test_a_job_without_a_ledger_has_no_records_and_no_field() -> None:
    world = made()
    world.ledger = None
    world.to_the_end()
    assert "ledger" not in world.status


def test_restarts_inside_a_jobset_are_attempts() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    for _ in range(2):
        work(world, name, 1)
        world.kill(name, conditions=DISRUPTED)
        world.reconcile()
        world.run(name)
        world.reconcile()
    world.succeed(name)
    world.to_the_end()
    found = {each.restart: (each.outcome, each.chip_hours) for each in of(world, Stage.TRAIN)}
    assert found[0] == (LedgerOutcome.FAILED, CHIPS)
    assert found[1] == (LedgerOutcome.FAILED, CHIPS)
    assert found[2][0] is LedgerOutcome.SUCCEEDED
    assert [each.failure_class for each in of(world, Stage.TRAIN)][:2] == ["Preemption", "Preemption"]
    assert of(world, Stage.TRAIN)[0].seconds == HOUR


def test_a_stage_on_cpu_is_recorded_without_chips() -> None:
    world = made()
    world.to_the_end()
    (found,) = of(world, Stage.PREFLIGHT)
    assert (found.chip_hours, found.capacity, found.chips, found.tpu) == (0, None, 0, "")


def test_usage_that_is_no_longer_measured_stays_with_its_attempt() -> None:
    """Another client deletes the JobSet by force: the status alone still knows the usage."""
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 3)
    world.lose(name)
    world.reconcile()
    (found,) = of(world, Stage.TRAIN)
    assert found.chip_hours == 3 * CHIPS
    assert found.reason == "JobSetDeleted"


def test_an_attempt_that_runs_past_midnight_is_recorded_for_each_day() -> None:
    world = made()
    world.now = datetime(2026, 11, 30, 20, tzinfo=UTC)
    name = world.until(Stage.TRAIN)
    for _ in range(34):
        work(world, name, 1)
    world.succeed(name)
    world.to_the_end()
    train = of(world, Stage.TRAIN)
    assert [(each.day, each.outcome, each.chip_hours) for each in train] == [
        (date(2026, 11, 30), LedgerOutcome.RUNNING, 3 * CHIPS),
        (date(2026, 12, 1), LedgerOutcome.RUNNING, 24 * CHIPS),
        (date(2026, 12, 2), LedgerOutcome.SUCCEEDED, 7 * CHIPS),
    ]
    assert sum(each.chip_hours for each in train) == Decimal(world.status["cost"]["chipHours"])


def test_a_ledger_that_is_away_holds_up_nothing_and_gets_everything_later() -> None:
    world = made()
    world.ledger_away = True
    name = world.until(Stage.TRAIN)
    day = str(world.now.date())
    waiting = {"records": 0, "chipHours": "0", "amount": "0", "pending": 2, "pendingDay": day}
    assert world.status["ledger"] == waiting
    work(world, name, 2)
    world.kill(name, conditions=DISRUPTED)
    world.reconcile()
    world.ledger_away = False
    world.run(name)
    world.reconcile()
    assert [each.chip_hours for each in of(world, Stage.TRAIN)] == [2 * CHIPS]
    assert len(names(world)) == 3
    assert "pending" not in world.status["ledger"]


def test_what_runs_past_midnight_counts_on_the_day_before_although_an_end_is_due_since_then() -> None:
    world = made()
    world.now = datetime(2026, 11, 30, 20, tzinfo=UTC)
    world.ledger_away = True
    name = world.until(Stage.TRAIN)
    work(world, name, 3)
    work(world, name, 2)
    world.ledger_away = False
    work(world, name, 1)
    (train,) = of(world, Stage.TRAIN)
    assert (train.day, train.outcome, train.chip_hours) == (
        date(2026, 11, 30),
        LedgerOutcome.RUNNING,
        5 * CHIPS,
    )
    assert "pending" not in world.status["ledger"]
    world.succeed(name)
    world.to_the_end()
    assert [each.chip_hours for each in of(world, Stage.TRAIN)] == [5 * CHIPS, CHIPS]


def test_a_job_that_ended_while_the_ledger_was_away_is_recorded_later() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 2)
    world.ledger_away = True
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    assert world.status["ledger"]["pending"]
    # Its children are deleted meanwhile.
    world.jobsets.clear()
    world.pods.clear()
    world.ledger_away = False
    world.reconcile()
    assert "pending" not in world.status["ledger"]
    assert sum(each.chip_hours for each in (world.ledger or {}).values()) == 2 * CHIPS
    before = dict(world.ledger or {})
    world.reconcile()
    assert world.ledger == before


@pytest.mark.parametrize("crash_after", range(6))
def test_a_crash_between_a_record_and_the_status_doubles_and_loses_nothing(crash_after: int) -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 2)
    world.succeed(name)
    try:
        world.reconcile(crash_after=crash_after)
    except Crash:
        # Another operator takes over on the next day.
        world.wait(24 * HOUR)
    world.to_the_end()
    assert [each.chip_hours for each in of(world, Stage.TRAIN)] == [2 * CHIPS]
    assert sum(each.chip_hours for each in (world.ledger or {}).values()) == Decimal(
        world.status["cost"]["chipHours"]
    )


def test_a_crash_and_pods_that_vanish_leave_the_status_at_what_is_recorded() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    world.wait(50)
    world.kill(name, code=1)
    decision = decide(world.observe())
    writes = len(decision.events) + len(decision.ledger) + len(decision.action.records)
    with pytest.raises(Crash):
        world.apply(decision, crash_after=writes)
    recorded = sum(each.chip_hours for each in of(world, Stage.TRAIN))
    assert recorded > 0
    world.pods.clear()
    world.attempts = {key: files for key, files in world.attempts.items() if key.stage is not Stage.TRAIN}
    world.reconcile()
    assert Decimal(world.status["cost"]["chipHours"]) >= recorded


@pytest.mark.parametrize(
    ("happens", "outcome", "hours"),
    [("runs", LedgerOutcome.DELETED, 2), ("is suspended", LedgerOutcome.STOPPED, 2)],
)
def test_of_a_deleted_job_its_last_usage_is_recorded(
    happens: str, outcome: LedgerOutcome, hours: int
) -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 2)
    if happens == "is suspended":
        world.edit(suspend=True)
        world.reconcile()
        world.stop(name)
        world.reconcile()
    world.delete()
    assert [(each.outcome, each.chip_hours) for each in of(world, Stage.TRAIN)] == [(outcome, hours * CHIPS)]


def test_a_finished_job_that_is_deleted_leaves_no_record_more() -> None:
    world = made()
    world.to_the_end()
    before = dict(world.ledger or {})
    world.delete()
    assert world.ledger == before


def test_a_manual_retry_is_recorded_like_any_attempt() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 1)
    world.fail(name, 65)
    world.to_the_end()
    assert world.status["phase"] == "Failed"
    world.edit(retry={"generation": 1})
    name = world.until(Stage.TRAIN)
    work(world, name, 1)
    world.to_the_end()
    assert [each.number for each in of(world, Stage.TRAIN)] == [1, 2]
    assert sum(each.chip_hours for each in (world.ledger or {}).values()) == Decimal(
        world.status["cost"]["chipHours"]
    )


def test_the_part_of_the_ledger_stays_in_the_status_while_there_is_no_ledger() -> None:
    """Otherwise everything would be recorded again once there is one."""
    world = made()
    world.until(Stage.TRAIN)
    before = world.status["ledger"]
    world.ledger, kept = None, world.ledger
    world.wait(600)
    world.reconcile()
    assert world.status["ledger"] == before
    world.ledger = kept
    count = len(kept or {})
    world.reconcile()
    assert len(world.ledger or {}) == count


@pytest.mark.parametrize("ledger", ["gs://artifacts/ledger", "gs://cache", "gs://cache/team-a/x"])
def test_a_profile_whose_tenants_could_write_the_ledger_is_refused(ledger: str) -> None:
    found = profile_status(profile(), used_by=0, now=datetime(2026, 11, 21, tzinfo=UTC), ledger=ledger)
    (valid,) = [each for each in found.conditions or () if each.type == "Valid"]
    assert (valid.status, valid.reason) == ("False", Reason.PROFILE_INVALID)
    assert f"overlaps the operator's ledger, {ledger}" in valid.message
    world = World(ledger={}, profiles=[profile(storage={"artifacts": LEDGER, "cache": "gs://cache"})])
    world.reconcile()
    assert world.condition("Valid")["reason"] == "ProfileInvalid"
    assert "#ml-help" in world.condition("Valid")["message"]
    assert world.created == []


def test_a_profile_beside_the_ledger_is_valid() -> None:
    found = profile_status(profile(), used_by=0, now=datetime(2026, 11, 21, tzinfo=UTC), ledger=LEDGER)
    assert [each.status for each in found.conditions or () if each.type == "Valid"] == ["True"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5", "1.5"),
        ("0.1234567", "0.123456"),
        ("1e3", "1000"),
        ("", "0"),
        ("NaN", "0"),
        ("-1", "0"),
        ("1e999999999", "0"),
        (None, "0"),
        (7, "0"),
    ],
)
def test_amounts_of_a_status_are_exact_or_nothing(text: object, expected: str) -> None:
    assert text_of(amount(text)) == expected


def test_a_record_is_on_the_day_of_the_last_stored_usage() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 1)
    reported = world.now.date()
    world.succeed(name)
    # No operator watches for three days.
    world.wait(timedelta(days=3).total_seconds())
    world.reconcile()
    assert [each.day for each in of(world, Stage.TRAIN)] == [reported]


def test_the_record_of_a_training_says_how_many_steps_it_made_and_of_which_shape() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 2)
    assert [each.trained for each in of(world, Stage.TRAIN)] == []
    world.succeed(name)
    world.to_the_end()
    (found,) = of(world, Stage.TRAIN)
    plan = admit(world.job, world.profiles).plan
    (entry,) = (each for each in world.status["attempts"]["history"] if each["stage"] == "Train")
    assert found.trained == TrainedSteps(
        start_step=entry["startStep"],
        end_step=entry["endStep"],
        attempts=1,
        seconds=2 * HOUR,
        method="SFT",
        lora=False,
        max_seq_length=plan.data.max_seq_length,
        global_batch_size=plan.hyperparameters.global_batch_size,
    )
    assert all(
        each.trained is None for each in (world.ledger or {}).values() if each.stage is not Stage.TRAIN
    )


def test_a_record_can_be_read_whatever_address_and_labels_the_job_has() -> None:
    world = made()
    work(world, world.until(Stage.TRAIN), 2)
    world.job["metadata"]["labels"] = {f"{n:02d}{'k' * 251}/{'n' * 63}": "v" * 63 for n in range(40)}
    for character in ("\N{GRINNING FACE}", '"'):
        world.status["resolved"]["model"]["source"] = f"file:///{character * 1016}"
        (found,) = closing_records(Job.parse(world.job | {"status": world.status}), world.now)
        assert LedgerRecord.parse(found.to_json()) == found
        assert len(found.to_json()) < RECORD_BYTES
        assert found.model.startswith(f"file:///{character * 200}")


def test_a_record_of_the_day_has_no_steps_which_the_last_record_has() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    for _ in range(3):
        work(world, name, 12)
    world.succeed(name)
    world.to_the_end()
    *days, last = of(world, Stage.TRAIN)
    assert days
    assert all(each.trained is None for each in days)
    assert last.trained is not None


def test_each_record_of_a_training_says_what_all_of_its_attempts_have_made() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 1)
    world.kill(name, conditions=DISRUPTED)
    world.reconcile()
    world.run(name)
    work(world, name, 2)
    world.succeed(name)
    world.to_the_end()
    found = [each.trained for each in of(world, Stage.TRAIN) if each.trained]
    assert [(each.start_step, each.end_step, each.attempts, each.seconds) for each in found][-1] == (
        0,
        TOTAL_STEPS,
        2,
        3 * HOUR,
    )


def test_a_trainer_that_claims_more_time_than_has_passed_is_not_believed() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 1)
    world.succeed(name)
    (key,) = (key for key in world.attempts if key.stage is Stage.TRAIN)
    result = world.attempts[key].result
    assert result is not None
    forged = result.model_copy(update={"started": result.started - timedelta(days=300)})
    world.attempts[key] = replace(world.attempts[key], result=forged)
    world.pods.clear()
    world.jobsets.clear()
    world.reconcile()
    (found,) = of(world, Stage.TRAIN)
    assert found.trained is not None
    assert found.trained.seconds <= 2 * HOUR


def test_the_rest_of_a_record_is_about_the_time_that_the_first_one_lacks() -> None:
    world = made()
    name = world.until(Stage.TRAIN)
    work(world, name, 2)
    world.succeed(name)
    world.reconcile()
    (due,) = of(world, Stage.TRAIN)
    found = due.model_copy(update={"chip_hours": due.chip_hours / 2, "cost": None, "seconds": HOUR})
    rest = remainder(due, found)
    assert rest is not None
    assert (rest.outcome, rest.sequence, rest.seconds, rest.chip_hours) == (
        LedgerOutcome.RUNNING,
        due.sequence + 1,
        HOUR,
        due.chip_hours / 2,
    )
    assert rest.trained is None
