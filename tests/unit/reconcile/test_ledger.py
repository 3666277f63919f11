"""Records are written once; what the ledger cannot take stays due, and is never lost without a trace."""

import asyncio
import logging
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import ConditionType, FineTuneJobStatus, Phase
from finetune_operator.artifacts.port import StorageDenied, StorageUnavailable
from finetune_operator.cluster.port import JOBS
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord
from finetune_operator.lifecycle.accounting.recorded import with_records
from finetune_operator.lifecycle.accounting.records import closing_records
from finetune_operator.lifecycle.decision import Decision, Wait
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.reconcile import ledger as module
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.ledger import Ledger
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import Reconciler
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.metrics import OperatorMetrics
from tests.unit.ledger.test_record import record
from tests.unit.reconcile.fakes import NOW, OWN, FakeCluster, FakeStore, job

URI = "gs://ledger"
RUNNING = FineTuneJobStatus(observed_generation=1, phase=Phase.RUNNING)


class Bench:
    """A ledger in a store that a test can make fail."""

    def __init__(self) -> None:
        self.store, self.metrics = FakeStore(), OperatorMetrics()
        self.ledger = Ledger(self.store, URI, utc_now=lambda: NOW, written=self.metrics.ledger_written)

    def away(self, error: Exception | None) -> None:
        self.store.fault = lambda moment, call: (
            error if moment == "before" and call.startswith("create") else None
        )

    @property
    def records(self) -> list[LedgerRecord]:
        return [found for each in self.store.files.values() if (found := LedgerRecord.parse(each))]

    def written(self, result: str) -> float:
        return (
            self.metrics.registry.get_sample_value("finetune_ledger_records_total", {"result": result}) or 0.0
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()


def stopped(hours: str = "1.5", *, finished: bool = False, **ledger: Any) -> dict[str, Any]:
    """A job whose training has used chip hours that no record contains."""
    made = job(
        observedGeneration=1,
        stage="Train",
        stages=[{"name": "Train", "phase": "Running", "jobSet": "demo-train-1", "attempt": 1}],
        cost={"chipHours": hours, "amount": "3", "currency": "USD"},
        activeTime={"seconds": 60, "asOf": "2026-11-20T23:59:00Z"},
        **({"ledger": ledger} if ledger else {}),
    )
    if finished:
        ended = {"type": ConditionType.FINISHED, "status": "True", "reason": "Failed", "message": ""}
        ended |= {"lastTransitionTime": "2026-11-20T23:59:00Z", "observedGeneration": 1}
        made["status"]["conditions"] = [ended]
    return made


async def test_a_record_that_exists_counts_as_it_is_stored(bench: Bench) -> None:
    first, again = record(chip_hours="1"), record(chip_hours="2")
    assert await bench.ledger.write([first]) == [first]
    # What it lacks is due next, before what follows.
    assert await bench.ledger.write([again, record(number=3)]) == [first]
    assert bench.records == [first]


async def test_records_are_written_in_order_up_to_the_first_that_cannot_be(bench: Bench) -> None:
    records = [record(number=number) for number in (1, 2, 3)]
    bench.store.fault = lambda moment, call: (
        StorageUnavailable(URI, "away") if moment == "before" and "train-2" in call else None
    )
    assert await bench.ledger.write(records) == records[:1]
    assert bench.ledger.pending == 1
    bench.away(None)
    assert await bench.ledger.write(records[1:]) == records[1:]
    assert bench.ledger.pending == 0
    assert (bench.written("ok"), bench.written("error")) == (3, 1)


async def test_an_object_that_is_no_record_is_not_replaced(bench: Bench) -> None:
    bench.store.files[record_uri(URI, record())] = b"something else"
    assert await bench.ledger.write([record()]) == []
    assert bench.store.files[record_uri(URI, record())] == b"something else"


async def test_a_ledger_that_hangs_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECORD_SECONDS", 0.01)

    async def hang(_uri: str, _content: bytes) -> bool:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(bench.store, "create", hang)
    assert await bench.ledger.write([record()]) == []
    assert bench.ledger.pending == 1


async def test_of_a_deleted_job_what_is_left_is_recorded_once(bench: Bench) -> None:
    written = asyncio.Event()
    bench.store.fault = lambda moment, _call: written.set() if moment == "after" else None  # type: ignore[func-returns-value]
    work = asyncio.create_task(bench.ledger.run())
    # The watch and the cache both observe the deletion.
    bench.ledger.close(stopped())
    bench.ledger.close(stopped())
    await written.wait()
    work.cancel()
    (found,) = bench.records
    assert (found.outcome, str(found.chip_hours), str(found.cost)) == ("Deleted", "1.500000", "3.000000")
    assert found.day == date(2026, 11, 20)
    assert bench.ledger.has_closed("uid-of-demo")
    assert not bench.ledger.has_closed("uid-of-other")


@pytest.mark.parametrize(
    "gone",
    [
        job(),
        stopped(finished=True),
        stopped(chipHours="1.5", amount="3", attempts=[{"stage": "Train", "number": 1}]),
    ],
    ids=["never ran", "ended and recorded", "recorded"],
)
async def test_nothing_is_left_of_a_job_that_is_recorded(bench: Bench, gone: dict[str, Any]) -> None:
    bench.ledger.close(gone)
    await bench.ledger.finish()
    assert bench.records == []


async def test_usage_that_no_record_of_the_last_attempt_contains_has_its_own(bench: Bench) -> None:
    bench.ledger.close(
        stopped(records=3, chipHours="1", amount="2", attempts=[{"stage": "Train", "number": 1}])
    )
    await bench.ledger.finish()
    (found,) = bench.records
    assert (found.outcome, str(found.chip_hours), str(found.cost)) == ("Running", "0.500000", "1.000000")
    assert [uri for uri in bench.store.files if uri.endswith("/train-1-4.json")]


async def test_usage_since_a_record_that_was_written_before_a_crash_has_its_own(bench: Bench) -> None:
    (whole,) = closing_records(Job.parse(stopped()), NOW)
    day = whole.model_copy(
        update={"outcome": LedgerOutcome.RUNNING, "chip_hours": Decimal("0.5"), "cost": Decimal(1)}
    )
    await bench.ledger.write([day])
    bench.ledger.close(stopped())
    await bench.ledger.finish()
    assert [(each.sequence, str(each.outcome), str(each.chip_hours)) for each in bench.records] == [
        (1, "Running", "0.5"),
        (2, "Deleted", "1.000000"),
    ]


async def test_deleted_jobs_wait_for_the_ledger_with_backoff(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    written = asyncio.Event()

    def fault(moment: str, _call: str) -> Exception | None:
        if moment == "after":
            written.set()
        return StorageUnavailable(URI, "away") if moment == "before" and len(pauses) < 3 else None

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(module, "sleep", pause)
    bench.store.fault = fault
    bench.ledger.close(stopped())
    assert bench.ledger.pending == 1
    work = asyncio.create_task(bench.ledger.run())
    await written.wait()
    work.cancel()
    assert pauses == [5, 10, 20]
    assert len(bench.records) == 1


async def test_what_cannot_be_written_before_the_process_ends_is_in_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.away(StorageDenied(URI, "no role"))
    bench.ledger.close(stopped())
    with caplog.at_level(logging.ERROR):
        await bench.ledger.finish()
    (line,) = [each for each in caplog.messages if "store this as" in each]
    uri, _, content = line.partition("store this as ")[2].partition(": {")
    kept = LedgerRecord.parse(b"{" + content.encode())
    assert kept is not None
    assert (uri, str(kept.chip_hours)) == (record_uri(URI, kept), "1.500000")


def reconciler(cluster: FakeCluster, decide: Callable[[Observation], Decision], ledger: Ledger) -> Reconciler:
    plans, store = Plans(cluster, OWN), FakeStore()
    observer = Observer(
        cluster,
        plans,
        RunFolderReader(store),
        WatchCache(),
        utc_now=lambda: NOW,
        live_jobs=lambda: 3,
        ledger=ledger.uri,
    )
    applier = Applier(cluster, plans, store, WatchCache())
    return Reconciler(observer, decide, applier, utc_now=lambda: NOW, ledger=ledger)


async def test_a_reconcile_writes_the_status_once_with_what_is_recorded(bench: Bench) -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    due = (record(number=1, chip_hours="2.5", cost=None),)

    def decide(observation: Observation) -> Decision:
        assert observation.ledger == URI
        return Decision(action=Wait(), status=with_records(RUNNING, due), ledger=due, requeue_after=900)

    key = JobKey("team", "demo")
    bench.away(StorageUnavailable(URI, "away"))
    # The job is reconciled although the ledger is away, and again soon.
    assert await reconciler(cluster, decide, bench.ledger).reconcile(key, retry_in=1) == 60
    assert cluster.of(JOBS)[0]["status"]["ledger"] == {
        "records": 0,
        "chipHours": "0",
        "pending": 1,
        "pendingDay": str(due[0].day),
    }
    bench.away(None)
    cluster.calls.clear()
    assert await reconciler(cluster, decide, bench.ledger).reconcile(key, retry_in=1) == 900
    shown = {"records": 1, "chipHours": "2.5", "attempts": [{"stage": Stage.TRAIN, "number": 1}]}
    assert cluster.of(JOBS)[0]["status"]["ledger"] == shown
    assert cluster.writes() == ["patch finetunejobs/status"]


@pytest.mark.parametrize(
    ("hours", "values", "pending"),
    [
        ((1, 2), [{"hours": 1}, {"hours": 2}], 0),
        ((1, 2), [{"hours": 1}], 1),
        # Another end, from a status that is lost: nothing is left of it.
        ((1, 2), [{"hours": 1, "reason": "Stopped"}], 1),
        ((1, 2), [{"hours": 1}, {"hours": 2, "reason": "Stopped"}], 0),
        # Written before a crash, for less usage: the rest is due with the next record, or as one.
        ((2, 2), [{"hours": 1}], 1),
        ((1, 2), [{"hours": 1}, {"hours": 1}], 1),
        # The attempt has ended since.
        ((1, 2), [{"hours": 1, "outcome": LedgerOutcome.RUNNING}], 2),
        ((1, 2), [{"hours": 1}, {"hours": 2, "outcome": LedgerOutcome.RUNNING}], 1),
    ],
)
def test_pending_is_the_number_of_records_that_are_due_next(
    hours: tuple[int, ...], values: list[dict[str, Any]], pending: int
) -> None:
    due = [
        record(sequence=number, number=number, chip_hours=Decimal(used))
        for number, used in enumerate(hours, 1)
    ]
    stored = [
        entry.model_copy(update=update | {"chip_hours": Decimal(update["hours"])})
        for entry, update in zip(due, values, strict=False)
    ]
    ledger = with_records(RUNNING, due, stored).ledger
    assert ledger is not None
    assert (ledger.records, ledger.pending or 0) == (len(stored), pending)
