"""Past trainings are read from the ledger once for each namespace, and nothing waits for them."""

from datetime import date, timedelta

from finetune_contract import Stage
from finetune_operator.artifacts.port import StorageUnavailable
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.record import LedgerRecord, TrainedSteps
from finetune_operator.planning.estimate.past_runs import DAYS, PastRuns, TrainingShape
from finetune_operator.reconcile.budgets import TrainingTimes
from finetune_operator.reconcile.ledger_reader import LedgerReader
from tests.unit.ledger.test_record import record
from tests.unit.reconcile.fakes import FakeStore
from tests.unit.runtime.virtual_time import run_in_virtual_time

URI, TODAY = "gs://ledger", date(2026, 11, 21)
TRAINED = TrainedSteps(
    start_step=0, end_step=100, attempts=1, seconds=1, method="SFT", lora=True, max_seq_length=1024,
    global_batch_size=8,
)  # fmt: skip


def training(seconds: int = 1000, **values: object) -> LedgerRecord:
    trained = TRAINED.model_copy(update={"seconds": seconds})
    fields = {"model": "a/b", "tpu": "v6e-4", "chips": 4, "trained": trained, "day": TODAY}
    return record(**fields | values)


def shape() -> TrainingShape:
    found = TrainingShape.of_record(training())
    assert found is not None
    return found


def past(jobs: int, low: float, median: float, high: float) -> PastRuns:
    return PastRuns(
        attempts=jobs, jobs=jobs, fewest_steps=100, most_steps=100, low=low, median=median, high=high
    )


def store_with(*records: LedgerRecord) -> FakeStore:
    store = FakeStore()
    for each in records:
        store.files[record_uri(URI, each)] = each.to_json()
    return store


async def read(times: TrainingTimes, store: FakeStore, namespace: str = "team-a") -> None:
    await times.read(namespace, LedgerReader(store, URI), TODAY)


def test_the_trainings_of_the_last_days_are_read() -> None:
    oldest = TODAY - timedelta(days=DAYS)
    kept = (training(uid="one"), training(uid="two", day=oldest, seconds=3000))
    others = (
        training(number=3, day=oldest - timedelta(days=1)),
        training(number=4, namespace="team-b"),
        record(stage=Stage.EVALUATE, day=TODAY),
    )
    times, store = TrainingTimes(), store_with(*kept, *others)
    run_in_virtual_time(read(times, store))
    assert times.of("team-a").of(shape()) == past(2, 10, 20, 30)
    assert times.of("team-b").of(shape()) is None
    assert not [call for call in store.calls if call.startswith("read") and "eval-" in call]


def test_a_written_record_adds_to_what_was_read() -> None:
    times = TrainingTimes()
    run_in_virtual_time(read(times, store_with(training(uid="one"))))
    times.recorded(training(uid="one"))
    assert times.of("team-a").of(shape()) == past(1, 10, 10, 10)
    times.recorded(training(uid="two", seconds=2000))
    assert times.of("team-a").of(shape()) == past(2, 10, 15, 20)


def test_a_ledger_that_is_away_is_read_again() -> None:
    times, store = TrainingTimes(), store_with(training())
    faults = iter([StorageUnavailable(URI, "away"), None])
    store.fault = lambda moment, call: next(faults, None) if moment == "before" and "list" in call else None
    run_in_virtual_time(read(times, store))
    assert times.of("team-a").of(shape()) is not None


def test_a_fault_of_the_operator_while_reading_ends_nothing() -> None:
    times, store = TrainingTimes(), store_with(training())
    faults = iter([ValueError("a bug"), None])
    store.fault = lambda moment, _call: next(faults, None) if moment == "before" else None
    run_in_virtual_time(read(times, store))
    assert times.of("team-a").of(shape()) is not None
