"""``status.cost``."""

from math import floor

from finetune_operator.api.numbers import decimal
from finetune_operator.api.status_stages import CostStatus
from finetune_operator.lifecycle.attempts.usage import Usage
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


def rounded_down(value: float) -> str:
    """Returns chip hours or money to six decimals, so that ten seconds of one cheap chip keep three digits. It is never
    rounded up, because the next status adds to it."""
    whole = floor(value * 1_000_000 + 1e-6)
    return f"{whole / 1_000_000:.6f}".rstrip("0").rstrip(".")
