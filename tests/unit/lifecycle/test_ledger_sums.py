"""The records of the ledger add up to the statuses, whatever happened to the jobs, the operator and the ledger."""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

import pytest

from finetune_contract import Stage
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord
from finetune_operator.ledger.sums import item_of, item_of_status, summed
from tests.unit.lifecycle.simulated_jobs import SimulatedJob, amount, hours

#: Chip hours of some seconds of an attempt, which become known after it has been recorded.
LATE = Decimal("0.01")


def lived(numbers: Iterable[int]) -> list[SimulatedJob]:
    jobs = [SimulatedJob(number) for number in numbers]
    for each in jobs:
        each.live()
    return jobs


def check(jobs: list[SimulatedJob]) -> Counter[str]:
    """Checks jobs one by one and all together. Returns the number of records by outcome."""
    outcomes = Counter[str]()
    everything: list[LedgerRecord] = []
    summable: list[SimulatedJob] = []
    for each in jobs:
        records = list((each.world.ledger or {}).values())
        outcomes.update(str(record.outcome) for record in records)
        status, name = each.world.status, each.world.job["metadata"]["name"]
        at_most = each.unreported or status
        used = sum((record.chip_hours for record in records), Decimal(0))
        paid = sum((record.cost or Decimal(0) for record in records), Decimal(0))
        assert hours(status) <= used <= hours(at_most), name
        assert amount(status) <= paid <= amount(at_most), name
        for as_of, reported in each.reports:
            until = sum((record.chip_hours for record in records if record.day <= as_of.date()), Decimal(0))
            assert until + LATE >= reported, f"{name}: usage of {as_of} counts on a later day"
        if each.unreported:
            continue
        summable.append(each)
        everything += records
        ends = [(record.stage, record.number, record.restart) for record in records if record.ends_attempt]
        if not each.deleted:
            assert len(ends) == (status.get("attempts") or {}).get("total", 0), (
                f"{name}: attempts are missing"
            )
    for field in ("namespace", "profile", "model"):
        by_ledger, total = summed(map(item_of, everything), lambda item, f=field: str(getattr(item, f)))
        statuses = [item for each in summable if (item := item_of_status(each.world.job))]
        by_status, expected = summed(statuses, lambda item, f=field: str(getattr(item, f)))
        assert {name: each.chip_hours for name, each in by_ledger.items()} == {
            name: each.chip_hours for name, each in by_status.items()
        }
        assert (total.chip_hours, dict(total.cost)["USD"]) == (
            expected.chip_hours,
            dict(expected.cost)["USD"],
        )
    return outcomes


def test_records_add_up_to_the_statuses() -> None:
    check(lived(range(40)))


@pytest.mark.slow
def test_the_records_of_further_jobs_add_up_to_the_statuses() -> None:
    check(lived(range(40, 300)))


@pytest.mark.thorough
def test_the_records_of_a_thousand_jobs_add_up_to_the_statuses() -> None:
    jobs = lived(range(1000))
    outcomes = check(jobs)
    # Each kind of life has occurred, often.
    assert all(outcomes[kind] > 5 for kind in LedgerOutcome), outcomes
    assert sum(each.unreported is not None for each in jobs) > 10
    assert sum(each.deleted for each in jobs) > 200
    assert sum(each.evictions for each in jobs) > 100
    capacities = Counter(
        str(record.capacity)
        for each in jobs
        for record in (each.world.ledger or {}).values()
        if record.stage is Stage.TRAIN and record.chip_hours
    )
    assert capacities["Spot"] > 50
    assert capacities["OnDemand"] > 50
