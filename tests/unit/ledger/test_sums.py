"""Sums are exact, by currency and by capacity; any status of a job can be summed."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.ledger.sums import CostItem, item_of, item_of_status, summed
from tests.unit.ledger.test_record import record

AMOUNTS = st.decimals(min_value=0, max_value=10**9, places=6)


def item(group: str, hours: Decimal, cost: Decimal | None, currency: str = "USD", uid: str = "u") -> CostItem:
    return CostItem(
        namespace=group,
        uid=uid,
        profile="p",
        model="m",
        labels={},
        capacity="Spot",
        attempts=1,
        chip_hours=hours,
        cost=cost,
        currency=currency,
    )


@given(
    st.lists(
        st.builds(item, st.sampled_from("abc"), AMOUNTS, st.none() | AMOUNTS, st.sampled_from(["USD", "EUR"]))
    )
)
def test_groups_add_up_to_the_total_whatever_their_order(items: list[CostItem]) -> None:
    groups, total = summed(items, lambda each: each.namespace)
    assert sum((each.chip_hours for each in groups.values()), Decimal(0)) == total.chip_hours
    assert sum((each.unpriced for each in groups.values()), Decimal(0)) == total.unpriced
    for currency, amount in total.cost.items():
        assert sum((each.cost.get(currency, Decimal(0)) for each in groups.values()), Decimal(0)) == amount
    assert summed(reversed(items), lambda each: each.namespace)[1] == total


def test_amounts_that_floats_would_round_are_exact() -> None:
    _, total = summed([item("a", Decimal("0.1"), Decimal("0.1"))] * 3, lambda each: each.namespace)
    assert (total.chip_hours, total.cost["USD"]) == (Decimal("0.3"), Decimal("0.3"))


def test_the_group_with_the_most_chip_hours_comes_first() -> None:
    groups, _ = summed(
        [item("a", Decimal(1), None), item("b", Decimal(2), None)], lambda each: each.namespace
    )
    assert list(groups) == ["b", "a"]


def test_an_interim_record_is_no_attempt() -> None:
    assert [item_of(record(outcome=each)).attempts for each in ("Running", "Failed")] == [0, 1]


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        [],
        "x",
        {"cost": None},
        {"cost": {"chipHours": 7}},
        {"cost": {"chipHours": "NaN", "amount": "x"}},
    ],
)
def test_a_status_with_anything_in_it_can_be_summed(status: Any) -> None:
    found = item_of_status({"metadata": {"uid": "u", "namespace": "a"}, "status": status})
    assert found is None or (found.chip_hours, found.cost) == (0, None)
