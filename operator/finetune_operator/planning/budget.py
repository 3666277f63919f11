"""Spending limits of a job: its own budget, and the profile's limit."""

from dataclasses import dataclass

from finetune_operator.api.policies import Budget, OnExhausted
from finetune_operator.planning.errors import invalid_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimit:
    """Limit of chip hours or of cost."""

    most: float
    path: str
    """Field that sets the limit, for messages."""
    fails: bool
    """Whether the job fails beyond the limit; if not, it is suspended until the limit is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimits:
    """Spending limits of a job. None: no limit of that kind."""

    chip_hours: SpendingLimit | None = None
    cost: SpendingLimit | None = None
    """In the profile's currency."""

    @property
    def ceilings(self) -> tuple[SpendingLimit, ...]:
        return tuple(each for each in (self.chip_hours, self.cost) if each is not None)


def resolve_budget(
    budget: Budget | None, profile_name: str, max_chip_hours: float | None, price: float | None
) -> SpendingLimits:
    """Resolves ``spec.budget`` and the profile's limit of chip hours. The lower of two limits of chip hours applies.

    Args:
        budget: ``spec.budget``; None if the job has none.
        profile_name: name of the profile, for messages.
        max_chip_hours: the profile's ``constraints.maxChipHours``; None for no limit.
        price: the flavor's price of one chip hour, in the profile's currency; None if the profile states none.

    Raises:
        Refused: the budget limits nothing, or it limits the cost and there is no price.
    """
    own = budget or Budget()
    if own.on_exhausted is not None and own.max_chip_hours is None and own.max_cost is None:
        raise invalid_spec(
            "spec.budget limits nothing: set maxChipHours or maxCost, or leave budget out.",
        )
    fails = own.on_exhausted is OnExhausted.FAIL
    hours: list[SpendingLimit] = []
    if own.max_chip_hours is not None:
        hours.append(SpendingLimit(most=own.max_chip_hours, path="spec.budget.maxChipHours", fails=fails))
    if max_chip_hours is not None:
        # Fails the job: the profile's limit cannot be raised for an admitted job.
        path = f'constraints.maxChipHours of profile "{profile_name}"'
        hours.append(SpendingLimit(most=max_chip_hours, path=path, fails=True))
    cost = None
    if own.max_cost is not None:
        if price is None:
            raise invalid_spec(
                f'spec.budget.maxCost: profile "{profile_name}" has no chipHourPrice for this slice, so money '
                "cannot be counted: use maxChipHours.",
            )
        cost = SpendingLimit(most=own.max_cost, path="spec.budget.maxCost", fails=fails)
    return SpendingLimits(chip_hours=min(hours, key=lambda each: each.most, default=None), cost=cost)
