"""Limits on what a job may spend on TPU slices: ``spec.budget``, the profile's ``maxChipHours``, and its
``chipHoursPerMonth`` for the job's namespace.

One rule for the calendar month: stages on TPUs start while less than the limit is known to be used, and run until all
of it is. If the usage is unknown, none starts, and what runs continues.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Reason
from finetune_operator.api.numbers import decimal
from finetune_operator.api.timestamps import stamp
from finetune_operator.ledger.amounts import Amounts
from finetune_operator.ledger.month import Month
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import Usage, rate_of
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.findings import estimated_seconds
from finetune_operator.lifecycle.stages.job_stages import JobStages, MonthlyLimit
from finetune_operator.planning import Plan
from finetune_operator.planning.budget import SpendingLimit
from finetune_operator.planning.errors import whom_to_ask

_HOUR = 3600
#: Field of a profile that sets the budget of each namespace for the month.
_MONTHLY = "constraints.chipHoursPerMonth"
#: Seconds between two looks of a job that waits, if there are few jobs.
_LOOK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedSuspension:
    """Why a job may neither hold nor claim a slice although its user has not suspended it."""

    reason: Reason
    message: str
    fix: str
    fails: bool = False
    """Whether the job fails for it."""
    until: datetime | None = None
    """When it ends without an edit; None if that is unknown."""

    @property
    def failure(self) -> Failure:
        return Failure(code=ExitCode.BAD_REQUEST, reason=str(self.reason), message=self.message, fix=self.fix)

    @property
    def text(self) -> str:
        return f"{self.message} {self.fix}"


def budget_exceeded(stages: JobStages) -> ForcedSuspension | None:
    """Returns why the current stage may not continue or start; None if it may.

    Stages on CPU cost nothing. A slice that is held costs, whichever stage is current: records of earlier stages may
    have been deleted.
    """
    return (used_up(stages) if _needs_tpu(stages) else None) or _unaffordable(stages)


def _needs_tpu(stages: JobStages) -> bool:
    due = {stages.current.stage} | ({stages.live.key.stage} if stages.live else set())
    return not stages.succeeded and any(stage.on_tpu for stage in due)


def used_up(stages: JobStages) -> ForcedSuspension | None:
    """Returns the first exhausted limit, whichever stage is current; None if all allow more."""
    return exhausted(against(stages.plan, stages.used))


def exhausted(limits: Iterable[tuple[SpendingLimit, float]]) -> ForcedSuspension | None:
    """Returns the first limit that the amount beside it has reached; None if all allow more."""
    for ceiling, amount in limits:
        if amount >= ceiling.most:
            used = f"{decimal(round(amount, 2))} of {decimal(ceiling.most)} are used."
            return ForcedSuspension(
                reason=Reason.BUDGET_EXHAUSTED,
                message=f"{ceiling.path} is exhausted: {used}",
                fix=_raise(ceiling),
                fails=ceiling.fails,
            )
    return None


def seconds_left(stages: JobStages, attempt: Attempt) -> float | None:
    """Returns the seconds until the job reaches a limit of its own, or its namespace that of the month if everything
    that runs now continues; None if no limit is known to come closer."""
    rate, month = rate_of(attempt, stages.plan), stages.month
    hourly = Usage(chip_hours=float(rate.chips), cost=rate.chips * (rate.price or 0.0))
    used, each_hour = against(stages.plan, stages.used), against(stages.plan, hourly)
    left = [
        (ceiling.most - amount) / more * _HOUR
        for (ceiling, amount), (_, more) in zip(used, each_hour, strict=True)
        if more > 0
    ]
    if month is not None and month.used is not None and attempt.key.stage.on_tpu:
        chips = month.budget.chips + rate.chips
        left += [(month.budget.limit - month.used) / chips * _HOUR] if chips else []
    return min(left, default=None)


def _unaffordable(stages: JobStages) -> ForcedSuspension | None:
    """Returns why the whole training exceeds a limit, before the first slice is claimed; None if it may suffice.

    It compares the lower bound of the estimate.
    """
    seconds = estimated_seconds(stages.plan, stages.findings)
    if seconds is None or stages[Stage.TRAIN].attempts or stages.succeeded:
        return None
    hours = seconds[0] * stages.plan.chips / _HOUR
    for ceiling, amount in against(stages.plan, Usage(chip_hours=hours, cost=_priced(stages.plan, hours))):
        if amount > ceiling.most:
            return ForcedSuspension(
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


def monthly_stop(stages: JobStages) -> ForcedSuspension | None:
    """Returns why the current stage may not start; None if it may, or needs no TPU."""
    return month_stop(stages.month) if stages.month and _needs_tpu(stages) else None


def must_stop(stages: JobStages) -> ForcedSuspension | None:
    """Returns why what runs must stop; None if it may continue, as it does while the usage is unknown."""
    return monthly_stop(stages) if stages.month and stages.month.exhausted else None


def monthly_shortage(stages: JobStages) -> ForcedSuspension | None:
    """Returns the same for the condition WithinBudget, which also shows for a job on CPU what will prevent its next
    stage, and nothing for a job that has ended, or continues although the usage is unknown."""
    limit = stages.month
    if limit is None or stages.succeeded or stages.failed:
        return None
    if limit.exhausted:
        return month_stop(limit)
    return None if stages.live else monthly_stop(stages)


def month_stop(limit: MonthlyLimit) -> ForcedSuspension | None:
    """Returns why no stage on TPUs may start, and if the limit is exhausted, none may continue; None if one may."""
    budget, namespace = limit.budget, limit.namespace
    if limit.used is None:
        return ForcedSuspension(
            reason=Reason.MONTHLY_USAGE_UNKNOWN,
            message=f'{_MONTHLY} of profile "{budget.profile}" is {hours_text(budget.limit)}, and what namespace '
            f"{namespace} has used in {budget.month} is unknown until the operator has read its ledger.",
            fix=f"The job then continues automatically. If this lasts for minutes, ask {limit.contact}.",
        )
    if not limit.exhausted:
        return None
    return ForcedSuspension(
        reason=Reason.MONTHLY_BUDGET_EXHAUSTED,
        message=f"Namespace {namespace} has used {hours_text(limit.used)} of the {hours_text(budget.limit)} chip hours "
        f'that {_MONTHLY} of profile "{budget.profile}" allows it in {budget.month}.',
        fix=f"The job continues automatically when the next month begins, {stamp(budget.month.end)}, or when the limit "
        f"is raised: ask {limit.contact}.",
        until=budget.month.end,
    )


def seconds_of_wait(observation: Observation, month: ForcedSuspension) -> float:
    """Returns the seconds until a job that may not start looks again. A raised limit, and records that have been read,
    queue it at once."""
    regular = observation.pace(_LOOK_SECONDS)
    if month.until is None:
        return regular
    return max(1.0, min(regular, (month.until - observation.now).total_seconds()))


def monthly_limit(observation: Observation, used: Usage, owner: object) -> MonthlyLimit | None:
    """Returns the budget with the usage of the namespace, which includes ``used``, that of the job over all months.

    ``owner``: of the spec of the profile. None: the profile sets no budget.
    """
    budget, status = observation.month, observation.status
    if budget is None:
        return None
    limit = MonthlyLimit(
        budget=budget, used=None, namespace=observation.job.namespace, contact=whom_to_ask(owner)
    )
    if budget.recorded is None:
        return limit
    as_of = status.active_time.as_of if status.active_time else None
    reported, recorded = (float(Amounts.of(part).chip_hours) for part in (status.cost, status.ledger))
    # A report of an earlier month is recorded in that month.
    earlier = as_of is not None and Month.of(as_of) < budget.month
    before = reported if earlier else max(recorded, budget.own)
    own = max(0.0, used.chip_hours - before)
    return replace(limit, used=budget.recorded + budget.others + own)


def hours_text(hours: float) -> str:
    """Returns chip hours for people: ``1,310.25``, ``0.0022``."""
    return f"{hours:,.2f}".removesuffix(".00") if hours >= 100 else decimal(round(hours, 4))
