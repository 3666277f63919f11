"""The state machine of :mod:`.test_machine` with a ledger that may be away, and with crashes between its writes."""

from decimal import Decimal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, rule

from tests.unit.lifecycle.simulated_jobs import amount, hours
from tests.unit.lifecycle.test_machine import Machine

pytestmark = pytest.mark.slow


class LedgerMachine(Machine):
    """At any time the ledger contains at most what the job has used, and at its end all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.world.ledger = {}

    @rule()
    def the_ledger_is_away_or_back(self) -> None:
        self.world.ledger_away = not self.world.ledger_away

    @property
    def in_ledger(self) -> tuple[Decimal, Decimal]:
        records = (self.world.ledger or {}).values()
        return (
            sum((each.chip_hours for each in records), Decimal(0)),
            sum((each.cost or Decimal(0) for each in records), Decimal(0)),
        )

    @invariant()
    def the_ledger_never_contains_more_than_was_used(self) -> None:
        if not self.wiped:
            assert self.in_ledger[0] <= Decimal(self.world.chip_hours) + Decimal("0.001")
            assert self.in_ledger[1] <= Decimal(self.world.cost) + Decimal("0.001")

    def teardown(self) -> None:
        self.world.ledger_away = False
        super().teardown()
        self.world.reconcile()
        while "pending" in (self.world.status.get("ledger") or {}):
            self.world.reconcile()
        if not self.wiped:
            assert self.in_ledger == (hours(self.world.status), amount(self.world.status))


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
