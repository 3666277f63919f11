"""Spending limits of a job: its own budget, and the profile's limit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused

type Object = Mapping[str, Any]


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


def resolve_budget(spec: Object, profile_name: str, profile: Object, price: float | None) -> SpendingLimits:
    """Resolves ``spec.budget`` and the profile's ``constraints.maxChipHours``, of which the lower one applies.

    ``price`` is the flavor's price of one chip hour. Raises Refused if a cost is limited and there is no price.
    """
    asked, hours = spec.get("budget", {}), []
    fails = asked.get("onExhausted", "Suspend") == "Fail"
    if asked and not asked.keys() & {"maxChipHours", "maxCost"}:
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.budget limits nothing: set maxChipHours or maxCost, or leave budget out.",
        )
    if "maxChipHours" in asked:
        hours.append(
            SpendingLimit(most=float(asked["maxChipHours"]), path="spec.budget.maxChipHours", fails=fails)
        )
    if limit := profile.get("constraints", {}).get("maxChipHours"):
        # Fails the job: the profile's limit cannot be raised for an admitted job.
        path = f'constraints.maxChipHours of profile "{profile_name}"'
        hours.append(SpendingLimit(most=float(limit), path=path, fails=True))
    cost = None
    if "maxCost" in asked:
        if price is None:
            raise Refused(
                Reason.INVALID_SPEC,
                f'spec.budget.maxCost: profile "{profile_name}" has no chipHourPrice for this slice, so money '
                "cannot be counted: use maxChipHours.",
            )
        cost = SpendingLimit(most=float(asked["maxCost"]), path="spec.budget.maxCost", fails=fails)
    return SpendingLimits(chip_hours=min(hours, key=lambda each: each.most, default=None), cost=cost)
