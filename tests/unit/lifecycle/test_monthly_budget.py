"""The budget of a namespace for a month: what may start, what must stop, and by how much it can be exceeded."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune_contract import Stage
from finetune_operator.api import FineTuneJobStatus, Reason
from finetune_operator.api.timestamps import parse, stamp
from finetune_operator.ledger.month import Month, MonthlyBudget
from finetune_operator.ledger.month_usage import MonthUsage
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.lifecycle.job import Job, reduced_job
from finetune_operator.lifecycle.status.profile import profile_status
from tests.unit.lifecycle.simulated_jobs import SimulatedJob, hours
from tests.unit.lifecycle.world import World, job, profile

CHIPS = 4
HOUR = 3600
NOVEMBER, DECEMBER = Month(2026, 11), Month(2026, 12)
#: Near the end of November, which most tests begin in the middle of.
EVENING = datetime(2026, 11, 30, 23, 30, tzinfo=UTC)


class Team:
    """The jobs of one namespace under one profile, with what an operator knows of their usage."""

    def __init__(self, limit: float, jobs: int = 1, *, now: datetime | None = None) -> None:
        self.limit = limit
        self.usage = MonthUsage()
        self.ledger: dict[str, LedgerRecord] = {}
        self.worlds = [self._world(number, now) for number in range(jobs)]
        self.read(Month.of(self.worlds[0].now))

    def _world(self, number: int, now: datetime | None) -> World:
        made = job(evaluation={})
        made["metadata"] |= {"name": f"job-{number}", "uid": f"{number:08d}-0000-4000-8000-000000000000"}
        world = World(job=made, profiles=[profile()], ledger=self.ledger, budget=self.budget)
        world.now = now or world.now
        world.job["metadata"]["creationTimestamp"] = world.now.isoformat()
        return world

    def budget(self, of: Job, now: datetime) -> MonthlyBudget:
        return self.usage.budget(of.namespace, of.uid, "local", self.limit, now)

    def read(self, month: Month) -> None:
        """The operator has read the ledger of the month."""
        self.usage.complete("team-a", month)

    def reconcile(self, world: World) -> None:
        known = set(self.ledger)
        world.reconcile()
        self.observe(world, known)

    def observe(self, world: World, known: Iterable[str] = ()) -> None:
        """The watch delivers the job, and the ledger what has been written beyond ``known``."""
        for uri in set(self.ledger) - set(known):
            self.usage.written(self.ledger[uri])
        self.usage.job(reduced_job(world.job))

    def train(self, world: World) -> str:
        """Runs a job up to its training, whose pods run."""
        name = world.until(Stage.TRAIN)
        world.train(name, 10)
        self.observe(world)
        return name

    def hold(self, world: World, name: str, seconds: float) -> None:
        """Training continues for that time, at the end of which the job is reconciled."""
        world.wait(seconds)
        world.train(name, 20)
        self.reconcile(world)

    @property
    def used(self) -> float:
        (found,) = self.usage.totals(Month.of(self.worlds[0].now))
        return float(found.chip_hours)


def used_before(team: Team, chip_hours: float, day: datetime = datetime(2026, 11, 3, tzinfo=UTC)) -> None:
    """A job that is deleted has used these chip hours."""
    found = LedgerRecord.model_validate(
        {
            "day": day.date(),
            "namespace": "team-a",
            "job": "earlier",
            "uid": "earlier",
            "profile": "local",
            "stage": Stage.TRAIN,
            "number": 1,
            "sequence": 1,
            "outcome": "Deleted",
            "end": day,
            "chip_hours": Decimal(str(chip_hours)),
        }
    )
    team.usage.written(found)


def prepared(team: Team) -> World:
    """A job whose stages on CPU have succeeded, and whose training has a JobSet or waits for the budget."""
    (world,) = team.worlds
    for _ in range(10):
        team.reconcile(world)
        if world.status.get("waiting", {}).get("reason") == "WaitingForBudget":
            return world
        for name in world.live():
            if world.key_of(name).stage is Stage.TRAIN:
                return world
            world.succeed(name)
    raise AssertionError(world.status.get("summary"))


@pytest.mark.parametrize(
    ("limit", "before", "starts"),
    [(10, 0, True), (10, 9.99, True), (10, 10, False), (10, 12, False), (0, 0, False), (0.5, 0.4, True)],
)
def test_a_stage_on_tpus_starts_while_less_than_the_limit_is_used(
    limit: float, before: float, starts: bool
) -> None:
    team = Team(limit)
    if before:
        used_before(team, before)
    world = prepared(team)
    assert bool(world.live()) is starts
    assert (world.status["phase"] == "Queued") is not starts


def test_a_job_that_waits_says_how_much_is_used_until_when_and_whom_to_ask() -> None:
    team = Team(10)
    used_before(team, 1310.25)
    world = prepared(team)
    assert world.condition("WithinBudget")["status"] == "False"
    assert world.condition("WithinBudget")["reason"] == Reason.MONTHLY_BUDGET_EXHAUSTED
    assert world.condition("Running")["reason"] == world.status["waiting"]["reason"] == "WaitingForBudget"
    assert world.condition("Reconciling")["status"] == "True"
    assert world.condition("Suspended")["status"] == "False"
    assert world.status["waiting"]["message"] == (
        "Namespace team-a has used 1,310.25 of the 10 chip hours that constraints.chipHoursPerMonth of profile "
        '"local" allows it in 2026-11. The job continues automatically when the next month begins, '
        "2026-12-01T00:00:00Z, or when the limit is raised: ask #ml-help."
    )
    assert world.status["waiting"]["message"] in world.status["summary"]
    assert world.status["monthlyBudget"] == {
        "month": "2026-11",
        "chipHours": "10",
        "used": "1310.25",
        "asOf": "2026-11-21T12:00:00Z",
        "resetTime": "2026-12-01T00:00:00Z",
    }
    FineTuneJobStatus.model_validate(world.status)
    before = dict(world.status)
    world.wait(60)
    team.reconcile(world)
    assert world.status == before, "nothing is written while nothing changes"


def test_stages_on_cpu_do_not_wait_and_the_condition_warns() -> None:
    team = Team(10)
    used_before(team, 10)
    (world,) = team.worlds
    world.admit()
    assert len(world.live()) == 1
    assert world.condition("WithinBudget")["reason"] == Reason.MONTHLY_BUDGET_EXHAUSTED


def test_a_job_that_waits_starts_when_the_month_begins() -> None:
    team = Team(10, now=EVENING)
    used_before(team, 10)
    world = prepared(team)
    assert not world.live()
    world.wait(30 * 60 - 30)
    team.reconcile(world)
    assert world.requeue_after == 30
    world.wait(30)
    # Until the ledger of the month has been read, the usage is unknown.
    team.reconcile(world)
    assert not world.live()
    assert world.status["waiting"]["reason"] == "WaitingForBudget"
    assert world.condition("WithinBudget")["status"] == "Unknown"
    assert world.condition("WithinBudget")["reason"] == Reason.MONTHLY_USAGE_UNKNOWN
    team.read(DECEMBER)
    team.reconcile(world)
    assert [world.key_of(name).stage for name in world.live()] == [Stage.TRAIN]
    assert world.status["monthlyBudget"]["month"] == "2026-12"
    assert world.status.get("waiting", {}).get("reason") != "WaitingForBudget"


def test_a_job_that_waits_starts_when_the_limit_is_raised() -> None:
    team = Team(10)
    used_before(team, 10)
    world = prepared(team)
    assert not world.live()
    team.limit = 11
    team.reconcile(world)
    assert len(world.live()) == 1
    assert world.condition("WithinBudget")["status"] == "True"


def test_training_stops_at_the_limit_saves_and_continues_in_the_next_month() -> None:
    team = Team(2, now=datetime(2026, 11, 30, 12, tzinfo=UTC))
    (world,) = team.worlds
    name = team.train(world)
    team.hold(world, name, 1795)
    assert world.live() == [name]
    # It is reconciled when the limit will be reached.
    assert world.requeue_after is not None
    assert world.requeue_after <= 5
    team.hold(world, name, 5)
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    world.stop(name)
    team.reconcile(world)
    assert not world.live()
    assert (world.status["phase"], world.status["waiting"]["reason"]) == ("Queued", "WaitingForBudget")
    assert world.status["attempts"]["preemption"] == world.status["attempts"]["user"] == 0
    (found,) = [each for each in team.ledger.values() if each.stage is Stage.TRAIN]
    assert (found.outcome, found.reason, found.chip_hours) == ("Stopped", "BudgetExhausted", 2)
    world.now = DECEMBER.begin
    team.read(DECEMBER)
    for _ in range(3):
        team.reconcile(world)
    assert world.live() == ["job-0-train-2"]
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"


def test_the_usage_of_an_earlier_month_does_not_count() -> None:
    """The training runs over midnight of the first day: what it used before is recorded in November."""
    team = Team(3, now=EVENING)
    (world,) = team.worlds
    name = team.train(world)
    team.hold(world, name, 25 * 60)
    assert team.used == pytest.approx(CHIPS * 25 / 60, abs=1e-5)
    team.read(DECEMBER)
    team.hold(world, name, 10 * 60)
    team.hold(world, name, 60)
    assert world.live() == [name]
    # What was used after the last report of November counts in December: at most the interval of reports.
    assert team.used == pytest.approx(CHIPS * 11 / 60, abs=1e-5)
    in_november = sum(each.chip_hours for each in team.ledger.values() if each.day.month == NOVEMBER.number)
    assert float(in_november) == pytest.approx(CHIPS * 25 / 60, abs=1e-5)


def test_what_runs_continues_while_the_usage_is_unknown_and_nothing_starts() -> None:
    team = Team(1, jobs=2)
    running, other = team.worlds
    name = team.train(running)
    # Another operator leads, and cannot read the ledger.
    team.usage = MonthUsage()
    team.usage.job(reduced_job(running.job))
    team.hold(running, name, HOUR)
    assert running.live() == [name]
    assert "deletionTimestamp" not in running.jobsets[name]["metadata"]
    assert running.condition("WithinBudget")["status"] == "True"
    for _ in range(6):
        team.reconcile(other)
        for each in other.live():
            other.succeed(each)
    assert not other.live()
    assert other.condition("WithinBudget")["reason"] == Reason.MONTHLY_USAGE_UNKNOWN
    assert "unknown until the operator has read its ledger" in other.status["summary"]
    # When it can, what runs counts at once.
    team.read(NOVEMBER)
    team.reconcile(running)
    assert "deletionTimestamp" in running.jobsets[name]["metadata"]


def test_a_jobset_in_a_queue_is_withdrawn_when_the_budget_is_used_up() -> None:
    team = Team(1)
    (world,) = team.worlds
    world.profiles = [profile(queue={"localQueue": "tpu"})]
    prepared(team)
    (name,) = world.live()
    used_before(team, 1)
    team.reconcile(world)
    assert name not in world.live() or "deletionTimestamp" in world.jobsets[name]["metadata"]


def test_the_jobs_own_budget_comes_first_because_only_an_edit_ends_that_wait() -> None:
    team = Team(1)
    used_before(team, 1)
    (world,) = team.worlds
    world.job["spec"]["budget"] = {"maxChipHours": 0.5}
    team.limit = 10
    name = team.train(world)
    team.hold(world, name, HOUR)
    world.stop(name)
    team.limit = 1
    team.reconcile(world)
    assert world.status["phase"] == "Suspended"
    assert world.condition("WithinBudget")["reason"] == Reason.BUDGET_EXHAUSTED


def test_training_stops_at_the_limit_while_its_run_folder_cannot_be_read() -> None:
    team = Team(2)
    (world,) = team.worlds
    name = team.train(world)
    world.unreadable = "503"
    world.wait(HOUR)
    team.reconcile(world)
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]
    assert "has used" in str(world.status["pending"])


def test_training_stops_at_the_limit_without_its_plan() -> None:
    team = Team(2)
    (world,) = team.worlds
    name = team.train(world)
    plan = world.config_map
    assert plan is not None
    world.config_map = {**plan, "data": {**plan["data"], "job-uid": "another"}}
    world.wait(HOUR)
    team.reconcile(world)
    assert "deletionTimestamp" in world.jobsets[name]["metadata"]


def test_the_status_of_a_job_that_has_succeeded_stays() -> None:
    team = Team(1000)
    (world,) = team.worlds
    world.to_the_end()
    used_before(team, 1000)
    team.reconcile(world)
    assert world.condition("WithinBudget")["status"] == "True"
    assert world.status["monthlyBudget"]["chipHours"] == "1000"


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    limit=st.floats(min_value=0.1, max_value=0.6),
    delays=st.lists(st.integers(min_value=0, max_value=300), min_size=1, max_size=3),
    late=st.integers(min_value=0, max_value=30),
)
def test_a_budget_is_exceeded_by_no_more_than_its_formula_says(
    limit: float, delays: list[int], late: int
) -> None:
    """Each job is reconciled as soon as its last decision requests, and up to ``late`` seconds later."""
    team = Team(limit, jobs=len(delays))
    names: dict[int, str] = {}
    due: dict[int, datetime] = {}
    now = team.worlds[0].now
    for number, delay in enumerate(delays):
        due[number] = now + timedelta(seconds=delay)
    stopped: set[int] = set()
    while len(stopped) < len(team.worlds):
        number = min(set(due) - stopped, key=lambda each: due[each])
        world = team.worlds[number]
        now = max(now, due[number])
        world.now = now
        if number not in names:
            try:
                names[number] = team.train(world)
            except AssertionError:
                # The budget is used up: it waits.
                stopped.add(number)
                continue
        else:
            world.train(names[number], 20)
            team.reconcile(world)
            if "deletionTimestamp" in world.jobsets[names[number]]["metadata"]:
                world.stop(names[number])
                team.reconcile(world)
                stopped.add(number)
                continue
        due[number] = world.now + timedelta(seconds=(world.requeue_after or 0) + late)
        now = world.now
    # With few jobs a training is reconciled every 10 s, and amounts are those of whole seconds.
    most = len(names) * CHIPS * (10 + late + 2) / HOUR
    true = sum(float(hours(each.status)) for each in team.worlds)
    assert true <= limit + most
    assert team.used == pytest.approx(true, abs=1e-4)


class Followed(SimulatedJob):
    """A simulated job whose usage is followed by what an operator observes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.usage = MonthUsage()
        self._known: set[str] = set()

    def reconcile(self) -> None:
        super().reconcile()
        self.take()
        namespace, month = self.world.job["metadata"]["namespace"], Month.of(self.world.now)
        self.usage.complete(namespace, month)
        counted = sum(each.chip_hours for each in self.usage.totals(month))
        ledger = (self.world.ledger or {}).values()
        # Usage after a crash between record and status is recorded, and not reported yet.
        recorded = sum(each.chip_hours for each in ledger)
        assert counted <= max(hours(self.world.status), recorded), "usage counts twice"
        before = sum(each.chip_hours for each in ledger if Month.of(each.day) < month)
        reported = parse(self.world.status.get("activeTime", {}).get("asOf") or stamp(self.world.now))
        if Month.of(reported) == month:
            assert counted >= hours(self.world.status) - before, "a budget would stop later"

    def take(self) -> None:
        ledger = self.world.ledger or {}
        for uri in sorted(set(ledger) - self._known):
            self.usage.written(ledger[uri])
            self._known.add(uri)
        self.usage.job(reduced_job(self.world.job))


