"""The budget of a namespace for a calendar month, as the statuses of its jobs show it. Pure."""

from collections.abc import AsyncIterator
from datetime import datetime

from finetune_operator.cli import text
from finetune_operator.ledger.month import Month
from finetune_operator.objects import Object


def budget_text(budget: Object, now: datetime) -> str:
    """Returns what is left of ``status.monthlyBudget``; empty if it is that of an earlier month."""
    reset = text.instant(budget.get("resetTime"))
    if reset is None or reset <= now:
        return ""
    limit, month = _hours(budget.get("chipHours")), text.cell(budget.get("month"))
    used = budget.get("used")
    if used is None:
        return f"{limit} chip hours in {month} for all jobs of the namespace; what is used is not known yet"
    return (
        f"{_hours(used)} of {limit} chip hours of the namespace used in {month}, "
        f"{_hours(_left(budget))} left until {reset:%Y-%m-%d}"
    )


async def newest_budgets(jobs: AsyncIterator[Object]) -> dict[str, Object]:
    """Returns the newest ``status.monthlyBudget`` of jobs under each profile."""
    found: dict[str, Object] = {}
    async for job in jobs:
        status = job.get("status") or {}
        budget, name = status.get("monthlyBudget"), _profile(status)
        as_of = text.instant((budget or {}).get("asOf"))
        if not budget or not name or as_of is None:
            continue
        before = text.instant(found.get(name, {}).get("asOf"))
        if before is None or before < as_of:
            found[name] = budget
    return found


def monthly_limit(profile: Object) -> object:
    """Returns the chip hours that a profile gives each namespace for a month; None if it sets no limit."""
    return (profile["spec"].get("constraints") or {}).get("chipHoursPerMonth")


def known_text(profile: Object, newest: Object | None, now: datetime) -> str:
    """Returns the budget that a profile gives a namespace, with what the newest status shows of its usage; empty if the
    profile gives none."""
    limit = monthly_limit(profile)
    if limit is None:
        return ""
    # The limit may have been changed since.
    shown = budget_text({**newest, "chipHours": str(limit)}, now) if newest else ""
    return (
        shown
        or f"{_hours(limit)} chip hours in {Month.of(now)}; no job of the namespace shows yet what is used"
    )


def _hours(value: object) -> str:
    try:
        return f"{float(str(value)):,.2f}".removesuffix(".00")
    except ValueError:
        return text.cell(value)


def _left(budget: Object) -> float:
    try:
        return max(0.0, float(str(budget.get("chipHours"))) - float(str(budget.get("used"))))
    except ValueError:
        return 0.0


def _profile(status: Object) -> str:
    return str(((status.get("resolved") or {}).get("profile") or {}).get("name") or "")
