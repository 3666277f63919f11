"""``status.cost``."""

from math import floor

from finetune_operator.api.numbers import decimal
from finetune_operator.api.status_stages import CostStatus
from finetune_operator.lifecycle.attempts.usage import Usage, reported_amount
from finetune_operator.lifecycle.stages.spending import against
from finetune_operator.planning import Plan


def cost_status(plan: Plan, used: Usage) -> CostStatus:
    """Returns ``status.cost``."""
    left = [ceiling.most - amount for ceiling, amount in against(plan, used)]
    return CostStatus.model_construct(
        chip_hours=rounded_down(used.chip_hours),
        amount=None if used.cost is None else rounded_down(used.cost),
        currency=plan.currency,
        # Of the budget in money if there is one, else of that in chip hours.
        budget_remaining=decimal(round(max(0.0, left[-1]), 4)) if left else None,
    )


def grown_cost(reported: CostStatus | None, used: Usage, *, in_money: bool) -> CostStatus:
    """Returns ``status.cost`` of a job without a usable plan, from the last report and what is used now.

    ``in_money``: whether the job's budget limits the cost.
    """
    before = reported or CostStatus.model_construct(chip_hours="0")
    more = used.chip_hours - (reported_amount(before.chip_hours) or 0.0)
    if in_money:
        more = (used.cost or 0.0) - (reported_amount(before.amount) or 0.0)
    left = reported_amount(before.budget_remaining)
    return before.model_copy(
        update={
            "chip_hours": rounded_down(used.chip_hours),
            "amount": None if before.amount is None else rounded_down(used.cost or 0.0),
            "budget_remaining": None if left is None else decimal(round(max(0.0, left - max(0.0, more)), 4)),
        }
    )


def rounded_down(value: float) -> str:
    """Returns chip hours or money to six decimals, so that ten seconds of one cheap chip keep three digits. It is never
    rounded up, because the next status adds to it."""
    whole = floor(value * 1_000_000 + 1e-6)
    return f"{whole / 1_000_000:.6f}".rstrip("0").rstrip(".")