@pytest.mark.parametrize("number", range(12))
def test_the_usage_of_a_month_is_that_of_its_records_whatever_happens_to_the_job(number: int) -> None:
    followed = Followed(number)
    followed.live()
    followed.take()
    metadata, month = followed.world.job["metadata"], Month.of(followed.world.now)
    if followed.deleted:
        followed.usage.gone(metadata["namespace"], metadata["uid"], followed.world.now)
    followed.usage.complete(metadata["namespace"], month)
    ledger = (followed.world.ledger or {}).values()
    in_month = sum((each.chip_hours for each in ledger if Month.of(each.day) == month), Decimal(0))
    assert sum((each.chip_hours for each in followed.usage.totals(month)), Decimal(0)) == in_month
    # Another operator that begins now reads the same.
    successor = MonthUsage()
    for each in ledger:
        if Month.of(each.day) == month:
            successor.read(each)
    successor.complete(metadata["namespace"], month)
    if not followed.deleted:
        successor.job(reduced_job(followed.world.job))
    assert sum((each.chip_hours for each in successor.totals(month)), Decimal(0)) == in_month


def test_a_profile_with_a_budget_needs_a_ledger() -> None:
    limited = profile(constraints={"chipHoursPerMonth": 10})
    valid, _ = profile_status(limited, used_by=0, now=EVENING, ledger=None).conditions or ()
    assert (valid.status, valid.reason) == ("False", "ProfileInvalid")
    assert "constraints.chipHoursPerMonth: the operator keeps no ledger" in valid.message
    valid, _ = profile_status(limited, used_by=0, now=EVENING, ledger="gs://ledger").conditions or ()
    assert valid.status == "True"
    world = World(profiles=[limited])
    world.reconcile()
    assert world.condition("Valid")["reason"] == "ProfileInvalid"
    assert world.condition("Valid")["message"].endswith("Ask #ml-help.")
