"""What a job has spent on TPU slices, and what stands in the way of spending more."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.preflight_memory import least_chip_hours
from finetune_operator.lifecycle.progress import decimal
from finetune_operator.lifecycle.stages import JobStages
from finetune_operator.lifecycle.usage import Usage, rate_of
from finetune_operator.planning import Plan
from finetune_operator.planning.budget import SpendingLimit

type Object = Mapping[str, Any]

_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded:
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


def cost_status(plan: Plan, used: Usage) -> Object:
    """``status.cost``."""
    told = {"chipHours": _figure(used.chip_hours)}
    if used.cost is not None:
        told["amount"] = _figure(used.cost)
    left = [ceiling.most - amount for ceiling, amount in _against(plan, used)]
    if left:
        # Money where it is limited, else chip hours.
        told["budgetRemaining"] = decimal(round(max(0.0, left[-1]), 4))
    return told


def budget_exceeded(look: JobStages) -> BudgetExceeded | None:
    """Whether what is at work, or due, may go on. What runs on CPU costs nothing; a slice that is held does, whatever
    stage is due (records of the stages before it may have been deleted)."""
    stages = {look.current.stage} | ({look.live.key.stage} if look.live else set())
    exhausted = used_up(look) if any(stage.on_tpu for stage in stages) and not look.succeeded else None
    return exhausted or _unaffordable(look)


def used_up(look: JobStages) -> BudgetExceeded | None:
    """Whether nothing is left, whatever is at work."""
    for ceiling, amount in _against(look.plan, look.used):
        if amount >= ceiling.most:
            return BudgetExceeded(
                reason=Reason.BUDGET_EXHAUSTED,
                message=exhausted_message(ceiling, amount),
                fix=_raise(ceiling),
                fails=ceiling.fails,
            )
    return None


def exhausted_message(ceiling: SpendingLimit, amount: float) -> str:
    """A sentence: ``amount`` is at least what the ceiling allows."""
    return f"{decimal(round(amount, 2))} of the {decimal(ceiling.most)} of {ceiling.path} are used up."


def seconds_left(look: JobStages, attempt: Attempt) -> float | None:
    """Until the attempt, which runs, has used up what is left; None: no limit."""
    rate = rate_of(attempt, look.plan)
    hourly = Usage(chip_hours=float(rate.chips), cost=rate.chips * (rate.price or 0.0))
    used, each_hour = _against(look.plan, look.used), _against(look.plan, hourly)
    left = [
        (ceiling.most - amount) / more * _HOUR
        for (ceiling, amount), (_, more) in zip(used, each_hour, strict=True)
        if more > 0
    ]
    return min(left, default=None)


def _unaffordable(look: JobStages) -> BudgetExceeded | None:
    """Before the first slice is claimed: the whole training is sure to cost more than there is. By the low end of the
    estimate, since the high one was never measured on a TPU."""
    hours = least_chip_hours(look.plan, look.findings)
    if hours is None or look[Stage.TRAIN].attempts or look.succeeded:
        return None
    for ceiling, amount in _against(look.plan, Usage(chip_hours=hours, cost=_priced(look.plan, hours))):
        if amount > ceiling.most:
            return BudgetExceeded(
                reason=Reason.BUDGET_TOO_SMALL,
                message=f"Training takes at least {decimal(round(amount, 2))}, and {ceiling.path} is "
                f"{decimal(ceiling.most)}. No TPU time was used.",
                fix=f"Train fewer steps in a new job, or {_raise(ceiling)[0].lower()}{_raise(ceiling)[1:]}",
                fails=ceiling.fails,
            )
    return None


def _raise(ceiling: SpendingLimit) -> str:
    if ceiling.path.startswith("spec."):
        again = " and spec.retry.generation" if ceiling.fails else ""
        return f"Raise {ceiling.path}{again}: the job then goes on from its last checkpoint."
    return "Ask its owner to raise it; a job that is created after that may use more."


def _against(plan: Plan, used: Usage) -> list[tuple[SpendingLimit, float]]:
    """Each limit with what counts towards it."""
    pairs = ((plan.budget.chip_hours, used.chip_hours), (plan.budget.cost, used.cost or 0.0))
    return [(ceiling, amount) for ceiling, amount in pairs if ceiling is not None]


def _priced(plan: Plan, hours: float) -> float | None:
    price = plan.placement.chip_hour_price
    return None if price is None else hours * price


def _figure(value: float) -> str:
    """To six decimals, so that ten seconds of one cheap chip keep three digits; never more than it is: the next status
    counts on from what this one says."""
    whole = floor(value * 1_000_000 + 1e-6)
    return f"{whole / 1_000_000:.6f}".rstrip("0").rstrip(".")
