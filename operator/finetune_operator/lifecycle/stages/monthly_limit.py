"""What the job's namespace has used of its budget for the calendar month."""

from dataclasses import dataclass

from finetune_operator.api.numbers import decimal
from finetune_operator.ledger.month import Month, MonthlyBudget
from finetune_operator.lifecycle.attempts.usage import Usage, reported_amount
from finetune_operator.lifecycle.observation import Observation

#: Field of a profile that sets the budget.
FIELD = "constraints.chipHoursPerMonth"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyLimit:
    """The budget, and what has been used of it."""

    budget: MonthlyBudget
    used: float | None
    """Chip hours in the month until now. None: unknown."""

    @property
    def exhausted(self) -> bool:
        return self.used is not None and self.used >= self.budget.limit


def monthly_limit(observation: Observation, used: Usage) -> MonthlyLimit | None:
    """Returns the budget with the usage of the namespace, which includes ``used``, that of the job over all months.

    None: the profile sets none.
    """
    budget, status = observation.month, observation.status
    if budget is None:
        return None
    if budget.recorded is None:
        return MonthlyLimit(budget=budget, used=None)
    as_of = status.active_time.as_of if status.active_time else None
    cost = reported_amount(status.cost.chip_hours) if status.cost else None
    ledger = reported_amount(status.ledger.chip_hours) if status.ledger else None
    # A report of an earlier month is recorded in that month.
    earlier = as_of is not None and Month.of(as_of) < budget.month
    before = (cost or 0.0) if earlier else max(ledger or 0.0, budget.own)
    own = max(0.0, used.chip_hours - before)
    return MonthlyLimit(budget=budget, used=budget.recorded + budget.others + own)


def hours_text(hours: float) -> str:
    """Returns chip hours for people: ``1,310.25``, ``0.0022``."""
    return f"{hours:,.2f}".removesuffix(".00") if hours >= 100 else decimal(round(hours, 4))
