"""Limits on what a job spends on TPU slices: ``spec.budget`` and the profile's ``maxChipHours``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Reason
from finetune_operator.api.numbers import decimal
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import Usage, rate_of
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.preflight_memory import least_chip_hours
from finetune_operator.planning import Plan
from finetune_operator.planning.budget import SpendingLimit

type Object = Mapping[str, Any]

_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded:
    """Why the job may neither hold nor claim a slice."""

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


def budget_exceeded(stages: JobStages) -> BudgetExceeded | None:
    """Returns why the current stage may not continue or start; None if it may.

    Stages on CPU cost nothing. A slice that is held costs, whichever stage is current: records of earlier stages may
    have been deleted.
    """
    due = {stages.current.stage} | ({stages.live.key.stage} if stages.live else set())
    over = used_up(stages) if any(stage.on_tpu for stage in due) and not stages.succeeded else None
    return over or _unaffordable(stages)


def used_up(stages: JobStages) -> BudgetExceeded | None:
    """Returns the first exhausted limit, whichever stage is current; None if all allow more."""
    return exhausted(against(stages.plan, stages.used))


def exhausted(limits: Iterable[tuple[SpendingLimit, float]]) -> BudgetExceeded | None:
    """Returns the first limit that the amount beside it has reached; None if all allow more."""
    for ceiling, amount in limits:
        if amount >= ceiling.most:
            used = f"{decimal(round(amount, 2))} of {decimal(ceiling.most)} are used."
            return BudgetExceeded(
                reason=Reason.BUDGET_EXHAUSTED,
                message=f"{ceiling.path} is exhausted: {used}",
                fix=_raise(ceiling),
                fails=ceiling.fails,
            )
    return None


def seconds_left(stages: JobStages, attempt: Attempt) -> float | None:
    """Returns the seconds until the running attempt reaches a limit; None if no limit applies."""
    rate = rate_of(attempt, stages.plan)
    hourly = Usage(chip_hours=float(rate.chips), cost=rate.chips * (rate.price or 0.0))
    used, each_hour = against(stages.plan, stages.used), against(stages.plan, hourly)
    left = [
        (ceiling.most - amount) / more * _HOUR
        for (ceiling, amount), (_, more) in zip(used, each_hour, strict=True)
        if more > 0
    ]
    return min(left, default=None)


def _unaffordable(stages: JobStages) -> BudgetExceeded | None:
    """Returns why the whole training exceeds a limit, before the first slice is claimed; None if it may suffice.

    It compares the lower bound of the estimate.
    """
    hours = least_chip_hours(stages.plan, stages.findings)
    if hours is None or stages[Stage.TRAIN].attempts or stages.succeeded:
        return None
    for ceiling, amount in against(stages.plan, Usage(chip_hours=hours, cost=_priced(stages.plan, hours))):
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
        return f"Raise {ceiling.path}{again}: the job then continues from its last checkpoint."
    return "Ask its owner to raise it; a job that is created after that may use more."


def against(plan: Plan, used: Usage) -> list[tuple[SpendingLimit, float]]:
    """Returns each limit with the usage that counts towards it."""
    pairs = ((plan.budget.chip_hours, used.chip_hours), (plan.budget.cost, used.cost or 0.0))
    return [(ceiling, amount) for ceiling, amount in pairs if ceiling is not None]


def _priced(plan: Plan, hours: float) -> float | None:
    price = plan.placement.chip_hour_price
    return None if price is None else hours * price
