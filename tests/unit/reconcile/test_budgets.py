"""The ledger is read once for each namespace and month; from then on nothing is read to know what is used."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api.timestamps import stamp
from finetune_operator.artifacts.port import StorageDenied, StorageUnavailable
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.month import Month, MonthlyBudget
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.lifecycle.job import Job
from finetune_operator.objects import Object
from finetune_operator.planning import StoredPlan, read_stored_plan, render_stored_plan
from finetune_operator.reconcile.budgets import Budgets, TrainingTimes
from finetune_operator.reconcile.ledger import Ledger
from finetune_operator.runtime.metrics import OperatorMetrics, _month
from tests.unit.ledger.test_record import record
from tests.unit.reconcile.fakes import FakeStore, job
from tests.unit.runtime.virtual_time import run_in_virtual_time

URI = "gs://ledger"
BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)


class NoTrainings(TrainingTimes):
    """Reads nothing."""

    async def read(self, *_: Any) -> None:
        return


class Bench:
    """Budgets on a store of records that a test can make fail, in virtual time."""

    def __init__(self, *, now: datetime = BEGIN, uri: str | None = URI) -> None:
        self.store = FakeStore()
        self.begin = now
        self.away: Exception | None = None
        self.store.fault = lambda moment, _call: self.away if moment == "before" else None
        self.budgets = Budgets(self.store, uri, utc_now=self.now)
        self.budgets._times = NoTrainings()
        self.ledger = Ledger(
            self.store,
            URI,
            utc_now=self.now,
            written=OperatorMetrics().ledger_written,
            recorded=self.budgets.recorded,
        )
        self.known: list[str] = []

    def now(self) -> datetime:
        return self.begin + timedelta(seconds=asyncio.get_running_loop().time())

    def keep(self, *records: LedgerRecord) -> None:
        """The ledger contains these records."""
        for each in records:
            self.store.files[record_uri(URI, each)] = each.to_json()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.budgets.run(self.known.append))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def of(self, found: Object, stored: Object | None = None) -> MonthlyBudget | None:
        return self.budgets.of(Job.parse(found), read_stored_plan(stored or plan()))

    @property
    def listed(self) -> list[str]:
        return [call for call in self.store.calls if call.startswith("list")]


def plan(limit: float | None = None) -> Object:
    """The stored plan of a job that was admitted under the profile local, whose limit was this one."""
    of: dict[str, Any] = {"storage": {"artifacts": "file:///runs", "cache": "file:///cache"}}
    if limit is not None:
        of["constraints"] = {"chipHoursPerMonth": limit}
    spec = {"resources": {"controller": "McJAX"}}
    return render_stored_plan(StoredPlan.make(job(), "local", "0", of, spec))


def profile(limit: float | None) -> Object:
    return {"spec": {} if limit is None else {"constraints": {"chipHoursPerMonth": limit}}}


def used(
    name: str = "demo", hours: str = "1.5", recorded: str = "0", *, runs: bool = False, **status: Any
) -> Any:
    """A job with usage that its status reported at the beginning of the test."""
    running = [{"type": "Running", "status": "True"}] if runs else []
    return job(
        name,
        **{
            "observedGeneration": 1,
            "stage": "Train",
            "resolved": {"profile": {"name": "local", "hash": "0" * 64}, "resources": {"chips": 8}},
            "conditions": running,
            "cost": {"chipHours": hours, "amount": "3", "currency": "USD"},
            "ledger": {"chipHours": recorded, "amount": "0"},
            "activeTime": {"seconds": 60, "asOf": "2026-11-21T12:00:00Z"},
        }
        | status,
    )


def of_team(**values: Any) -> LedgerRecord:
    return record(**{"namespace": "team", "profile": "local", "chip_hours": Decimal(5)} | values)


def virtual(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            await test(Bench())

        run_in_virtual_time(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_the_records_of_the_month_are_read_once(bench: Bench) -> None:
    bench.keep(
        of_team(day=date(2026, 11, 1), number=1),
        of_team(day=date(2026, 11, 20), number=2),
        of_team(day=date(2026, 10, 31), number=3),
        of_team(day=date(2026, 11, 20), number=4, namespace="other"),
        of_team(day=date(2026, 11, 20), number=5, profile="another"),
    )
    bench.budgets.profile("local", profile(100))
    bench.budgets.job(used(hours="2"))
    waits = bench.of(job("next"))
    assert waits is not None
    assert waits.recorded is None
    async with bench.reading():
        await asyncio.sleep(1)
        assert bench.known == ["team"]
        # The days of the month until today, of this namespace.
        assert len(bench.listed) == BEGIN.day
        assert all(call.endswith("/team") for call in bench.listed)
        for _ in range(100):
            bench.budgets.job(used(hours="2"))
            found = bench.of(job("next"))
        await asyncio.sleep(24 * 3600)
        assert len(bench.listed) == BEGIN.day
    assert found == MonthlyBudget(
        profile="local", month=Month(2026, 11), limit=100, recorded=10, others=2, chips=0, own=0
    )


@virtual
async def test_what_runs_counts_until_now(bench: Bench) -> None:
    bench.budgets.profile("local", profile(100))
    bench.budgets.job(used(hours="2", recorded="0.5", runs=True))
    async with bench.reading():
        await asyncio.sleep(900)
        found = bench.of(job("next"))
        assert found is not None
        assert (found.recorded, found.others, found.chips) == (0, 1.5 + 8 / 4, 8)
        own = bench.of(used(hours="2", runs=True))
        assert own is not None
        assert (own.others, own.chips, own.own) == (0, 0, 0.5)


@virtual
async def test_usage_counts_once_while_it_is_being_recorded(bench: Bench) -> None:
    bench.budgets.profile("local", profile(100))
    bench.budgets.job(used(hours="2"))
    async with bench.reading():
        await asyncio.sleep(1)

        def known() -> float:
            found = bench.of(job("next"))
            assert found is not None
            assert found.recorded is not None
            return found.recorded + found.others

        assert known() == 2
        made = of_team(uid="uid-of-demo", chip_hours=Decimal(2))
        await bench.ledger.write([made])
        assert known() == 2
        # An event with the status before the record.
        bench.budgets.job(used(hours="2"))
        assert known() == 2
        # The same record is decided again after an error.
        await bench.ledger.write([made])
        bench.budgets.job(used(hours="2", recorded="2"))
        assert known() == 2


@virtual
async def test_a_deleted_job_counts_before_its_record_is_written(bench: Bench) -> None:
    bench.budgets.profile("local", profile(100))
    stages = [{"name": "Train", "phase": "Running", "jobSet": "demo-train-1", "attempt": 1}]
    resolved = {"profile": {"name": "local", "hash": "0" * 64}}
    deleted = used(hours="2", stages=stages, resolved=resolved)
    bench.budgets.job(deleted)
    async with bench.reading():
        await asyncio.sleep(1)
        bench.away = StorageUnavailable(URI, "away")
        bench.ledger.close(deleted)
        bench.budgets.gone("team", "uid-of-demo")
        found = bench.of(job("next"))
        assert found is not None
        assert (found.recorded, found.others) == (2, 0)


@virtual
async def test_a_ledger_that_is_away_is_read_again_with_backoff(bench: Bench) -> None:
    bench.away = StorageDenied(URI, "no role")
    bench.budgets.profile("local", profile(100))
    bench.budgets.job(used())
    async with bench.reading():
        await asyncio.sleep(300)
        found = bench.of(job("next"))
        assert found is not None
        assert found.recorded is None
        assert bench.budgets.unreadable == 1
        assert list(bench.budgets.totals()) == []
        # After 5, 10, 20, 40 and then every 60 s.
        assert len([call for call in bench.listed if "2026-11-21" in call]) == 8
        bench.away = None
        await asyncio.sleep(60)
        assert bench.budgets.unreadable == 0
        assert bench.known == ["team"]


@virtual
async def test_the_next_month_begins_with_what_is_recorded_in_it(bench: Bench) -> None:
    bench.keep(of_team(day=date(2026, 11, 20)))
    bench.budgets.profile("local", profile(100))
    bench.budgets.job(used(recorded="1.5"))
    async with bench.reading():
        await asyncio.sleep((Month(2026, 11).end - BEGIN).total_seconds() - 1)
        found = bench.of(job("next"))
        assert found is not None
        assert (found.month, found.recorded) == (Month(2026, 11), 5)
        bench.keep(of_team(day=date(2026, 12, 1), number=7, chip_hours=Decimal(1)))
        await asyncio.sleep(2)
        found = bench.of(job("next"))
        assert found is not None
        assert (found.month, found.recorded) == (Month(2026, 12), 1)
        assert bench.known == ["team", "team"]


@virtual
async def test_a_fault_of_the_operator_while_reading_ends_nothing(bench: Bench) -> None:
    bench.away = ValueError("a bug")
    bench.budgets.profile("local", profile(100))
    bench.budgets.job(used())
    async with bench.reading():
        await asyncio.sleep(4)
        assert bench.budgets.unreadable == 1
        bench.away = None
        await asyncio.sleep(10)
        assert bench.known == ["team"]


@virtual
async def test_garbage_in_the_ledger_is_passed_over(bench: Bench) -> None:
    bench.keep(of_team())
    bench.store.files[f"{URI}/v1/2026-11-20/team/x/y.json"] = b"\xff{"
    bench.store.files[f"{URI}/v1/2026-11-20/team/x/z.json"] = b" " * 20_000
    bench.budgets.profile("local", profile(100))
    bench.budgets.job(used())
    async with bench.reading():
        await asyncio.sleep(1)
        found = bench.of(job("next"))
        assert found is not None
        assert found.recorded == 5


@pytest.mark.parametrize(
    ("present", "admitted", "limit"),
    [
        (profile(7), None, 7),
        (profile(7), 3.0, 7),
        (profile(None), 3.0, None),
        (profile(0), None, 0),
        (None, 3.0, 3),
        (None, None, None),
    ],
    ids=["added", "raised", "removed", "zero", "deleted", "no limit"],
)
def test_the_limit_is_that_of_the_present_profile_or_the_admitted_one_if_it_is_deleted(
    present: Object | None, admitted: float | None, limit: float | None
) -> None:
    async def check() -> None:
        bench = Bench()
        bench.budgets.profile("local", profile(1))
        bench.budgets.profile("local", present)
        found = bench.of(job(), plan(admitted))
        assert (found and found.limit) == limit

    run_in_virtual_time(check())


def test_only_a_change_of_the_limit_is_one() -> None:
    budgets = Budgets(FakeStore(), URI, utc_now=lambda: BEGIN)
    assert not budgets.profile("local", profile(None))
    assert budgets.profile("local", profile(3))
    assert not budgets.profile("local", profile(3))
    assert budgets.profile("local", profile(0))
    assert budgets.profile("local", None)


def test_a_job_without_a_plan_has_the_budget_of_the_profile_in_its_status() -> None:
    budgets = Budgets(FakeStore(), URI, utc_now=lambda: BEGIN)
    budgets.profile("local", profile(3))
    found = budgets.of(Job.parse(used()), None)
    assert found is not None
    assert found.limit == 3
    assert budgets.of(Job.parse(job()), None) is None


def test_without_a_ledger_the_usage_stays_unknown() -> None:
    async def check() -> None:
        bench = Bench(uri=None)
        bench.budgets.profile("local", profile(3))
        bench.budgets.job(used())
        async with bench.reading():
            await asyncio.sleep(100)
            found = bench.of(job("next"))
            assert found is not None
            assert found.recorded is None
            assert bench.store.calls == []

    run_in_virtual_time(check())


@virtual
async def test_metrics_of_the_month_are_the_same_after_a_restart(bench: Bench) -> None:
    bench.keep(of_team(cost=Decimal("1.25")), of_team(number=3, cost=Decimal(1), profile="another"))
    bench.budgets.profile("local", profile(100))
    running = used(hours="2", recorded="0.5")
    bench.budgets.job(running)
    successor = Budgets(bench.store, URI, utc_now=bench.now)
    successor.profile("local", profile(100))
    successor.job(running)
    task = asyncio.create_task(successor.run(lambda _namespace: None))
    async with bench.reading():
        await asyncio.sleep(1)
    task.cancel()

    def scraped(budgets: Budgets) -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in _month(budgets)
            for sample in family.samples
        }

    assert (
        scraped(bench.budgets)
        == scraped(successor)
        == {
            ("finetune_month_chip_hours", "team", "local"): 6.5,
            ("finetune_month_chip_hours", "team", "another"): 5,
            ("finetune_month_chip_hours_limit", "team", "local"): 100,
            ("finetune_month_cost", "team", "local", "USD"): 4.25,
            ("finetune_month_cost", "team", "another", "USD"): 1,
        }
    )


@virtual
async def test_attempts_that_have_used_no_chips_take_no_memory(bench: Bench) -> None:
    # Any number of them costs a tenant nothing.
    free = of_team(stage=Stage.PREFLIGHT, capacity=None, chip_hours=Decimal(0), cost=None)
    records = [free.model_copy(update={"uid": f"uid-{number}"}) for number in range(2000)]
    bench.budgets.recorded(free)
    tracemalloc.start()
    try:
        for each in records:
            bench.budgets.recorded(each)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50 * len(records)


@virtual
async def test_jobs_that_are_deleted_before_each_report_of_their_usage_use_up_the_budget(
    bench: Bench,
) -> None:
    bench.budgets.profile("local", profile(100))
    async with bench.reading():
        for number in range(10):
            began = stamp(bench.now())
            short = used(f"short-{number}", "0", runs=True, activeTime={"seconds": 0, "asOf": began})
            bench.budgets.job(short)
            await asyncio.sleep(360)
            bench.ledger.close(short)
            bench.budgets.gone("team", f"uid-of-short-{number}")
        found = bench.of(job("next"))
    assert found is not None
    assert (found.others, found.chips) == (pytest.approx(8), 0)
    # A deletion may be observed late.
    bench.budgets.job(used("late", "0", runs=True))
    bench.budgets.gone("team", "uid-of-late")
    found = bench.of(job("next"))
    assert found is not None
    assert found.others == pytest.approx(8 + 8 / 4)


@virtual
async def test_a_job_that_a_finalizer_keeps_uses_its_chips_no_longer(bench: Bench) -> None:
    bench.budgets.profile("local", profile(100))
    kept = used(hours="2", runs=True)
    kept["metadata"]["deletionTimestamp"] = "2026-11-21T13:00:00Z"
    bench.budgets.job(kept)
    async with bench.reading():
        await asyncio.sleep(1800)
        during = bench.of(job("next"))
        await asyncio.sleep(5 * 24 * 3600)
        later = bench.of(job("next"))
    assert during is not None
    assert later is not None
    assert (during.others, during.chips) == (2 + 8 / 2, 8)
    assert (later.others, later.chips) == (pytest.approx(2 + 8 * 65 / 60), 0)


class SlowPast(FakeStore):
    """A store that never answers about days before the month of the test."""

    async def list(self, uri: str, **options: Any) -> Any:
        if "/2026-11-" not in uri:
            await asyncio.Event().wait()
        return await super().list(uri, **options)


@virtual
async def test_no_budget_waits_for_past_trainings(bench: Bench) -> None:
    budgets = Budgets(SlowPast(), URI, utc_now=bench.now)
    names, known = [f"team-{number}" for number in range(20)], list[str]()
    for name in names:
        budgets.job({**job("first"), "metadata": {**job("first")["metadata"], "namespace": name}})
    task = asyncio.create_task(budgets.run(known.append))
    await asyncio.sleep(60)
    task.cancel()
    await asyncio.wait({task})
    assert sorted(known) == sorted(names)
