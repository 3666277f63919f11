"""What a job has spent on TPU slices, and what stands in the way of spending more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.deadlines import ran
from finetune_operator.lifecycle.memory import least_chip_hours
from finetune_operator.lifecycle.progress import decimal
from finetune_operator.lifecycle.stages import Survey
from finetune_operator.planning import Plan
from finetune_operator.planning.budget import Ceiling
from finetune_operator.rendering import TPU_STAGES

type Object = Mapping[str, Any]

_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    chip_hours: float
    """While processes ran; waiting for nodes is not counted."""
    cost: float | None
    """At the price of the capacity that the job has now; None where the profile names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overspent:
    """Why no slice is held any more, or claimed."""

    reason: Reason
    message: str
    fix: str
    fails: bool

    @property
    def failure(self) -> Failure:
        return Failure(code=ExitCode.BAD_REQUEST, reason=str(self.reason), message=self.message, fix=self.fix)

    @property
    def text(self) -> str:
        return f"{self.message} {self.fix}"


def spent(plan: Plan, attempts: Iterable[Attempt], now: datetime) -> Spent:
    """Over all attempts at the stages that hold a slice."""
    hours = sum(
        ran(attempt, now) * _chips(attempt, plan) / _HOUR
        for attempt in attempts
        if attempt.key.stage in TPU_STAGES
    )
    return Spent(chip_hours=hours, cost=_priced(plan, hours))


def cost_status(plan: Plan, used: Spent) -> Object:
    """``status.cost``."""
    told = {"chipHours": decimal(round(used.chip_hours, 4))}
    if used.cost is not None:
        told["amount"] = decimal(round(used.cost, 4))
    left = [ceiling.most - amount for ceiling, amount in _against(plan, used)]
    if left:
        # Money where it is limited, else chip hours.
        told["budgetRemaining"] = decimal(round(max(0.0, left[-1]), 4))
    return told


def overspent(look: Survey, now: datetime) -> Overspent | None:
    """Whether the stage at work, or due, may go on. What runs on CPU costs nothing."""
    exhausted = used_up(look, now) if look.current.stage in TPU_STAGES and not look.succeeded else None
    return exhausted or _unaffordable(look)


def used_up(look: Survey, now: datetime) -> Overspent | None:
    """Whether nothing is left, whatever is at work."""
    for ceiling, amount in _against(look.plan, spent(look.plan, look.attempts, now)):
        if amount >= ceiling.most:
            return Overspent(
                reason=Reason.BUDGET_EXHAUSTED,
                message=f"{decimal(round(amount, 2))} of the {decimal(ceiling.most)} of {ceiling.path} are used up.",
                fix=_raise(ceiling),
                fails=ceiling.fails,
            )
    return None


def seconds_left(look: Survey, now: datetime) -> float | None:
    """Until the running attempt has used up what is left; None: no limit."""
    used = spent(look.plan, look.attempts, now)
    rates = {"chip_hours": 1.0, "cost": _priced(look.plan, 1.0) or 0.0}
    left = [
        (ceiling.most - getattr(used, name)) / (rate * look.plan.chips) * _HOUR
        for name, rate in rates.items()
        if (ceiling := getattr(look.plan.budget, name)) is not None and rate > 0
    ]
    return min(left, default=None)


def _unaffordable(look: Survey) -> Overspent | None:
    """Before the first slice is claimed: the whole training is sure to cost more than there is. By the low end of the
    estimate, since the high one was never measured on a TPU."""
    hours = least_chip_hours(look.plan, look.findings)
    if hours is None or look[Stage.TRAIN].attempts or look.succeeded:
        return None
    for ceiling, amount in _against(look.plan, Spent(chip_hours=hours, cost=_priced(look.plan, hours))):
        if amount > ceiling.most:
            return Overspent(
                reason=Reason.BUDGET_TOO_SMALL,
                message=f"Training takes at least {decimal(round(amount, 2))}, and {ceiling.path} is "
                f"{decimal(ceiling.most)}. No TPU time was used.",
                fix=f"Train fewer steps in a new job, or {_raise(ceiling)[0].lower()}{_raise(ceiling)[1:]}",
                fails=ceiling.fails,
            )
    return None


def _raise(ceiling: Ceiling) -> str:
    if ceiling.path.startswith("spec."):
        again = " and spec.retry.generation" if ceiling.fails else ""
        return f"Raise {ceiling.path}{again}: the job then goes on from its last checkpoint."
    return "Ask its owner to raise it; a job that is created after that may use more."


def _against(plan: Plan, used: Spent) -> list[tuple[Ceiling, float]]:
    """Each limit with what counts towards it."""
    pairs = ((plan.budget.chip_hours, used.chip_hours), (plan.budget.cost, used.cost))
    return [(ceiling, amount) for ceiling, amount in pairs if ceiling is not None and amount is not None]


def _priced(plan: Plan, hours: float) -> float | None:
    price = plan.placement.chip_hour_price
    return None if price is None else hours * float(price)


def _chips(attempt: Attempt, plan: Plan) -> int:
    """Of its own slice; of the job's where its JobSet is gone."""
    return children.chips(attempt.jobset) if attempt.jobset else plan.chips
